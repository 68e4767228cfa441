"""Text that a command is given: as an argument, or from stdin for `-` and for nothing."""

from __future__ import annotations

import sys

from cutaway.cli.terminal.terminal import is_seen, note
from cutaway.core.errors import RequestError
from cutaway.core.limits import quote


def text_of(argument: str | None, *, param: str) -> str:
    """The argument, or all of stdin.

    Raises: RequestError when what was given is not UTF-8.
    """
    if argument is None or argument == "-":
        return stdin_text(param=param)
    _check_unicode(argument, param)
    return argument


def stdin_text(*, param: str) -> str:
    """All of stdin, which must be UTF-8; line ends stay as they are."""
    if is_seen(sys.stdin):
        note(f"reading the {param} from the terminal; Ctrl-D ends it", dim=True)
    try:
        return sys.stdin.buffer.read().decode()
    except UnicodeDecodeError as error:
        raise RequestError(
            f"{param} from stdin is not UTF-8: byte {error.object[error.start]:#04x} at "
            f"{error.start}. Convert it first, for instance with iconv.",
            param=param,
        ) from None


def _check_unicode(text: str, param: str) -> None:
    # Python keeps bytes of an argument that are not UTF-8 as lone surrogates.
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RequestError(
            f"{param} holds {quote(text[error.start])} at {error.start}, which is no Unicode "
            "character; it must be UTF-8.",
            param=param,
        ) from None


def without_line_end(text: str) -> str:
    """A prompt from stdin without its last line end: echo adds one that nobody means."""
    return text.removesuffix("\n").removesuffix("\r")
