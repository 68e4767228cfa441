"""Whatever is written appears whole or not at all, whichever operation of the disk fails."""

from __future__ import annotations

import errno
import io
import json
import os
import resource
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cutaway.cli.repl.chat_state import ChatState, load, save
from cutaway.cli.repl.remembered_facts import Memory
from cutaway.host import whole_file as module
from cutaway.host.whole_file import remove_stale, whole_file, whole_folder, write_whole
from cutaway.trace.file import TraceFile, read, write

OLD, NEW = b"old" * 1000, b"new" * 30_000  # more than a buffer holds
FAULTS = (errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EROFS)
CHANGES = ("open", "write", "fsync", "chmod", "replace", "rename", "mkdir")


class Disk:
    """Stands for os in the module: the k-th operation that changes the disk fails, or all from it.

    calls: the operations that were asked for, in order.
    """

    def __init__(self, fail_at: int | None, fault: int, *, stays: bool = False) -> None:
        self.fail_at, self.fault, self.stays = fail_at, fault, stays
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> object:
        real = getattr(os, name)
        return self._counted(name, real) if name in CHANGES else real

    def fdopen(self, descriptor: int, mode: str) -> io.BufferedWriter:
        assert mode == "wb"
        raw = io.FileIO(descriptor, "w")
        written = self._counted("write", raw.write)

        class Raw(io.RawIOBase):
            def writable(self) -> bool:
                return True

            def write(self, data: object, /) -> int:
                return written(data)  # type: ignore[return-value]

            def fileno(self) -> int:
                return raw.fileno()

            def close(self) -> None:
                raw.close()
                super().close()

        return io.BufferedWriter(Raw())

    def _counted(self, name: str, real: Callable[..., object]) -> Callable[..., object]:
        def call(*values: object, **named: object) -> object:
            self.calls.append(name)
            number = len(self.calls) - 1
            if number == self.fail_at or (
                self.stays and self.fail_at is not None and number > self.fail_at
            ):
                raise OSError(self.fault, os.strerror(self.fault))
            return real(*values, **named)

        return call


def kth_faults(work: Callable[[], None], patch: pytest.MonkeyPatch) -> Iterator[bool]:
    """Run work with each fault at each of its operations, once and for good; whether it raised.

    The caller judges what is there after each.
    """
    counting = Disk(None, 0)
    patch.setattr(module, "os", counting)
    work()
    yield False
    assert len(counting.calls) >= 4
    for fault in FAULTS:
        for stays in (False, True):
            for at in range(len(counting.calls)):
                patch.setattr(module, "os", Disk(at, fault, stays=stays))
                with pytest.raises(OSError) as raised:
                    work()
                assert raised.value.errno == fault
                assert raised.value.filename is not None
                assert ".part" not in str(raised.value)  # the user's name, not ours
                yield True


@pytest.mark.parametrize("is_private", [True, False])
@pytest.mark.parametrize("has_old", [True, False])
def test_a_file_is_old_or_new_whichever_operation_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_old: bool, is_private: bool
) -> None:
    path, num_old, num_new = tmp_path / "name", 0, 0

    def work() -> None:
        with whole_file(path, is_private=is_private) as opened:
            for start in range(0, len(NEW), 10_000):
                opened.write(NEW[start : start + 10_000])

    for has_failed in kth_faults(work, monkeypatch):
        found = path.read_bytes() if path.exists() else None
        if not has_failed:
            assert found == NEW
        # Only the folder's own flush comes after the new name.
        num_new += found == NEW
        num_old += found == (OLD if has_old else None)
        assert found in (NEW, OLD if has_old else None)
        assert os.listdir(tmp_path) == ([] if found is None else ["name"])
        path.unlink(missing_ok=True)
        if has_old:
            path.write_bytes(OLD)
    assert num_old >= 30 and num_new >= 1


def test_a_folder_is_there_whole_or_not_at_all_whichever_operation_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, num_absent = tmp_path / "model", 0

    def work() -> None:
        with whole_folder(path) as half:
            (half / "a").write_bytes(OLD)
            (half / "b").write_bytes(NEW)

    for has_failed in kth_faults(work, monkeypatch):
        if path.exists():
            assert (path / "a").read_bytes() == OLD and (path / "b").read_bytes() == NEW
            (path / "a").unlink()
            (path / "b").unlink()
            path.rmdir()
        else:
            assert has_failed
            num_absent += 1
        assert os.listdir(tmp_path) == []
    assert num_absent >= 20


def test_a_file_stays_when_what_writes_it_raises(tmp_path: Path) -> None:
    path = tmp_path / "name"
    path.write_bytes(OLD)
    for kind in (ValueError, KeyboardInterrupt):
        with pytest.raises(kind), whole_file(path) as opened:
            opened.write(NEW)
            raise kind
    assert path.read_bytes() == OLD
    assert os.listdir(tmp_path) == ["name"]


def test_a_fault_of_another_file_keeps_its_name(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as raised, whole_file(tmp_path / "name"):
        (tmp_path / "other").read_bytes()
    assert raised.value.filename == str(tmp_path / "other")


def test_what_holds_texts_of_people_is_its_owners_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        trace, chat, memory = (tmp_path / name for name in ("a.cutaway", "chat.json", "facts"))
        chat.touch(0o644)  # a private file is private even where the old one was not
        chat.write_text('{"format": "cutaway chat 1", "system": null, "set": {}, "messages": []}')
        write(trace, TraceFile({"prompt": "mine"}, (), ()))
        save(ChatState().add("user", "mine"), chat)
        Memory(memory).add("mine")
        write_whole(tmp_path / "weights", NEW)
    finally:
        os.umask(before)
    for path in (trace, chat, memory):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    assert stat.S_IMODE((tmp_path / "weights").stat().st_mode) == 0o666
    assert load(chat).turns[0].content == "mine"


def test_mode_and_link_of_the_old_file_stay(tmp_path: Path) -> None:
    path, link = tmp_path / "name", tmp_path / "link"
    path.write_bytes(OLD)
    path.chmod(0o640)
    link.symlink_to(path)
    write_whole(link, NEW)
    assert link.is_symlink() and path.read_bytes() == NEW
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_a_name_as_long_as_may_be_can_be_written(tmp_path: Path) -> None:
    for name in ("n" * 255, "\u00e9" * 127):
        write_whole(tmp_path / name, NEW)
        assert (tmp_path / name).read_bytes() == NEW


def test_a_pipe_or_device_is_written_as_it_is(tmp_path: Path) -> None:
    write_whole(Path(os.devnull), NEW)
    assert stat.S_ISCHR(os.stat(os.devnull).st_mode)
    with pytest.raises(IsADirectoryError, match=str(tmp_path)):
        write_whole(tmp_path, NEW)


def test_what_a_killed_process_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    for name in (".model.gguf.0a1b2c3d.part", "model.gguf", ".hidden"):
        (tmp_path / name).write_bytes(OLD)
    remove_stale(tmp_path)
    assert sorted(os.listdir(tmp_path)) == [".hidden", "model.gguf"]


def test_a_trace_stays_whole_when_the_disk_takes_no_more(tmp_path: Path) -> None:
    """The system's own limit instead of our shim: every byte beyond it is refused."""
    path = tmp_path / "a.cutaway"
    write(path, TraceFile({"prompt": "old"}, (), ()))
    code = (
        "import os, sys, resource; from pathlib import Path\n"
        "from cutaway.trace.file import TraceFile, write\n"
        "event = {'type': 'noise', 'text': os.urandom(100_000).hex()}\n"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, {resource.RLIM_INFINITY}))\n"
        "try:\n    write(Path(sys.argv[1]), TraceFile({'prompt': 'new'}, (event,), ()))\n"
        "except OSError as error:\n    print(error.errno, error.filename)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True
    )
    assert ended.stdout.split() == [str(errno.EFBIG), str(path)]
    assert json.dumps(read(path).manifest["prompt"]) == '"old"'
    assert os.listdir(tmp_path) == ["a.cutaway"]


# Run in a mount namespace of its own, whose disk of 96 KB ends with it.
FULL = """
import errno, os, sys
from pathlib import Path

from cutaway.cli.repl.chat_state import ChatState, load, save
from cutaway.cli.repl.remembered_facts import Memory
from cutaway.core.errors import RequestError
from cutaway.host.whole_file import whole_folder, write_whole
from cutaway.trace.file import TraceFile, read, write

disk = Path(sys.argv[1])
file, trace, chat, facts = (disk / name for name in ("file", "a.cutaway", "chat.json", "facts"))
noise = os.urandom(150_000).hex()


def folder():
    with whole_folder(disk / "model") as half:
        (half / "a").write_bytes(b"whole")
        (half / "b").write_text(noise)


def fails(work):
    try:
        work()
    except OSError as error:
        assert ".part" not in str(error), error
        return errno.errorcode[error.errno]
    return "written"


write_whole(file, b"old")
write(trace, TraceFile({"prompt": "old"}, (), ()))
save(ChatState().add("user", "old"), chat)
Memory(facts).add("old")
before = sorted(os.listdir(disk))
works = (
    lambda: write_whole(file, noise),
    lambda: write(trace, TraceFile({"prompt": "new"}, ({"type": "noise", "text": noise},), ())),
    lambda: save(ChatState().add("user", noise), chat),
    folder,
)
print([fails(work) for work in works])
os.system(f"mount -o remount,ro {disk}")
print([fails(work) for work in works])
os.system(f"mount -o remount,rw {disk}")
assert sorted(os.listdir(disk)) == before, os.listdir(disk)
assert file.read_bytes() == b"old" and read(trace).manifest["prompt"] == "old"
assert load(chat).turns[0].content == "old"
write_whole(file, b"new")
assert file.read_bytes() == b"new", "room that a failure took is there again"
kept = ["old"]
try:
    while len(kept) < 500:
        Memory(facts).add(f"{len(kept)} {noise[:400]}")
        kept.append(f"{len(kept)} {noise[:400]}")
except RequestError as error:
    print(error)
assert [each.text for each in Memory(facts).facts()] == kept and len(kept) > 9
"""


def test_a_disk_that_is_really_full_leaves_what_was_there(tmp_path: Path) -> None:
    (tmp_path / "full.py").write_text(FULL, encoding="utf-8")
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = f"mount -t tmpfs -o size=96k none {disk}"
    if not is_done(["unshare", "-rm", "sh", "-c", mounted]):
        pytest.skip("nothing may be mounted here, not even in a namespace of one's own")
    run = f'{mounted} && exec "$@"'
    ended = subprocess.run(
        ["unshare", "-rm", "sh", "-c", run, "sh", sys.executable, tmp_path / "full.py", disk],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    full, readonly, memory = ended.stdout.splitlines()
    assert full == str(["ENOSPC"] * 4) and readonly == str(["EROFS"] * 4)
    assert "facts" in memory and "full" in memory


def is_done(command: list[str]) -> bool:
    """Whether a command is there and ends well."""
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False
