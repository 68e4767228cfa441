"""Log lines of the server, for people or as JSON: ids, sizes, times and status, never content."""

from __future__ import annotations

import logging
import os
import queue
import threading
import traceback
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Final, Literal

import msgspec

Form = Literal["text", "json"]

LOGGER = logging.getLogger("cutaway.server")

MAX_LINES: Final = 10_000  # that wait for a reader of stderr, 2 MB of the usual ones
CLOSE_SECONDS: Final = 1.0  # at the end, for lines that wait
_STDERR: Final = 2


def event(name: str, *, level: int = logging.INFO, **fields: object) -> None:
    """One line: what happened, and its fields."""
    LOGGER.log(level, name, extra={"fields": fields})


def fault(error: BaseException, *, request_id: str) -> None:
    """A fault of our own: its kind and where it came up.

    Not its message, and no values: both may hold what a user wrote.
    """
    frames = traceback.extract_tb(error.__traceback__)
    where = [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames]
    event(
        "fault",
        level=logging.ERROR,
        request_id=request_id,
        kind=type(error).__name__,
        where=where,
    )


@contextmanager
def writing(form: Form) -> Generator[None]:
    """Send the server's lines to stderr in that form, for as long as the block lasts.

    A thread writes them: who reads stderr too slowly, or no more, holds up no request. Of more than
    MAX_LINES that wait the rest is dropped, and a line says how many.
    """
    handler = _Writer(_Json() if form == "json" else _Text())
    loggers = [LOGGER, *map(logging.getLogger, ("uvicorn.error", "opentelemetry"))]
    before = [(logger.handlers, logger.propagate) for logger in loggers]
    for logger in loggers:
        logger.handlers = [handler]
        logger.propagate = False
        logger.setLevel(logging.INFO if logger is LOGGER else logging.ERROR)
    try:
        yield
    finally:
        for logger, (handlers, propagate) in zip(loggers, before, strict=True):
            logger.handlers, logger.propagate = handlers, propagate
        handler.close()


class _Writer(logging.Handler):
    """Hands lines to a thread that writes them to stderr."""

    def __init__(self, formatter: logging.Formatter) -> None:
        super().__init__()
        self.setFormatter(formatter)
        self._lines: queue.Queue[str | None] = queue.Queue(MAX_LINES)
        self._dropped = 0
        # Not waited for at exit: it may stand in a write that never ends.
        self._thread = threading.Thread(target=self._write_all, name="cutaway-log", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._lines.put_nowait(self.format(record))
        except queue.Full:
            self._dropped += 1  # handle() holds the lock

    def close(self) -> None:
        """Write what waits, in CLOSE_SECONDS at most."""
        try:
            self._lines.put(None, timeout=CLOSE_SECONDS)
        except queue.Full:
            pass
        else:
            self._thread.join(CLOSE_SECONDS)
        super().close()

    def _write_all(self) -> None:
        while (line := self._lines.get()) is not None:
            _write(line)
            self.acquire()
            dropped, self._dropped = self._dropped, 0
            self.release()
            if dropped:
                fields = {"fields": {"lines": dropped}}
                told = ("", 0, "lines dropped: stderr was read too slowly", (), None)
                record = LOGGER.makeRecord(LOGGER.name, logging.WARNING, *told, extra=fields)
                _write(self.format(record))


def _write(line: str) -> None:
    # By the descriptor: a thread that stands in a write of sys.stderr would hold its lock, without
    # which Python cannot end.
    left = f"{line}\n".encode(errors="backslashreplace")
    try:
        while left:
            left = left[os.write(_STDERR, left) :]
    except OSError:
        pass  # nobody reads stderr any more; the server goes on


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            **_fields(record),
        }
        return msgspec.json.encode(line, enc_hook=repr).decode()


class _Text(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields = "".join(f" {name}={value}" for name, value in _fields(record).items())
        return f"{_time(record)} {record.getMessage()}{fields}"


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")


def _fields(record: logging.LogRecord) -> Mapping[str, object]:
    return getattr(record, "fields", {})
