"""`cutaway models`: which models are here, what they are, fetching, checking and removing them."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cutaway.cli.estimate import estimate
from cutaway.cli.quantize import quantize
from cutaway.cli.settings.integer_text import show_bytes
from cutaway.cli.settings.options import AsJson
from cutaway.cli.settings.setting_keys import DEFAULT_MODEL
from cutaway.cli.terminal import exits
from cutaway.cli.terminal.terminal import note, print_data, print_json, table
from cutaway.core.errors import ModelNotFoundError

if TYPE_CHECKING:
    from cutaway.weights.find.find import Found

app = typer.Typer(name="models", help="List, describe, fetch, check and remove models.")

app.command()(estimate)
app.command()(quantize)

Name = Annotated[str, typer.Argument(help="as for --model")]


@app.command()
def ls(*, json: AsJson = False) -> None:
    """List the models that have a name of their own, with licences."""
    from cutaway.weights.find.package import cache_folder
    from cutaway.weights.find.store import list_models

    models = list_models()
    if json:
        listed = [_plain(asdict(model)) for model in models]
        print_json({"cache": str(cache_folder()), "models": listed})
        return
    rows = [
        (
            model.name,
            "yes" if model.is_cached else "no",
            show_bytes(model.num_bytes),
            model.licence,
            model.source,
        )
        for model in models
    ]
    print_data(table(("NAME", "HERE", "SIZE", "LICENCE", "FROM"), rows, right="SIZE"))
    note(f"Files, folders and hub ids need no list. The cache is {cache_folder()}.", dim=True)


@app.command()
def info(name: Name = DEFAULT_MODEL, *, json: AsJson = False) -> None:
    """Show what a model is, from its headers; nothing is fetched."""
    from cutaway.cli.session.at_hand import at_hand
    from cutaway.weights.find.store import describe

    found = at_hand(name)
    if found is None:
        raise ModelNotFoundError(f"{name} is not here; `cutaway models pull {name}` fetches it.")
    made = describe(found)
    parameters = sum(made.types.values())
    obstacle = _obstacle(found)
    if json:
        numbers = {"num_parameters": parameters, "runs": obstacle is None, "obstacle": obstacle}
        print_json({**_plain(asdict(made)), **numbers})
        return
    shares = [f"{kind} {count / parameters:.0%}" for kind, count in made.types.items()]
    rows = [
        ("name", made.name),
        ("licence", made.licence or "not stated"),
        ("from", made.source or "not stated"),
        ("architecture", made.architecture),
        ("runs", "yes" if obstacle is None else f"no: {obstacle}"),
        ("parameters", f"{parameters:,}" if parameters else "random, made at load"),
        ("stored as", ", ".join(shares) or "-"),
        ("size", show_bytes(made.num_bytes)),
        ("sampling", ", ".join(f"{k} {v:g}" for k, v in made.sampling.items()) or "not stated"),
        ("path", str(made.path)),
    ]
    print_data("\n".join(f"{key:<13} {value}" for key, value in rows))


def _obstacle(found: Found) -> str | None:
    """Why a model cannot run, as far as its headers and configuration tell."""
    from cutaway.cli.session.shape_at import shape_of_found
    from cutaway.core.errors import CutawayError
    from cutaway.engine.loading.tokenizer_of import tokenizer_of

    try:
        shape_of_found(found)
        tokenizer_of(found)
    except CutawayError as error:
        return str(error)
    return None


@app.command()
def pull(
    name: Name = DEFAULT_MODEL,
    *,
    accept_license: Annotated[
        bool,
        typer.Option(
            "--accept-license", help="accept the model's terms, if it has some of its own"
        ),
    ] = False,
    json: AsJson = False,
) -> None:
    """Fetch a model, unless it is here, and print its path."""
    from cutaway.cli.settings.settings import resolve
    from cutaway.cli.terminal.progress import download_bar
    from cutaway.weights.find.find import find
    from cutaway.weights.find.named_models import NAMED

    given = {"accept_license": True} if accept_license else {}
    accepts = resolve(given).accepts_license
    with download_bar(name) as progress:
        found = find(name, progress=progress, accept_license=accepts)
    if json:
        print_json({"name": found.name, "path": str(found.path), "licence": found.licence})
        return
    terms = NAMED[name].terms if name in NAMED else None
    licence = terms.describe() if terms else f"{found.licence or 'not stated'}."
    note(f"{found.name} is under this licence: {licence}")
    print_data(str(found.path))


@app.command()
def verify(
    name: Annotated[
        str | None,
        typer.Argument(help="a name of `models ls`; all that are here", show_default=False),
    ] = None,
    *,
    json: AsJson = False,
) -> int:
    """Compare files with their published checksums; exit code 4 if one differs."""
    from cutaway.weights.find import store

    names = [model.name for model in store.list_models() if model.is_cached]
    checked = [store.verify(each) for each in ([name] if name is not None else names)]
    if json:
        listed = [{**_plain(asdict(each)), "is_intact": each.is_intact} for each in checked]
        print_json({"models": listed})
    else:
        rows = [
            (each.name, "intact" if each.is_intact else "DAMAGED", str(each.path))
            for each in checked
        ]
        print_data(table(("NAME", "STATE", "PATH"), rows))
    damaged = [each.name for each in checked if not each.is_intact]
    for each in damaged:
        note(f"error: {each} has another checksum than was published.")
        note(f"hint: `cutaway models rm {each}`, then `cutaway models pull {each}`.")
    return exits.DOWNLOAD if damaged else exits.OK


@app.command()
def rm(
    name: Annotated[str, typer.Argument(help="a name of `models ls`")], *, json: AsJson = False
) -> None:
    """Remove a fetched model from the cache."""
    from cutaway.weights.find import store

    freed = store.remove(name)
    if json:
        print_json({"name": name, "freed_bytes": freed})
    else:
        note(f"removed {name}: {show_bytes(freed)} are free again.")


def _plain(fields: dict[str, object]) -> dict[str, object]:
    """Paths as text, for JSON."""
    return {name: str(v) if isinstance(v, Path) else v for name, v in fields.items()}
