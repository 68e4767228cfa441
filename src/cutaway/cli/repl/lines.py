"""Lines to messages: three quotes open and close a message of many lines."""

from __future__ import annotations

from collections.abc import Callable, Iterator

QUOTES = '"""'

# Gives the next line without its end, or None at the end of input. Told whether the line goes on
# with a message that was begun.
ReadLine = Callable[[bool], str | None]


class ClearedError(Exception):
    """The user gave up the line, and the message that it belongs to."""


def read_messages(read_line: ReadLine) -> Iterator[str]:
    """Messages and commands until the input ends; blank ones are left out."""
    while True:
        try:
            message = _read_message(read_line)
        except ClearedError:
            continue
        if message is None:
            return
        if message.strip():
            yield message


def _read_message(read_line: ReadLine) -> str | None:
    line = read_line(False)
    if line is None or not line.lstrip().startswith(QUOTES):
        return line
    lines = [line.lstrip().removeprefix(QUOTES)]
    while not lines[-1].rstrip().endswith(QUOTES):
        following = read_line(True)
        if following is None:
            break  # the input ended inside the quotes: what came is the message
        lines.append(following)
    return "\n".join(lines).rstrip().removesuffix(QUOTES).strip("\n")
