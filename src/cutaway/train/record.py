"""What a run wrote down: one line of JSON per update, which any reader of lines can follow live."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from cutaway.core.errors import ConfigError
from cutaway.host.whole_file import write_whole

FILE = "record.jsonl"


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
        """One more line, whole in the file when this returns."""
        with self.path.open("a", encoding="utf-8") as opened:
            opened.write(_line(row))


def read_record(path: Path) -> list[dict[str, Any]]:
    """The rows of a record, in order; none where there is no file, nor of a line that was torn.

    Raises: ConfigError naming a line that is none of a record.
    """
    if not path.is_file():
        return []
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(path.read_bytes().split(b"\n")[:-1], start=1):
        try:
            row: object = json.loads(line)
        except (ValueError, RecursionError):
            row = None
        if not isinstance(row, dict) or not isinstance(row.get("update"), int):  # type: ignore[union-attr]
            raise ConfigError(f"{path}, line {number} is no update of a run.")
        rows.append(cast("dict[str, Any]", row))
    return rows


def _line(row: Mapping[str, object]) -> str:
    return json.dumps(row, ensure_ascii=False) + "\n"
