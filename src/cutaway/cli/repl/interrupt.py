"""What Ctrl-C does in a session: at the prompt it clears the line, in an answer it stops it.

An answer is stopped between steps, so that no step is torn. Between prompt and answer Ctrl-C does
nothing: whoever wanted to stop an answer that had ended would lose the conversation.
"""

from __future__ import annotations

import signal
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Literal

from cutaway.cli.repl.lines import ClearedError, ReadLine


class Interrupts:
    """Owns Ctrl-C while its context is open."""

    def __init__(self) -> None:
        self._doing: Literal["reading", "answering", "neither"] = "neither"
        self._is_pressed = False

    def __enter__(self) -> Interrupts:
        self._before = signal.signal(signal.SIGINT, self._press)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        signal.signal(signal.SIGINT, self._before)

    def is_pressed(self) -> bool:
        """Whether the answer is to stop."""
        return self._is_pressed

    @contextmanager
    def answering(self) -> Generator[None]:
        """In here Ctrl-C is noted; a second one ends the program."""
        self._doing, self._is_pressed = "answering", False
        try:
            yield
        finally:
            self._doing = "neither"

    def clearing(self, read_line: ReadLine) -> ReadLine:
        """The same reader; Ctrl-C gives the line up."""

        def read(is_continued: bool) -> str | None:
            try:
                self._doing = "reading"
                line = read_line(is_continued)
                self._doing = "neither"
            except KeyboardInterrupt:
                raise ClearedError from None
            return line

        return read

    def _press(self, number: int, frame: FrameType | None) -> None:
        if self._doing == "reading":
            self._doing = "neither"
            raise KeyboardInterrupt
        if self._doing == "answering" and self._is_pressed:
            raise KeyboardInterrupt
        self._is_pressed = True
