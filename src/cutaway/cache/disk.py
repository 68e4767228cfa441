"""Pages of prompts in files, which are found again after a restart. Free of torch.

A file per page, named by its key, for its owner alone (0600 in a folder of 0700), written whole or
not at all by a thread of its own. A file says what model and layout it is of, and ends with a
checksum that only who has the folder's secret can make: what fits neither is dropped and computed
again. The least recently used go when there are too many bytes.
"""

from __future__ import annotations

import atexit
import hashlib
import hmac
import os
import secrets
import stat
import threading
import time
import weakref
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from queue import Full, Queue
from typing import Final

import numpy as np

from cutaway.cache.stores import Content, StoreStats
from cutaway.core.errors import ConfigError
from cutaway.host.faults import note
from cutaway.host.whole_file import whole_file

SECRET_BYTES: Final = 32
_FORM: Final = b"cutaway pages 1\n"
_MAC_BYTES: Final = 32
_ENDING: Final = ".page"
_MOST_BEHIND: Final = 256  # pages that wait to be written; more are skipped
_LOOK_EVERY: Final = 64  # written pages, after which the folder is counted again
_CLOSE_SECONDS: Final = 5.0
_HALF_SECONDS: Final = 3600.0  # after which nobody writes a page any more


def open_folder(folder: Path) -> bytes:
    """Make a folder of pages, if it is not there, and give its secret.

    Raises: ConfigError where others could write to it, or it cannot be made.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.stat()
        if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
            raise ConfigError(
                f"disk_cache is {folder}, which others than you may read or write; pages hold what "
                "people asked. Take another folder, or chmod 700 it."
            )
        return _secret_of(folder / "secret")
    except OSError as error:
        raise ConfigError(
            f"disk_cache is {folder}, which cannot be used: {error.strerror or error}."
        ) from None


def page_secret_of(secret: bytes) -> bytes:
    """Of which keys of pages are made: the same in all engines of a folder, at each start."""
    return hmac.digest(secret, b"keys of pages", "sha256")


def salt_secret_of(secret: bytes) -> bytes:
    """Of which owners' salts are made, so that they too find their pages after a restart."""
    return hmac.digest(secret, b"salts of owners", "sha256")


def _secret_of(path: Path) -> bytes:
    """What is in a file; drawn where there is none. Two that start at once agree."""
    if not path.exists():
        drawn = path.with_name(f".{secrets.token_hex(8)}.part")
        with whole_file(drawn, is_private=True) as new:
            new.write(secrets.token_bytes(SECRET_BYTES))
        with suppress(FileExistsError):
            os.link(drawn, path)
        drawn.unlink()
    secret = path.read_bytes()
    if len(secret) != SECRET_BYTES:
        raise ConfigError(f"{path} is no secret of a folder of pages; remove it.")
    return secret


class DiskPages:
    """Pages of one model in a folder that engines of one machine may share.

    form:       what must agree before a page fits: weights, dtypes, layout.
    page_bytes: of a page of each group.   most_bytes: of all files of the folder.
    """

    takes_evicted = False

    def __init__(
        self,
        folder: Path,
        page_bytes: Sequence[int],
        *,
        secret: bytes,
        form: bytes,
        most_bytes: int,
    ) -> None:
        self._folder, self._page_bytes = folder, tuple(page_bytes)
        self._mac_key = hmac.digest(secret, b"pages", "sha256")
        self._form = hashlib.sha256(form).digest()
        self._most_bytes = most_bytes
        self._sizes = _sizes_of(folder)
        _remove_halves(folder)
        self._waiting: set[str] = set()
        self._queue: Queue[tuple[str, Content] | None] = Queue(_MOST_BEHIND)
        self._written = self._found = self._spoilt = self._skipped = 0
        self._is_open = True
        self._writer = threading.Thread(target=self._write_all, name="cutaway-pages", daemon=True)
        self._writer.start()
        _close_at_exit(self)

    @property
    def stats(self) -> StoreStats:
        """The counts of this moment; bytes and pages of all models in the folder."""
        return StoreStats(
            kind="disk",
            is_shared=True,
            num_bytes=self._num_bytes,
            most_bytes=self._most_bytes,
            pages=len(self._sizes),
            written=self._written,
            found=self._found,
            spoilt=self._spoilt,
            skipped=self._skipped,
        )

    def has(self, group: int, key: bytes) -> bool:
        """Whether there is a file of a page's name."""
        name = self._name(group, key)
        return name in self._sizes or (self._folder / name).exists()

    def find(self, group: int, key: bytes) -> Content | None:
        """A page's content, where its file is what was written of this model. It waits for nobody.

        Raises: nothing; a file that cannot be read is not there.
        """
        name = self._name(group, key)
        try:
            body = _read(self._folder / name, self._file_bytes(group))
        except FileNotFoundError:
            self._sizes.pop(name, None)
            return None
        except OSError:
            body = None
        if body is None or not self._is_whole(name, body):
            self._spoilt += 1
            self._remove(name)
            return None
        self._found += 1
        with suppress(OSError):
            os.utime(self._folder / name)  # used now
        return np.frombuffer(body, np.uint8)[self._head_bytes : -_MAC_BYTES]

    def put(self, group: int, key: bytes, content: Content) -> None:
        """Have a page written; not where it is there, or the writer is behind."""
        name = self._name(group, key)
        if not self._is_open or name in self._sizes or name in self._waiting:
            return
        self._waiting.add(name)
        try:
            self._queue.put_nowait((name, content))
        except Full:
            self._waiting.discard(name)
            self._skipped += 1

    def drop(self, group: int, key: bytes) -> None:
        """Forget a page; it may be unknown."""
        self._remove(self._name(group, key))

    def close(self, seconds: float) -> None:
        """Write what was put, and take no more; wait for so long at most."""
        if not self._is_open:
            return
        self._is_open = False
        end = time.monotonic() + seconds
        with suppress(Full):
            self._queue.put(None, timeout=seconds)
        self._writer.join(max(0.0, end - time.monotonic()))

    @property
    def _num_bytes(self) -> int:
        return sum(list(self._sizes.values()))  # a copy: the other thread may change it

    @property
    def _head_bytes(self) -> int:
        return len(_FORM) + len(self._form)

    def _file_bytes(self, group: int) -> int:
        return self._head_bytes + self._page_bytes[group] + _MAC_BYTES

    def _name(self, group: int, key: bytes) -> str:
        return f"{self._form.hex()[:16]}-{key.hex()}-{group}{_ENDING}"

    def _is_whole(self, name: str, body: bytes) -> bool:
        head = _FORM + self._form
        return body.startswith(head) and hmac.compare_digest(
            body[-_MAC_BYTES:], self._mac(name, memoryview(body)[:-_MAC_BYTES])
        )

    def _mac(self, name: str, body: bytes | memoryview) -> bytes:
        made = hashlib.blake2b(name.encode(), key=self._mac_key, digest_size=_MAC_BYTES)
        made.update(body)
        return made.digest()

    def _write_all(self) -> None:
        num_until_look, has_failed = _LOOK_EVERY, False
        while (asked := self._queue.get()) is not None:
            name, content = asked
            try:
                self._write(name, content)
            except OSError as fault:
                self._skipped += 1
                if not has_failed:
                    note("a page cannot be written to disk_cache; it is not kept there.", fault)
                has_failed = True
            self._waiting.discard(name)
            num_until_look -= 1
            if not num_until_look or self._num_bytes > self._most_bytes:
                self._make_room()
                num_until_look = _LOOK_EVERY

    def _write(self, name: str, content: Content) -> None:
        body = b"".join((_FORM, self._form, content.tobytes()))
        with whole_file(self._folder / name, is_private=True) as new:
            new.write(body)
            new.write(self._mac(name, body))
        self._sizes[name] = len(body) + _MAC_BYTES
        self._written += 1

    def _make_room(self) -> None:
        """Remove what was used longest ago, whoever wrote it, until a tenth is free."""
        found = _entries(self._folder)
        num_bytes = sum(size for _, _, size in found)
        if num_bytes > self._most_bytes:
            for _, name, size in sorted(found):
                if num_bytes <= self._most_bytes * 9 // 10:
                    break
                self._remove(name)
                num_bytes -= size
        self._sizes = _sizes_of(self._folder)

    def _remove(self, name: str) -> None:
        self._sizes.pop(name, None)
        with suppress(OSError):
            (self._folder / name).unlink()


def _read(path: Path, size: int) -> bytes | None:
    """A plain file of a size, or None: nothing else is opened for reading, as a pipe would wait."""
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0)
    descriptor = os.open(path, flags)
    with os.fdopen(descriptor, "rb") as opened:
        found = os.fstat(opened.fileno())
        if not stat.S_ISREG(found.st_mode) or found.st_size != size:
            return None
        body = opened.read(size + 1)
    return body if len(body) == size else None


def _entries(folder: Path) -> list[tuple[float, str, int]]:
    """When each page was used last, its name and its bytes."""
    found: list[tuple[float, str, int]] = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(_ENDING):
                with suppress(OSError):  # another engine may have removed it
                    status = entry.stat(follow_symlinks=False)
                    found.append((status.st_mtime, entry.name, status.st_size))
    return found


def _sizes_of(folder: Path) -> dict[str, int]:
    return {name: size for _, name, size in _entries(folder)}


def _remove_halves(folder: Path) -> None:
    """What writers left that were killed, unless it may still be written."""
    for half in folder.glob("*.part"):
        with suppress(OSError):
            if time.time() - half.stat().st_mtime > _HALF_SECONDS:
                half.unlink()


def _close_at_exit(pages: DiskPages) -> None:
    """A program that ends leaves what it was asked to keep."""
    known = weakref.ref(pages)

    def close() -> None:
        left = known()
        if left is not None:
            left.close(_CLOSE_SECONDS)

    atexit.register(close)
