"""Log lines of the server, for people or as JSON: ids, sizes, times and status, never content."""

from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Literal

import msgspec

Form = Literal["text", "json"]

LOGGER = logging.getLogger("cutaway.server")


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


def set_up(form: Form) -> None:
    """Send the server's lines to stderr in that form."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Json() if form == "json" else _Text())
    others = [logging.getLogger(name) for name in ("uvicorn.error", "opentelemetry")]
    for logger in (LOGGER, *others):
        logger.handlers = [handler]
        logger.propagate = False
        logger.setLevel(logging.INFO if logger is LOGGER else logging.ERROR)


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
