"""Where lines come from: a terminal with editing, a terminal without, or a pipe."""

from __future__ import annotations

import os
import select
import signal
import sys
from collections.abc import Callable
from functools import partial

from cutaway.cli.repl.lines import ReadLine
from cutaway.cli.terminal.terminal import is_seen, note
from cutaway.core.errors import RequestError

PROMPT, CONTINUED = ">>> ", "... "


def line_reader() -> ReadLine:
    """The best reader for where stdin comes from."""
    if not is_seen(sys.stdin):
        return read_piped_line
    # The editor draws on stdout; where that is no terminal, answers alone go there.
    return (_editor() if is_seen(sys.stdout) else None) or partial(
        read_typed_line, wait=line_waiter()
    )


def read_piped_line(is_continued: bool) -> str | None:
    """The next line of stdin."""
    try:
        line = sys.stdin.readline()
    except UnicodeDecodeError as error:
        raise RequestError(
            f"a line of stdin is not UTF-8: {error.reason}.", param="stdin"
        ) from None
    return line.rstrip("\r\n") if line else None


def read_typed_line(is_continued: bool, *, wait: Callable[[], None] = lambda: None) -> str | None:
    """The next line of a terminal that edits by itself; `wait` returns when it was typed."""
    sys.stderr.write(CONTINUED if is_continued else PROMPT)
    sys.stderr.flush()
    try:
        wait()
        return input()
    except EOFError:
        note("")
        return None
    except KeyboardInterrupt:
        note("")
        raise


def line_waiter() -> Callable[[], None]:
    """Waits until a line was typed, so that input() need not.

    A Ctrl-C that comes after input() last looked for signals and before its read() begins is seen
    only at the next key. So the wait is on a pipe as well, to which every signal writes.
    """
    if sys.platform == "win32":
        return lambda: None  # there select knows sockets alone, and Ctrl-C ends a console's read
    woken, wakes = os.pipe()  # open for as long as the program
    os.set_blocking(wakes, False)
    signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)

    def wait() -> None:
        while sys.stdin not in select.select([sys.stdin, woken], [], [])[0]:
            os.read(woken, 1)  # the signal's handler has run, and did not raise

    return wait


def _editor() -> ReadLine | None:
    """Lines with history and editing, where prompt-toolkit is installed."""
    try:
        from prompt_toolkit import PromptSession
        from prompt_toolkit.history import InMemoryHistory
    except ImportError:
        return None
    session: PromptSession[str] = PromptSession(history=InMemoryHistory())

    def read_edited_line(is_continued: bool) -> str | None:
        try:
            return session.prompt(CONTINUED if is_continued else PROMPT)
        except EOFError:
            return None

    return read_edited_line
