"""The list of commands. One that is named is imported alone: start-up pays for no other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Annotated, Any, Final

import typer

from cutaway import __version__
from cutaway.cli.help_examples import below_help
from cutaway.cli.short_help import shorten

# In the order of the help. A module has the name of its command; a group has further ones below.
COMMANDS: Final = (
    *("chat", "complete", "view", "why", "compare", "run", "serve", "member", "rank"),
    *("tokenize", "detokenize", "doctor"),
)
GROUPS: Final = ("models", "config", "trace", "train", "bench", "cluster")


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


def program(wanted: str | None = None) -> Any:
    """The application as typer runs it, with examples, and switches that do not ask for a value."""
    made = typer.main.get_command(application(wanted))
    for path, command in _commands("", made):
        command.epilog = below_help(path) or command.epilog
        for each in command.params:
            _without_type(each)
        command.get_help_option = _help_option_of(command.get_help_option)
        shorten(path, command)
    return made


def _without_type(option: Any) -> Any:
    """A switch takes no value, and help shows none."""
    if getattr(option, "is_flag", False) and option.metavar is None:
        option.metavar = ""
    return option


def _help_option_of(find: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """--help itself, which typer makes when it is asked for."""
    return lambda context: _without_type(find(context))


def _commands(path: str, command: Any) -> Iterator[tuple[str, Any]]:
    yield path, command
    for name, below in getattr(command, "commands", {}).items():
        yield from _commands(f"{path} {name}".strip(), below)


def _print_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"cutaway {__version__}")
        raise typer.Exit


def cutaway(
    *,
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            "-V",
            is_eager=True,
            callback=_print_version,
            help="print the version and end",
        ),
    ] = False,
) -> None:
    """An LLM inference engine that people can see into."""
