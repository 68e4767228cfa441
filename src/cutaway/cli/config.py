"""`cutaway config`: the settings that a command would use, and where each came from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from cutaway.cli.settings.options import AsJson, Given, SettingsFile, with_settings
from cutaway.cli.settings.setting_keys import CHAT, ENGINE, KEYS, MODEL, SAMPLING
from cutaway.cli.terminal.terminal import note, print_data, print_json
from cutaway.core.errors import ModelNotFoundError

if TYPE_CHECKING:
    from cutaway.cli.settings.settings import Resolved

app = typer.Typer(name="config", help="Show settings and where they come from.")


@app.command()
@with_settings(MODEL, ENGINE, SAMPLING, CHAT)
def show(
    *,
    given: Given,
    config: SettingsFile = None,
    origin: Annotated[
        bool, typer.Option("--origin", help="say for each where it came from")
    ] = False,
    json: AsJson = False,
) -> None:
    """Print all settings as TOML, so that a file can be made of them.

    Flags are taken as other commands take them, to see what they change.
    """
    from cutaway.cli.settings.settings import resolve, user_file

    settings = resolve(given, config=config)
    settings = resolve(given, config=config, recommended=_recommended(settings.model))
    if json:
        print_json(_as_object(settings, origin=origin))
        return
    print_data("\n".join(_lines(settings, origin=origin)))
    state = "is read" if user_file().is_file() else "would be read, but is not there"
    note(f"{user_file()} {state}.", dim=True)


def _recommended(model: str) -> Mapping[str, object]:
    """What the model's makers recommend, where the model is on this machine."""
    from cutaway.cli.session.at_hand import at_hand

    found = None
    try:
        found = at_hand(model)
    except ModelNotFoundError as error:
        note(f"warning: {error}")
    else:
        if found is None:
            note(f"{model} is not here, so what it recommends is left out.", dim=True)
    return {} if found is None else found.sampling


def _as_object(settings: Resolved, *, origin: bool) -> dict[str, object]:
    values = settings.values
    if not origin:
        return dict(values)
    return {name: {"value": values[name], "origin": settings.origins[name]} for name in values}


def _lines(settings: Resolved, *, origin: bool) -> list[str]:
    """TOML; what is not set is a comment, since TOML has no null."""
    import json

    lines: list[str] = []
    for key in KEYS:
        value = settings.values[key.name]
        line = f"# {key.name} is not set"
        if value is not None:
            line = f"{key.name} = {json.dumps(value, ensure_ascii=False)}"
        lines.append(f"{line:<32} # {settings.origins[key.name]}" if origin else line)
    return lines
