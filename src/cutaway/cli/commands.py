"""The list of commands. One that is named is imported alone: start-up pays for no other."""

from __future__ import annotations

from importlib import import_module
from typing import Annotated, Final

import typer

from cutaway import __version__

# In the order of the help. A module has the name of its command; a group has further ones below.
COMMANDS: Final = (
    *("chat", "complete", "view", "why", "compare", "run", "serve"),
    *("tokenize", "detokenize", "doctor"),
)
GROUPS: Final = ("models", "config", "trace", "train", "bench")


def application(wanted: str | None = None) -> typer.Typer:
    """The program: with one command or group, or with all where none has the wanted name."""
    app = typer.Typer(
        name="cutaway",
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
        epilog="Data goes to stdout, everything else to stderr.",
    )
    app.callback()(cutaway)
    names = (*COMMANDS, *GROUPS)
    for name in (wanted,) if wanted in names else names:
        module = import_module(f"cutaway.cli.{name}")
        if name in GROUPS:
            app.add_typer(module.app)
        else:
            app.command()(getattr(module, name))
    return app


def _print_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"cutaway {__version__}")
        raise typer.Exit


def cutaway(
    *,
    version: Annotated[
        bool,
        typer.Option(
            "--version", is_eager=True, callback=_print_version, help="print the version and end"
        ),
    ] = False,
) -> None:
    """An LLM inference engine that people can see into."""
