"""Command line flags made from the table of settings, so that all commands share one meaning."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer

from cutaway.cli.settings.integer_text import parse_integer
from cutaway.cli.settings.setting_keys import ENGINE, FLEET, KEYS, MODEL, TRAFFIC, Key
from cutaway.cli.short_help import MOST_TOLD, ask_for_all, is_folded

Given = Mapping[str, object]  # settings that were given as flags, by name

SettingsFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        envvar="CUTAWAY_CONFIG",
        show_envvar=False,
        help="a TOML file of settings; see docs/configuration.md",
        rich_help_panel=MODEL,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="print one JSON object")]

_HELP_ALL = inspect.Parameter(
    "help_all",
    inspect.Parameter.KEYWORD_ONLY,
    default=False,
    annotation=Annotated[
        bool,
        typer.Option(
            "--help-all",
            is_eager=True,
            callback=ask_for_all,
            help="say what each setting does, and end",
        ),
    ],
)
_METAVARS = {"text": "TEXT", "texts": "TEXT", "int": "N", "float": "X"}


def with_settings(
    *panels: str, only: tuple[str, ...] = ()
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Replace a command's parameter `given` by one flag for each setting of these panels.

    only: names to which the panels are narrowed.
    """
    keys = [key for key in KEYS if key.panel in panels and (not only or key.name in only)]

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(command)
        def collected(**arguments: Any) -> Any:
            arguments.pop(_HELP_ALL.name, None)
            flags = {key.name: arguments.pop(key.name) for key in keys}
            given = {name: value for name, value in flags.items() if value not in (None, [])}
            return command(given=given, **arguments)

        own = inspect.signature(command, eval_str=True).parameters.values()
        kept = [each for each in own if each.name != "given"]
        parameters = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in kept]
        parameters += [_parameter(key) for key in keys]
        if sum(is_folded(key.name, key.panel) for key in keys) > MOST_TOLD:
            parameters.append(_HELP_ALL)
        # Typer reads the signature, and annotations by name; both must tell the same.
        collected.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        collected.__annotations__ = {each.name: each.annotation for each in parameters}
        return collected

    return decorate


def integer(text: str | int) -> int:
    """Parser of integer flags: 32K is 32768."""
    if isinstance(text, int):
        return text
    try:
        return parse_integer(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def _parameter(key: Key) -> inspect.Parameter:
    types: Mapping[str, Any] = {"texts": list[str], "bool": bool, "float": float, "int": int}
    option: Any = typer.Option(
        *_spellings(key),
        help=_help(key),
        metavar=_METAVARS.get(key.kind),
        parser=integer if key.kind == "int" else None,
        rich_help_panel=key.panel,
        show_default=False,
    )
    return inspect.Parameter(
        key.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[types.get(key.kind, str) | None, option],
    )


def _spellings(key: Key) -> tuple[str, ...]:
    return (key.flag, "-m") if key.name == "model" else (key.flag,)


def _help(key: Key) -> str:
    has_default = key.panel in (ENGINE, TRAFFIC, FLEET) and key.default is not None
    return f"{key.help}; default {str(key.default).lower()}" if has_default else key.help
