"""Log lines of the server, for people or as JSON: ids, sizes, times and status, never content."""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Final, Literal

import msgspec

from cutaway.host.line_writer import MAX_LINES, Lines

Form = Literal["text", "json"]

LOGGER = logging.getLogger("cutaway.server")

_STDERR: Final = 2  # the descriptor, whatever sys.stderr is


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


def loop_fault(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """A fault that no request waits for. asyncio's own words would hold its message."""
    error = context.get("exception")
    if isinstance(error, BaseException):
        fault(error, request_id="none")
    else:
        event("fault", level=logging.ERROR, request_id="none", kind="asyncio", where=[])


def of_engine(told: str) -> None:
    """What befell the engine's process, in words of our own."""
    event("engine", level=logging.WARNING, told=told)


@contextmanager
def writing(form: Form) -> Generator[None]:
    """Send the server's lines to stderr in that form, for as long as the block lasts.

    A thread writes them: who reads stderr too slowly, or no more, holds up no request.
    """
    handler = _Writer(_Json() if form == "json" else _Text())
    loggers = [LOGGER, *map(logging.getLogger, ("uvicorn.error", "opentelemetry"))]
    before = [(logger, logger.handlers, logger.propagate, logger.level) for logger in loggers]
    for logger in loggers:
        logger.handlers = [handler]
        logger.propagate = False
        logger.setLevel(logging.INFO if logger is LOGGER else logging.ERROR)
    try:
        yield
    finally:
        for logger, handlers, propagate, level in before:
            logger.handlers, logger.propagate = handlers, propagate
            logger.setLevel(level)
        handler.close()


class _Writer(logging.Handler):
    """Hands lines to a thread that writes them to stderr."""

    def __init__(self, formatter: logging.Formatter) -> None:
        super().__init__()
        self.setFormatter(formatter)
        self._lines = Lines(_STDERR, self._dropped, most=MAX_LINES)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._lines.put(self.format(record))
        except Exception:  # of a record that cannot be told: no request ends for it
            self._lines.drop()

    def close(self) -> None:
        """Write what waits, as far as it is taken."""
        self._lines.close()
        super().close()

    def _dropped(self, num_lines: int) -> str:
        told = ("", 0, "lines dropped: stderr was read too slowly", (), None)
        fields = {"fields": {"lines": num_lines}}
        return self.format(LOGGER.makeRecord(LOGGER.name, logging.WARNING, *told, extra=fields))


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
