"""Stores behind the pages: what is found is what was written, or nothing is."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from cutaway.cache import disk
from cutaway.cache.disk import DiskPages, open_folder, page_secret_of, salt_secret_of
from cutaway.cache.pool import Pool, move_pages
from cutaway.cache.stores import Content, HostPages, RestorePage, SavePage, checksum_of
from cutaway.core.errors import ConfigError
from cutaway.core.layout import CacheField, CacheSpec, group_layers

SIZE = 40


def content(number: int, size: int = SIZE) -> Content:
    return np.random.default_rng(number).integers(0, 256, size, dtype=np.uint8)


def key(number: int) -> bytes:
    return bytes([number]) * 32


def on_disk(folder: Path, *, form: bytes = b"model", most_bytes: int = 10**6) -> DiskPages:
    return DiskPages(
        folder, [SIZE, SIZE], secret=open_folder(folder), form=form, most_bytes=most_bytes
    )


def filled(folder: Path, count: int = 1, **settings: object) -> DiskPages:
    """Pages that were written and closed, as before a restart."""
    pages = on_disk(folder, **settings)  # type: ignore[arg-type]
    for number in range(count):
        pages.put(0, key(number), content(number))
    pages.close(60)
    return pages


def only_file(folder: Path) -> Path:
    (found,) = folder.glob("*.page")
    return found


def test_host_pages_come_back_and_the_longest_unused_goes() -> None:
    pages = HostPages([SIZE], most_bytes=2 * SIZE)
    for number in range(2):
        pages.put(0, key(number), content(number))
    assert np.array_equal(pages.find(0, key(0)), content(0))  # used now, so the other goes
    pages.put(0, key(2), content(2))
    assert [pages.has(0, key(number)) for number in range(3)] == [True, False, True]
    assert pages.find(0, key(1)) is None
    stats = pages.stats
    assert (stats.pages, stats.num_bytes, stats.written, stats.found) == (2, 2 * SIZE, 3, 1)


def test_host_pages_without_room_for_one_keep_none() -> None:
    pages = HostPages([SIZE], most_bytes=SIZE - 1)
    pages.put(0, key(0), content(0))
    assert not pages.has(0, key(0)) and pages.stats.pages == 0


def test_scale_s33_a_page_of_the_host_that_changed_is_not_given_back() -> None:
    pages = HostPages([SIZE], most_bytes=4 * SIZE)
    pages.put(0, key(0), content(0))
    pages._slots[0][pages._held[0][key(0)][0]][7] ^= 1
    assert pages.find(0, key(0)) is None
    assert pages.stats.spoilt == 1 and not pages.has(0, key(0))


def test_a_checksum_knows_places_and_the_last_bytes() -> None:
    whole = content(1, 43)
    swapped = np.concatenate([whole[8:16], whole[:8], whole[16:]])
    last = whole.copy()
    last[42] ^= 1
    assert len({checksum_of(each) for each in (whole, swapped, last)}) == 3
    assert checksum_of(whole) == checksum_of(whole.copy())


def test_disk_pages_are_found_after_a_restart_by_their_owner_alone(tmp_path: Path) -> None:
    folder = tmp_path / "pages"
    filled(folder, 3)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()} == {0o600}
    again = on_disk(folder)
    assert all(np.array_equal(again.find(0, key(n)), content(n)) for n in range(3))
    assert again.find(1, key(0)) is None and not again.has(0, key(9))
    assert (again.stats.found, again.stats.pages, again.stats.spoilt) == (3, 3, 0)
    again.close(60)


def test_what_is_being_written_is_whole_or_not_there(tmp_path: Path, monkeypatch) -> None:
    folder = tmp_path / "pages"
    open_folder(folder)
    monkeypatch.setattr(os, "replace", _raise_full)
    pages = filled(folder, 2)
    assert not list(folder.glob("*.page")) and not list(folder.glob("*.part"))
    assert pages.stats.skipped == 2 and pages.stats.written == 0


def _raise_full(*paths: object) -> None:
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("place", [0, 20, 60, -1])
def test_scale_s33_a_changed_file_is_not_given_back(tmp_path: Path, place: int) -> None:
    filled(tmp_path / "pages")
    file = only_file(tmp_path / "pages")
    body = bytearray(file.read_bytes())
    body[place] ^= 1
    file.write_bytes(body)
    pages = on_disk(tmp_path / "pages")
    assert pages.find(0, key(0)) is None
    assert pages.stats.spoilt == 1 and not file.exists()
    pages.close(60)


def test_a_file_under_the_name_of_another_page_is_not_given_back(tmp_path: Path) -> None:
    filled(tmp_path / "pages")
    file = only_file(tmp_path / "pages")
    other = file.with_name(file.name.replace(key(0).hex(), key(1).hex()))
    file.rename(other)
    pages = on_disk(tmp_path / "pages")
    assert pages.has(0, key(1)) and pages.find(0, key(1)) is None
    pages.close(60)


def test_scale_s35_pages_of_another_layout_are_not_taken(tmp_path: Path) -> None:
    folder = tmp_path / "pages"
    filled(folder)
    other = on_disk(folder, form=b"other heads")
    assert not other.has(0, key(0)) and other.find(0, key(0)) is None
    # Nor where a file of another layout has the name that this one gives.
    only_file(folder).rename(folder / other._name(0, key(0)))
    assert other.has(0, key(0)) and other.find(0, key(0)) is None
    other.close(60)


@pytest.mark.parametrize("kind", ["pipe", "link", "short", "folder"])
def test_scale_s34_what_is_no_plain_file_of_its_size_is_not_waited_for(
    tmp_path: Path, kind: str
) -> None:
    filled(tmp_path / "pages")
    file = only_file(tmp_path / "pages")
    body = file.read_bytes()
    file.unlink()
    if kind == "pipe":
        os.mkfifo(file)
    elif kind == "link":
        (tmp_path / "elsewhere").write_bytes(body)
        file.symlink_to(tmp_path / "elsewhere")
    elif kind == "short":
        file.write_bytes(body[:-1])
    else:
        file.mkdir()
    pages = on_disk(tmp_path / "pages")
    assert pages.find(0, key(0)) is None
    pages.close(60)


def test_scale_s34_a_disk_that_hangs_holds_up_nobody(tmp_path: Path, monkeypatch) -> None:
    hangs, writes = threading.Event(), threading.Event()

    def write(self: DiskPages, name: str, body: Content) -> None:
        writes.set()
        hangs.wait(60)

    monkeypatch.setattr(DiskPages, "_write", write)
    monkeypatch.setattr(disk, "_MOST_BEHIND", 2)
    pages = on_disk(tmp_path / "pages")
    pages.put(0, key(0), content(0))
    assert writes.wait(60)
    for number in range(1, 9):
        pages.put(0, key(number), content(number))
    assert pages.stats.skipped == 6
    pages.close(0.01)
    hangs.set()


def test_no_more_bytes_than_allowed_and_the_longest_unused_go(tmp_path: Path) -> None:
    folder = tmp_path / "pages"
    filled(folder)
    size = only_file(folder).stat().st_size
    pages = on_disk(folder, most_bytes=10 * size)
    for number in range(1, 40):
        os.utime(only_file(folder), (0, 0)) if number == 1 else None
        pages.put(0, key(number), content(number))
    pages.close(60)
    left = list(folder.glob("*.page"))
    assert 1 <= len(left) <= 10 and sum(file.stat().st_size for file in left) <= 10 * size
    assert not any(key(0).hex() in file.name for file in left)


def test_a_folder_that_others_may_read_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    with pytest.raises(ConfigError, match=r"others than you may read or write.*chmod 700"):
        open_folder(tmp_path)
    (tmp_path / "file").write_text("x")
    with pytest.raises(ConfigError, match="cannot be used"):
        open_folder(tmp_path / "file" / "below")


def test_a_folder_has_one_secret_of_which_others_are_made(tmp_path: Path) -> None:
    first = open_folder(tmp_path / "a")
    assert open_folder(tmp_path / "a") == first != open_folder(tmp_path / "b")
    assert len({first, page_secret_of(first), salt_secret_of(first)}) == 3
    (tmp_path / "a" / "secret").write_bytes(b"short")
    with pytest.raises(ConfigError, match="is no secret"):
        open_folder(tmp_path / "a")


def test_halves_of_writers_that_were_killed_are_removed(tmp_path: Path) -> None:
    folder = tmp_path / "pages"
    open_folder(folder)
    old, new = folder / "old.part", folder / "new.part"
    for each in (old, new):
        each.write_bytes(b"half")
    os.utime(old, (0, 0))
    on_disk(folder).close(60)
    assert not old.exists() and new.exists()


@pytest.mark.parametrize("dtype", [torch.float16, torch.int8, torch.float8_e4m3fn])
@pytest.mark.parametrize("is_native", [False, True])
def test_pages_are_read_and_written_whole(dtype: torch.dtype, is_native: bool) -> None:
    specs = [
        CacheSpec((CacheField("key", (2, 6), is_columns=True), CacheField("value", (2, 6)))),
        CacheSpec((CacheField("state", (3, 5), dtype="float32"),), is_state=True),
    ] * 2
    groups = group_layers(specs)
    device = torch.device("cpu")
    settings = {"page_size": 8, "dtype": dtype, "device": device, "is_native": is_native}
    one, other = (Pool(groups, num_pages=[6, 4], **settings) for _ in range(2))  # type: ignore[arg-type]
    generator = torch.Generator().manual_seed(1)
    for layer in one.kept:
        for field in layer.fields.values():
            drawn = torch.randint(0, 100, field.shape, generator=generator)
            field.copy_(drawn.to(field.dtype))
    for group, moved in enumerate([{1: 3, 4: 2}, {2: 1}]):
        found = one.read(group, list(moved))
        assert found.shape == (len(moved), one.page_bytes[group])
        other.write(group, list(moved.values()), found)
    for layer, (ours, theirs) in enumerate(zip(one.kept, other.kept, strict=True)):
        moved = {1: 3, 4: 2} if ours.group == 0 else {2: 1}
        for name, field in ours.fields.items():
            for source, place in moved.items():
                there = theirs.fields[name][place].float()
                assert torch.equal(field[source].float(), there), (layer, name)


def test_moves_go_in_their_order(tmp_path: Path) -> None:
    """A page is restored, given away and restored again before anything is computed."""
    groups = group_layers([CacheSpec((CacheField("key", (1,)),))])
    pool = Pool(groups, num_pages=[3], page_size=8, dtype=torch.float32, device=torch.device("cpu"))
    store = HostPages(pool.page_bytes, most_bytes=10**4)
    first, second = (content(number, pool.page_bytes[0]) for number in range(2))
    moves = [
        RestorePage(0, 1, first),
        SavePage(0, 1, key(1), store),
        RestorePage(0, 1, content(7, pool.page_bytes[0])),
        RestorePage(0, 1, second),
    ]
    move_pages(pool, moves)
    assert np.array_equal(store.find(0, key(1)), first)
    assert np.array_equal(pool.read(0, [1])[0].numpy(), second)
