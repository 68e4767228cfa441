"""Help: quick, without torch, and the same as the pages say."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Any

import pytest
import typer

from cutaway import __version__
from cutaway.cli.commands import application, program
from cutaway.cli.settings.setting_keys import KEYS
from cutaway.core.limits import LIMITS
from house_tree import ROOT
from program import Cutaway, environment, spawn

HEAVY = ("torch", "transformers", "numpy", "pydantic_settings", "huggingface_hub", "prompt_toolkit")


def paths(command: Any, *path: str) -> list[tuple[str, ...]]:
    below = getattr(command, "commands", {})
    return [path, *(each for name in below for each in paths(below[name], *path, name))]


COMMANDS = paths(typer.main.get_command(application()))


def test_all_commands_are_there() -> None:
    assert {path for path in COMMANDS if len(path) == 1} == {
        *(("chat",), ("complete",), ("view",), ("why",), ("compare",), ("run",), ("serve",)),
        *(("member",), ("rank",), ("cluster",)),
        *(("tokenize",), ("detokenize",), ("models",), ("config",), ("bench",), ("doctor",)),
        *(("trace",), ("train",)),
    }
    assert {path[1] for path in COMMANDS if path[:1] == ("models",) and path[1:]} == {
        *("ls", "info", "estimate", "pull", "verify", "rm", "quantize"),
    }


@pytest.mark.parametrize("name", [path[0] for path in COMMANDS if len(path) == 1])
def test_a_command_that_is_named_is_imported_alone(name: str) -> None:
    alone = typer.main.get_command(application(name))
    assert paths(alone) == [path for path in COMMANDS if path[:1] in ((), (name,))]


@pytest.mark.parametrize("name", [None, "", "complet", "--version", "cpu"])
def test_all_commands_are_there_where_none_is_named(name: str | None) -> None:
    assert paths(typer.main.get_command(application(name))) == COMMANDS


def test_help_of_every_command_brings_nothing_heavy() -> None:
    # All in one process: where none brings it, none does alone. The first that does is named.
    code = (
        "import sys\n"
        "from cutaway.cli.main import run\n"
        f"for path in {COMMANDS!r}:\n"
        "    assert run([*path, '--help']) == 0, path\n"
        f"    heavy = {set(HEAVY)!r} & set(sys.modules)\n"
        "    assert not heavy, (path, heavy)\n"
        "assert run(['--version']) == 0\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Usage: cutaway") == len(COMMANDS)


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_help_goes_to_stdout(cutaway: Cutaway, path: tuple[str, ...]) -> None:
    ended = cutaway(*path, "--help")
    assert (ended.code, ended.err) == (0, "")
    assert " ".join(["Usage: cutaway", *path]) in ended.out
    assert "\x1b" not in ended.out


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_help_is_of_two_screens_at_most_and_names_every_option(
    cutaway: Cutaway, path: tuple[str, ...]
) -> None:
    short = cutaway(*path, "--help").out
    assert len(short.splitlines()) <= 100, "fold a group of settings: cli/short_help.py"
    command: Any = program()
    for word in path:
        command = command.commands[word]
    options = [each for each in command.params if each.param_type_name == "option"]
    assert {each.opts[0] for each in options if each.help} <= set(
        re.findall(r"--[a-z][a-z0-9-]*", short)
    )
    if any(each.name == "help_all" for each in options):
        whole = cutaway(*path, "--help-all")
        assert (whole.code, whole.err) == (0, "") and "More settings" not in whole.out
        assert len(whole.out) > len(short)


def test_without_a_command_the_help_is_shown(cutaway: Cutaway) -> None:
    assert cutaway() == cutaway("--help")


def test_the_version_is_printed(cutaway: Cutaway) -> None:
    assert cutaway("--version").out == f"cutaway {__version__}\n"


def test_help_of_sampling_comes_from_the_table_of_limits() -> None:
    for key in KEYS:
        if key.name in LIMITS:
            assert key.limit is LIMITS[key.name]
            assert key.default == LIMITS[key.name].default


def test_the_pages_say_what_the_program_says() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "cli_page.py"), "--check"],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_shell_completes_commands_and_flags() -> None:
    for words, count, expected in (
        ("cutaway comp", 1, "complete"),
        ("cutaway chat --temp", 2, "--temperature"),
    ):
        ended = spawn(
            **{"_CUTAWAY_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(count)}
        )
        assert expected in ended.out
