"""Answers and conversations of the Responses API in a SQLite file: by owner, for a time, bounded.

It knows no HTTP and no engine: what it keeps is JSON under an id and an owner's name.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Generator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Literal

import msgspec

from cutaway.core.errors import ConfigError
from cutaway.core.limits import quote

Kind = Literal["response", "conversation"]
Entry = dict[str, Any]

APPLICATION = 0x43757461  # "Cuta", so that no other program's file is written to
DAY = 24 * 3600.0
_TABLE = """
CREATE TABLE kept (
    owner TEXT NOT NULL, id TEXT NOT NULL, kind TEXT NOT NULL, used REAL NOT NULL,
    bytes INTEGER NOT NULL, entry BLOB NOT NULL, PRIMARY KEY (owner, id)
);
CREATE INDEX kept_used ON kept (used);
"""


class Kept:
    """What owners left here. Each method may be called from any thread.

    seconds:   how long an entry stays after it was last written.
    max_bytes: of all entries; where more would be, the owner that has most loses the oldest.
    now:       the clock, in seconds.
    Raises: ConfigError where the file cannot be opened, or is another program's.
    """

    def __init__(
        self,
        path: Path,
        *,
        seconds: float = 30 * DAY,
        max_bytes: int = 1 << 30,
        now: Any = time.time,
    ) -> None:
        self._seconds, self._max_bytes, self._now = seconds, max_bytes, now
        self._lock = threading.Lock()
        try:
            # Conversations are private: the file is made for its owner alone before it has any.
            os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
            self._database = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
            self._prepare(path)
        except (OSError, sqlite3.Error) as error:
            raise ConfigError(
                f"store is {quote(str(path))}, which cannot be used: {error}. Name a file that "
                "this server may write, in a folder that is there."
            ) from None

    def _prepare(self, path: Path) -> None:
        one = self._database.execute
        (mark,) = one("PRAGMA application_id").fetchone()
        (tables,) = one("SELECT count(*) FROM sqlite_master").fetchone()
        if mark != APPLICATION and (mark or tables):
            raise ConfigError(
                f"store is {quote(str(path))}, a database of another program. Name a new file, or "
                "one that Cutaway made."
            )
        one("PRAGMA journal_mode=WAL")
        one("PRAGMA synchronous=NORMAL")
        if not tables:
            self._database.executescript(_TABLE)
            one(f"PRAGMA application_id={APPLICATION}")

    def put(self, owner: str, entry_id: str, kind: Kind, entry: Entry) -> None:
        """Keep an entry, in place of one with its id. Raises: OSError."""
        data = msgspec.json.encode(entry)
        with self._writing() as one:
            self._write(one, owner, entry_id, kind, data)

    def get(self, owner: str, entry_id: str, kind: Kind) -> Entry | None:
        """An owner's entry; None for what is not there, is too old, or is another owner's."""
        with self._lock:
            row = self._database.execute(
                "SELECT entry FROM kept WHERE owner=? AND id=? AND kind=? AND used>?",
                (owner, entry_id, kind, self._oldest()),
            ).fetchone()
        return None if row is None else msgspec.json.decode(row[0])

    def remove(self, owner: str, entry_id: str, kind: Kind) -> bool:
        """Forget an entry; whether it was there. Raises: OSError."""
        with self._writing() as one:
            found = one.execute(
                "DELETE FROM kept WHERE owner=? AND id=? AND kind=? AND used>?",
                (owner, entry_id, kind, self._oldest()),
            )
            return found.rowcount > 0

    def append(self, owner: str, conversation: str, items: Sequence[Entry]) -> bool:
        """Put items at the end of a conversation; whether it is there. Raises: OSError."""
        with self._writing() as one:
            row = one.execute(
                "SELECT entry FROM kept WHERE owner=? AND id=? AND kind='conversation' AND used>?",
                (owner, conversation, self._oldest()),
            ).fetchone()
            if row is None:
                return False
            entry = msgspec.json.decode(row[0])
            entry["items"] += items
            data = msgspec.json.encode(entry)
            self._write(one, owner, conversation, "conversation", data)
        return True

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._database.close()

    def _oldest(self) -> float:
        return self._now() - self._seconds

    @contextmanager
    def _writing(self) -> Generator[sqlite3.Cursor]:
        """A transaction, whole or not at all; a full disk is an OSError as for other files."""
        try:
            with self._lock, closing(self._database.cursor()) as one:
                one.execute("BEGIN IMMEDIATE")
                try:
                    yield one
                    one.execute("COMMIT")
                except BaseException:
                    one.execute("ROLLBACK")
                    raise
        except sqlite3.Error as error:
            raise OSError(str(error)) from None

    def _write(
        self, one: sqlite3.Cursor, owner: str, entry_id: str, kind: Kind, data: bytes
    ) -> None:
        if len(data) > self._max_bytes:
            raise OSError(
                f"an entry of {len(data):,} bytes, and at most {self._max_bytes:,} are kept"
            )
        one.execute("DELETE FROM kept WHERE used<=?", (self._oldest(),))
        one.execute("DELETE FROM kept WHERE owner=? AND id=?", (owner, entry_id))
        while self._bytes(one) + len(data) > self._max_bytes:
            one.execute(
                "DELETE FROM kept WHERE rowid=(SELECT rowid FROM kept WHERE owner=(SELECT owner "
                "FROM kept GROUP BY owner ORDER BY sum(bytes) DESC LIMIT 1) ORDER BY used LIMIT 1)"
            )
        one.execute(
            "INSERT INTO kept VALUES (?,?,?,?,?,?)",
            (owner, entry_id, kind, self._now(), len(data), data),
        )

    @staticmethod
    def _bytes(one: sqlite3.Cursor) -> int:
        return one.execute("SELECT coalesce(sum(bytes), 0) FROM kept").fetchone()[0]
