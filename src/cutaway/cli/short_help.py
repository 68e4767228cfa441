"""Help of one screen or two: settings that commands share are named there, and told by --help-all.

It knows no setting; groups are those of cli/settings/setting_keys.py.
"""

from __future__ import annotations

from typing import Any

import typer

from cutaway.cli.settings.setting_keys import CHAT, ENGINE, FLEET, MODEL, SAMPLING, TRAFFIC

_GROUPS = (MODEL, ENGINE, SAMPLING, CHAT, TRAFFIC, FLEET)
_ALWAYS_TOLD = ("model", "config")
MOST_TOLD = 8  # settings of these groups that help still tells one by one
_ALL = "cutaway.help_all"  # what the context of a command is marked with


def is_folded(name: str, group: str | None) -> bool:
    """Whether help may leave that setting to --help-all."""
    return group in _GROUPS and name not in _ALWAYS_TOLD


def ask_for_all(context: typer.Context, is_asked: bool) -> None:
    """What --help-all does: print help with every setting, and end."""
    if is_asked:
        context.meta[_ALL] = True
        typer.echo(context.get_help())
        raise typer.Exit


def shorten(path: str, command: Any) -> None:
    """Let the help of a command name what many have in common instead of telling it.

    Options are hidden while help is written only, so that shells still complete them.
    """
    folded = [each for each in command.params if is_folded(each.name, _group(each))]
    if len(folded) <= MOST_TOLD:
        return
    write_all = command.format_help

    def write(context: Any, formatter: Any) -> None:
        if context.meta.get(_ALL):
            write_all(context, formatter)
            return
        epilog = command.epilog
        command.epilog = "\n\n".join(filter(None, (*_named(path, folded), epilog)))
        for each in folded:
            each.hidden = True
        try:
            write_all(context, formatter)
        finally:
            command.epilog = epilog
            for each in folded:
                each.hidden = False

    command.format_help = write


def _named(path: str, folded: list[Any]) -> list[str]:
    """The folded options, a paragraph for each group."""
    groups = [group for group in _GROUPS if any(_group(each) == group for each in folded)]
    flags = {
        group: ", ".join(each.opts[0] for each in folded if _group(each) == group)
        for group in groups
    }
    head = f"More settings; `cutaway {path} --help-all` says what each does:"
    return [head, *(f"{group}: {flags[group]}" for group in groups)]


def _group(option: Any) -> str | None:
    return getattr(option, "rich_help_panel", None)
