"""Standard streams as shells leave them: closed, cut off, in another encoding, without colour."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from cutaway.cli.main import run
from cutaway.cli.terminal import terminal
from program import command, environment, spawn

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="uses a POSIX shell")


def shell(line: str, *arguments: str, **more: str) -> subprocess.CompletedProcess[bytes]:
    """Run a line of sh in which "$@" is the program with its arguments."""
    return subprocess.run(
        ["sh", "-c", line, "sh", *command(*arguments)],
        env=environment(**more),
        capture_output=True,
        timeout=300,
        check=False,
    )


def test_a_reader_that_goes_away_ends_the_program_quietly(tiny_model: str) -> None:
    arguments = ["complete", "hi", "-m", tiny_model, "--ignore-eos", "--max-tokens", "200"]
    done = shell('{ "$@"; echo "code $?" >&2; } | head -c 1 > /dev/null', *arguments)
    assert done.stderr.decode().endswith("code 141\n")
    assert b"Traceback" not in done.stderr and b"rror" not in done.stderr


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_closed_stream_is_no_fault(tiny_model: str, closed: str) -> None:
    done = shell(f'"$@" {closed}', "tokenize", "hi", "-m", tiny_model)
    assert done.returncode == 0


@pytest.mark.slow
def test_chat_ends_at_once_where_all_streams_are_closed(tiny_model: str) -> None:
    assert shell('"$@" <&- >&- 2>&-', "chat", tiny_model).returncode == 0


def test_a_full_disk_is_named() -> None:
    if not os.path.exists("/dev/full"):
        pytest.skip("there is no /dev/full")
    done = shell('"$@" > /dev/full', "models", "ls", "--json")
    assert done.returncode == 1
    assert done.stderr.decode().splitlines()[0] == "error: No space left on device"


def test_text_is_utf8_whatever_the_locale_says(tiny_model: str) -> None:
    ended = spawn("detokenize", "-m", tiny_model, "195", "169", "--json", PYTHONIOENCODING="ascii")
    assert ended.json["text"] == "é"


def test_no_escape_sequence_leaves_where_nobody_looks(tiny_model: str) -> None:
    ended = spawn("complete", "hi", "-m", tiny_model, "--max-tokens", "3", NO_COLOR="")
    assert "\x1b" not in ended.err


class _Seen:
    """A stream at which a person looks."""

    def __init__(self) -> None:
        self.text = ""

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self.text += text
        return len(text)

    def flush(self) -> None:
        pass


def test_a_model_cannot_steer_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = _Seen()
    monkeypatch.setattr(sys, "stdout", seen)
    terminal.print_data("a\x1b]0;title\x07\tb\r\n\x9b2J\x7f", end="")
    assert seen.text == "a␛]0;title␇\tb␍\n\ufffd2J␡"


def test_notes_are_dim_only_where_colour_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = _Seen()
    monkeypatch.setattr(sys, "stderr", seen)
    terminal.note("figures", dim=True)
    monkeypatch.delenv("NO_COLOR")
    terminal.note("figures", dim=True)
    assert seen.text == "figures\n\x1b[2mfigures\x1b[0m\n"


def test_an_interrupt_ends_with_130(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tiny_model: str
) -> None:
    from cutaway.cli.session import session

    def interrupted(settings: object) -> object:
        raise KeyboardInterrupt

    monkeypatch.setattr(session, "open_llm", interrupted)
    assert run(["complete", "hi", "-m", tiny_model]) == 130
    assert "Traceback" not in capsys.readouterr().err


def test_a_fault_of_our_own_is_one_line_unless_it_is_debugged(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tiny_model: str
) -> None:
    from cutaway.cli.session import session

    def faulty(settings: object) -> object:
        raise AssertionError("pages add up")

    monkeypatch.setattr(session, "open_llm", faulty)
    assert run(["complete", "hi", "-m", tiny_model]) == 1
    assert capsys.readouterr().err.splitlines() == [
        "error: a fault of Cutaway itself: AssertionError: pages add up",
        "hint: CUTAWAY_DEBUG=1 shows where; a report with it is welcome.",
    ]
    monkeypatch.setenv("CUTAWAY_DEBUG", "1")
    assert run(["complete", "hi", "-m", tiny_model]) == 1
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize(
    "error",
    [MemoryError(), RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory")],
)
def test_memory_that_runs_out_has_a_hint(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tiny_model: str,
    error: Exception,
) -> None:
    from cutaway.cli.session import session

    def greedy(settings: object) -> object:
        raise error

    monkeypatch.setattr(session, "open_llm", greedy)
    assert run(["complete", "hi", "-m", tiny_model]) == 1
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("error: memory ran out")
    assert "--cache-tokens" in second
