"""Lines to messages."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterable

import pytest

from cutaway.cli.repl.line_source import line_reader, read_piped_line, read_typed_line
from cutaway.cli.repl.lines import ClearedError, ReadLine, read_messages
from cutaway.core.errors import RequestError


def reader(lines: Iterable[str | Exception]) -> ReadLine:
    waiting = iter(lines)

    def read_line(is_continued: bool) -> str | None:
        line = next(waiting, None)
        if isinstance(line, Exception):
            raise line
        return line

    return read_line


def messages(*lines: str | Exception) -> list[str]:
    return list(read_messages(reader(lines)))


def test_each_line_is_a_message_and_blank_ones_are_none() -> None:
    assert messages("one", "", "  ", " two ") == ["one", " two "]


def test_three_quotes_hold_many_lines() -> None:
    assert messages('"""one', "", 'two"""', "three") == ["one\n\ntwo", "three"]
    assert messages('"""', "one", '"""') == ["one"]
    assert messages('"""one"""') == ["one"]


def test_quotes_that_are_never_closed_end_with_the_input() -> None:
    assert messages('"""one', "two") == ["one\ntwo"]


def test_a_cleared_line_takes_its_message_along() -> None:
    assert messages('"""one', ClearedError(), "two", ClearedError(), "three") == ["two", "three"]


def test_only_lines_inside_quotes_are_continued() -> None:
    asked: list[bool] = []
    lines = iter(["one", '"""two', 'three"""'])

    def read_line(is_continued: bool) -> str | None:
        asked.append(is_continued)
        return next(lines, None)

    assert list(read_messages(read_line)) == ["one", "two\nthree"]
    assert asked == [False, False, True, False]


def stdin_holds(monkeypatch: pytest.MonkeyPatch, raw: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(raw), encoding="utf-8"))


def test_a_pipe_gives_lines_without_their_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    stdin_holds(monkeypatch, b"one\r\ntwo\n\nthree")
    assert line_reader() is read_piped_line
    assert list(read_messages(line_reader())) == ["one", "two", "three"]


def test_a_pipe_that_is_not_utf8_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    stdin_holds(monkeypatch, b"\xff\n")
    with pytest.raises(RequestError, match="a line of stdin is not UTF-8"):
        read_piped_line(False)


def test_a_typed_line_ends_with_a_line_end_whatever_ends_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted() -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr("builtins.input", interrupted)
    with pytest.raises(KeyboardInterrupt):
        read_typed_line(False)
    stdin_holds(monkeypatch, b"")
    monkeypatch.undo()
    stdin_holds(monkeypatch, b"typed\n")
    assert [read_typed_line(False), read_typed_line(True)] == ["typed", None]
    assert capsys.readouterr() == ("", ">>> \n>>> ... \n")
