"""Files and folders that appear whole or not at all: whatever Cutaway writes goes through here.

Written under a temporary name in the same folder, flushed to the disk, and renamed. When the disk
fails or is full, what was there before is whole and nothing is left behind; only a process that is
killed, or a disk that refuses to remove a name too, leaves a name that ends in `.part`.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import stat
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

PRIVATE = 0o600  # of what holds texts of people: prompts, answers, conversations
_ENDING = ".part"
_NO_FOLDER_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.EBADF)  # some file systems of networks


@contextmanager
def whole_file(
    path: Path, *, is_private: bool = False, is_new: bool = False
) -> Generator[BinaryIO]:
    """A file to write that takes its name when the block ends, and never if it raises.

    What stands there already keeps its mode, or takes 0600 if is_private; a link still leads where
    it led. What is no plain file, as /dev/stdout, is written as it is.

    is_new: nothing may stand there yet.
    Raises: OSError, which names path.
    """
    target = Path(os.path.realpath(path))
    with name_errors(path):
        before = _status(target)
        if before is not None and stat.S_ISDIR(before.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if before is not None and is_new:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
    if before is not None and not stat.S_ISREG(before.st_mode):
        with name_errors(path), target.open("wb") as opened:
            yield opened
        return
    with name_errors(path):
        if before is not None and not os.access(target, os.W_OK):
            os.close(os.open(target, os.O_WRONLY))  # says why: the file's mode, or the disk's
        half = target.with_name(_temporary(target.name))
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
        descriptor = os.open(half, flags, PRIVATE if is_private else 0o666)
        try:
            with os.fdopen(descriptor, "wb") as opened:
                yield opened
                opened.flush()
                os.fsync(opened.fileno())
            if before is not None and not is_private:
                os.chmod(half, stat.S_IMODE(before.st_mode))
            os.replace(half, target)
        except BaseException:
            with suppress(OSError):
                os.unlink(half)
            raise
        sync_folder(target.parent)


def write_whole(path: Path, data: bytes | str, *, is_private: bool = False) -> None:
    """Write a file in one go, text as UTF-8. Raises: OSError, which names path."""
    with whole_file(path, is_private=is_private) as opened:
        opened.write(data.encode("utf-8") if isinstance(data, str) else data)


@contextmanager
def whole_folder(path: Path) -> Generator[Path]:
    """A new folder to fill that takes its name when the block ends, and never if it raises.

    Raises: OSError, which names path; FileExistsError when there is something of that name.
    """
    with name_errors(path):
        if path.exists():
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
        path.parent.mkdir(parents=True, exist_ok=True)
        half = path.with_name(_temporary(path.name))
        half.mkdir()
        try:
            yield half
            for parent, _, names in os.walk(half):
                for name in names:
                    _sync(Path(parent, name))
                sync_folder(Path(parent))
            os.rename(half, path)
        except BaseException:
            shutil.rmtree(half, ignore_errors=True)
            raise
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder last through a power cut, where its file system can."""
    if os.name == "nt":
        return  # there a folder cannot be opened
    try:
        _sync(folder)
    except OSError as error:
        if error.errno not in _NO_FOLDER_SYNC:
            raise


def remove_stale(folder: Path) -> None:
    """Remove what a killed process left in a folder that nobody else writes to now."""
    for stale in folder.glob(f".*{_ENDING}"):
        with suppress(OSError):
            stale.unlink()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _temporary(name: str) -> str:
    """Hidden, of its own, and short enough where the name itself is as long as may be."""
    short = name.encode()[:200].decode(errors="ignore")
    return f".{short}.{secrets.token_hex(4)}{_ENDING}"


def _status(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except FileNotFoundError:
        return None


@contextmanager
def name_errors(path: Path) -> Generator[None]:
    """Let errors of the disk name what the user named, instead of a temporary name or none."""
    try:
        yield
    except OSError as error:
        is_of_another = error.filename is not None and _ENDING not in str(error.filename)
        if is_of_another or error.errno is None:
            raise
        raise type(error)(error.errno, error.strerror, str(path)) from error
