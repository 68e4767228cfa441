"""Lines that a thread writes: whole and in order, however slowly somebody reads them."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

import pytest

from cutaway.host.line_writer import Lines, LineStream

PI = "\N{GREEK SMALL LETTER PI}"  # two bytes
PAGE = 4096  # bytes; the least that a pipe can hold


@contextmanager
def small_pipe(*, is_blocking: bool = True) -> Iterator[tuple[IO[str], int]]:
    """A pipe with room for a page: its reader, and where to write."""
    out, into = os.pipe()
    fcntl.fcntl(into, fcntl.F_SETPIPE_SZ, PAGE)
    os.set_blocking(into, is_blocking)
    with os.fdopen(out) as read:
        try:
            yield read, into
        finally:
            os.close(into)


def told(num_lines: int) -> str:
    return f"{num_lines} dropped"


def test_what_is_beyond_the_bound_is_dropped_and_counted() -> None:
    with small_pipe() as (read, into):
        lines = Lines(into, told, most=5)
        for number in range(300):
            lines.put(f"{number} {'x' * 100}")
        said = list[str]()
        while len(said) < 300 - sum(int(line.split()[0]) - 1 for line in said if "dropped" in line):
            said.append(read.readline())
        lines.put("end")
        assert read.readline() == "end\n"
        lines.close()
    written = [int(line.split()[0]) for line in said if "x" in line]
    assert written == sorted(set(written)) and len(written) < 100


@pytest.mark.parametrize("is_blocking", [True, False])
def test_a_line_is_never_torn(is_blocking: bool) -> None:
    with small_pipe(is_blocking=is_blocking) as (read, into):
        lines = Lines(into, told, most=1000)
        sent = [f"{number:04} {PI * 3000}" for number in range(50)]
        for line in sent:
            lines.put(line)
        assert [read.readline().rstrip("\n") for _ in sent] == sent
        lines.close()


def test_who_does_not_read_holds_up_no_end() -> None:
    with small_pipe() as (read, into):
        lines = Lines(into, told, most=2)
        for _ in range(5):
            lines.put("x" * PAGE)
        lines.close()
        assert read.readline() == "x" * PAGE + "\n"
        lines._thread.join(60)
        assert not lines._thread.is_alive()


def test_a_stream_hands_on_whole_lines_from_any_pieces() -> None:
    with small_pipe() as (read, into):
        lines = Lines(into, told, most=10)
        stream = LineStream(lines, into)
        print("one", 2, file=stream)
        for piece in ("th", "ree\nfour", "\n", "\ud800\n"):
            stream.write(piece)
        lines.close()
        assert [read.readline() for _ in range(4)] == ["one 2\n", "three\n", "four\n", "\\ud800\n"]
        assert stream.fileno() == into and not stream.isatty()
