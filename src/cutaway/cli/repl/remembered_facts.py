"""Facts that the user asked to be remembered, in a local SQLite file; off unless asked for.

The model does not learn them: they are written into the system message.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Generator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from cutaway.core.errors import RequestError
from cutaway.host.whole_file import PRIVATE

MAX_CHARACTERS = 500  # of one fact: all of them stand in every prompt
_TABLE = """create table if not exists facts (
    number integer primary key autoincrement, text text not null
)"""
HEADING = "Facts that the user asked to be remembered:"


@dataclass(frozen=True)
class Fact:
    """One fact and the number by which it can be forgotten."""

    number: int
    text: str


class Memory:
    """The facts of one file, which is made when the first is added.

    Raises, from every method: RequestError when the file cannot be used.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(self, text: str) -> Fact:
        """Store a fact. Raises: RequestError when it is empty or too long."""
        text = " ".join(text.split())
        if not 1 <= len(text) <= MAX_CHARACTERS:
            raise RequestError(
                f"a fact has {len(text)} characters; it must have 1 to {MAX_CHARACTERS}.",
                param="memory",
            )
        with self._open() as database:
            cursor = database.execute("insert into facts (text) values (?)", (text,))
            assert cursor.lastrowid is not None, "an insert gives the row its number"
            return Fact(cursor.lastrowid, text)

    def facts(self) -> list[Fact]:
        """All facts, oldest first."""
        if not self.path.exists():
            return []
        with self._open() as database:
            rows = database.execute("select number, text from facts order by number")
            return [Fact(number, text) for number, text in rows]

    def forget(self, number: int | None = None) -> int:
        """Remove one fact, or all; returns how many there were."""
        if not self.path.exists():
            return 0
        with self._open() as database:
            if number is None:
                return database.execute("delete from facts").rowcount
            return database.execute("delete from facts where number = ?", (number,)).rowcount

    @contextmanager
    def _open(self) -> Generator[sqlite3.Connection]:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.touch(PRIVATE)  # before SQLite makes it for all to read; it stays as it is
            with closing(sqlite3.connect(self.path)) as database, database:
                # What is forgotten leaves the file too.
                database.execute("pragma secure_delete = on")
                database.execute(_TABLE)
                yield database
        except (sqlite3.Error, OSError) as error:
            raise RequestError(
                f"{self.path} cannot be used as memory: {error}.", param="memory"
            ) from None


def memory_file() -> Path:
    """Where the user's facts lie."""
    import platformdirs

    return platformdirs.user_data_path("cutaway", appauthor=False) / "memory.sqlite3"
