"""What a run of training wrote down: a line of JSON per update, which any reader can follow."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from cutaway.core.errors import ConfigError
from cutaway.host.whole_file import name_errors, write_whole

FILE = "record.jsonl"
EXAMPLE = "example.json"  # beside it: of what the run learns from
_MOST_BYTES = 1 << 20  # read of a record at once: about a thousand updates


class Record:
    """A run's record, appended to line by line.

    folder: of the run.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE

    def begin(self, first: int) -> None:
        """Keep the updates before first: those after it come again, with the same numbers."""
        kept = [row for row in read_record(self.path) if row["update"] < first]
        write_whole(self.path, "".join(_line(row) for row in kept))

    def add(self, row: Mapping[str, object]) -> None:
        """One more line, whole in the file when this returns.

        Raises: OSError naming the file, in which nothing of the line is then.
        """
        # Without a buffer, whose rest would be tried again when the file is closed.
        with name_errors(self.path), self.path.open("ab", buffering=0) as opened:
            start, rest = opened.tell(), _line(row).encode()
            try:
                while rest:
                    rest = rest[opened.write(rest) :]
            except OSError:
                with suppress(OSError):
                    os.ftruncate(opened.fileno(), start)
                raise


@dataclass(frozen=True)
class RecordPart:
    """Some rows of a record. start, end: bytes of the file that they take. size: of the file."""

    rows: list[dict[str, Any]]
    start: int
    end: int
    size: int


def read_example(folder: Path) -> list[list[tuple[str, bool]]]:
    """Of what a run learns from: sequences of tokens' texts and whether they are scored.

    Empty where nothing was written down, or nothing that is such an example. Raises: OSError.
    """
    with suppress(FileNotFoundError, ValueError, TypeError, RecursionError):
        told: Any = json.loads((folder / EXAMPLE).read_bytes())
        return [[(str(text), bool(is_scored)) for text, is_scored in sequence] for sequence in told]
    return []


def read_record(path: Path) -> list[dict[str, Any]]:
    """The rows of a record, in order; none where there is no file, nor of a line that was torn.

    Raises: ConfigError naming a line that is none of a record.
    """
    rows: list[dict[str, Any]] = []
    part = RecordPart([], 0, 0, 0)
    while path.is_file():
        part = read_part(path, part.end, num_before=len(rows))
        if not part.rows:
            break
        rows += part.rows
    return rows


def read_part(path: Path, start: int, *, num_before: int | None = None) -> RecordPart:
    """The rows from a byte on, a megabyte of them at most; all anew where no line begins there.

    num_before: rows ahead, where they are known, for the numbers of lines in errors.
    Raises: ConfigError naming a line that is none of a record; OSError.
    """
    with path.open("rb") as opened:
        size = opened.seek(0, 2)
        if not _begins_line(opened, start, size):
            start = 0
        opened.seek(start)
        data = opened.read(_MOST_BYTES)
        if b"\n" not in data and len(data) == _MOST_BYTES:
            data += opened.readline()
    whole = data[: data.rfind(b"\n") + 1]
    if num_before is None:
        num_before = 0 if start == 0 else None
    behind = "" if num_before is not None else f" behind byte {start:,}"
    rows = [
        _row(line, f"{path}, line {number}{behind}")
        for number, line in enumerate(whole.split(b"\n")[:-1], start=(num_before or 0) + 1)
    ]
    return RecordPart(rows, start, start + len(whole), size)


def read_last(path: Path) -> dict[str, Any] | None:
    """The newest row that is whole; None where there is none.

    Raises: ConfigError; OSError.
    """
    with path.open("rb") as opened:
        size = opened.seek(0, 2)
        back = min(size, _MOST_BYTES)
        while True:
            opened.seek(size - back)
            lines = opened.read(back).split(b"\n")[:-1]
            if len(lines) > 1 or back == size:  # else the last one may begin ahead of what was read
                break
            back = min(size, 4 * back)
    return _row(lines[-1], f"{path}, its last line") if lines else None


def _begins_line(opened: Any, start: int, size: int) -> bool:
    if not 0 < start <= size:
        return start == 0
    opened.seek(start - 1)
    return opened.read(1) == b"\n"


def _row(line: bytes, where: str) -> dict[str, Any]:
    try:
        row: object = json.loads(line)
    except (ValueError, RecursionError):
        row = None
    if not isinstance(row, dict) or not isinstance(row.get("update"), int):  # type: ignore[union-attr]
        raise ConfigError(f"{where} is no update of a run.")
    return cast("dict[str, Any]", row)


def _line(row: Mapping[str, object]) -> str:
    return json.dumps(row, ensure_ascii=False) + "\n"
