"""Which file of the model cache was found to be what was published, so that loads need not read it.

Remembered beside the model's folder: the checksum, and the file's size and time of change when it
was compared. A file that was written since is compared anew. What rots on the disk changes neither:
`cutaway models verify` reads the whole file whatever is remembered.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from pathlib import Path

from cutaway.core.errors import DownloadError
from cutaway.host.whole_file import write_whole


def digest_of(path: Path) -> str:
    """The sha256 of a file. Raises: OSError."""
    with path.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def compare(path: Path, sha256: str) -> str:
    """The checksum of a model's file, by reading it whole; if it is right that is remembered.

    Raises: DownloadError when it cannot be read.
    """
    try:
        stamp = _stamp(path)  # before: whoever writes meanwhile changes it
        digest = digest_of(path)
    except OSError as error:
        raise DownloadError(f"{path} cannot be read: {error.strerror}.") from error
    if digest == sha256:
        _write(path, f"{sha256} {stamp}\n")
    return digest


def is_remembered(path: Path, sha256: str) -> bool:
    """Whether the file had that checksum and was not written since."""
    try:
        return record_of(path).read_text("ascii") == f"{sha256} {_stamp(path)}\n"
    except (OSError, ValueError):
        return False


def remember(path: Path, sha256: str) -> None:
    """Note that the file has that checksum, for which it was compared a moment ago."""
    _write(path, f"{sha256} {_stamp(path)}\n")


def record_of(path: Path) -> Path:
    """Where it stands of a file in a folder of its own."""
    return path.parent.with_name(f"{path.parent.name}.checked")


def _write(path: Path, line: str) -> None:
    with suppress(OSError):  # a cache that may only be read is compared at each load
        write_whole(record_of(path), line)


def _stamp(path: Path) -> str:
    status = path.stat()
    return f"{status.st_size} {status.st_mtime_ns}"
