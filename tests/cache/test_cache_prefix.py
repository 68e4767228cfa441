"""Keys of pages: injective, long, equal in every process; the index holds each page once."""

from __future__ import annotations

import hashlib
import itertools
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutaway.cache import prefix
from cutaway.cache.prefix import PageKeys, PrefixIndex, root_key

FIELDS = st.recursive(
    st.binary(max_size=6) | st.integers() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3).map(tuple),
    max_leaves=8,
)


def test_e03_roots_differ_when_shapes_or_borders_do() -> None:
    data = bytes(64)
    roots = [
        root_key(data, "float32", (16,)),
        root_key(data, "float32", (4, 4)),
        root_key(data, "int32", (16,)),
        root_key((1, 2), (3, 4, 5)),
        root_key((1, 2, 3), (4, 5)),
        root_key(1, 2, 3, 4, 5),
        root_key("ab", "c"),
        root_key("a", "bc"),
        root_key(b"ab", "c"),
        root_key("1"),
        root_key(1),
        root_key(b"1"),
        root_key(""),
        root_key(),
        root_key(()),
    ]
    assert len(set(roots)) == len(roots)


@given(st.lists(FIELDS, max_size=4), st.lists(FIELDS, max_size=4))
def test_e03_roots_are_equal_only_for_equal_fields(one: list, other: list) -> None:
    assert (root_key(*one) == root_key(*other)) == (one == other)


def test_e03_page_keys_differ_where_digits_run_together() -> None:
    lists = [[1, 23], [12, 3], [1, 2], [123, 0], [23, 1]]
    keys = {tuple(PageKeys(b"root", 2).between(0, 1, ids)) for ids in lists}
    assert len(keys) == len(lists)


def test_e03_page_keys_are_sha256_over_parent_and_tokens() -> None:
    root = root_key("salt")
    assert root == hashlib.sha256(b"Rt" + (1).to_bytes(8, "little") + b"s"
                                  + (4).to_bytes(8, "little") + b"salt").digest()  # fmt: skip
    first = hashlib.sha256(b"P" + root + struct.pack("<4I", 1, 2, 3, 4)).digest()
    second = hashlib.sha256(b"P" + first + struct.pack("<4I", 5, 6, 7, 2**32 - 1)).digest()
    keys = PageKeys(root, 4).between(0, 2, [1, 2, 3, 4, 5, 6, 7, 2**32 - 1])
    assert keys == [first, second]


def test_e03_keys_are_equal_in_another_process() -> None:
    code = (
        "from cutaway.cache.prefix import *; "
        "print(PageKeys(root_key('salt', 7, b'x'), 8).between(0, 2, list(range(16)))[-1].hex())"
    )
    source = Path(prefix.__file__).parents[2]
    answers = {
        subprocess.run(
            [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(source)!r}); {code}"],
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for seed in ("1", "2")
    }
    here = PageKeys(root_key("salt", 7, b"x"), 8).between(0, 2, list(range(16)))[-1].hex()
    assert answers == {here}


def test_e04_keys_are_whole_sha256_digests() -> None:
    assert len(root_key("salt")) == 32
    assert [len(k) for k in PageKeys(root_key("salt"), 2).between(0, 2, [1, 2, 3, 4])] == [32, 32]


def test_e01_e02_adapter_load_and_salt_part_the_keys() -> None:
    fields = itertools.product(
        (b"", b"tenant-a", b"tenant-b"), ("none", "x", "y"), (1, 2), ("rope 1e4", "rope 1e6")
    )
    token_ids = list(range(8))
    keys = [PageKeys(root_key(*each), 8).between(0, 1, token_ids)[0] for each in fields]
    assert len(set(keys)) == len(keys)


@given(st.lists(st.integers(0, 3), max_size=40), st.lists(st.integers(0, 40), max_size=6))
def test_keys_are_the_same_however_they_are_asked_for(ids: list[int], cuts: list[int]) -> None:
    whole = PageKeys(b"root", 4).between(0, len(ids) // 4, ids)
    pieces = PageKeys(b"root", 4)
    for cut in sorted(cuts):
        known = min(cut, len(ids))
        pieces.between(0, known // 4, ids[:known])
    assert pieces.between(0, len(ids) // 4, ids) == whole


def test_each_token_is_hashed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[int] = []
    sha256: Callable = hashlib.sha256
    monkeypatch.setattr(
        prefix.hashlib, "sha256", lambda data: hashed.append(len(data)) or sha256(data)
    )
    keys = PageKeys(bytes(32), 8)
    token_ids = [0] * 800
    for num_pages in range(101):
        keys.between(max(0, num_pages - 1), num_pages, token_ids)
    assert len(hashed) == 100
    assert set(hashed) == {1 + 32 + 8 * 4}


def test_a_page_without_all_its_tokens_has_no_key() -> None:
    with pytest.raises(AssertionError, match="only full pages"):
        PageKeys(b"root", 4).between(0, 1, [1, 2, 3])


def test_a_flag_is_no_key_field() -> None:
    with pytest.raises(AssertionError, match="not a bool"):
        root_key(True)


def test_index_keeps_the_page_that_came_first() -> None:
    index = PrefixIndex()
    assert index.add(b"k", 3)
    assert not index.add(b"k", 4)
    assert index.add(b"k", 3)
    assert index.find(b"k") == 3
    assert 3 in index and 4 not in index and len(index) == 1
    with pytest.raises(AssertionError, match="two keys"):
        index.add(b"other", 3)


def test_index_forgets_both_ways() -> None:
    index = PrefixIndex()
    index.add(b"k", 3)
    index.remove(3)
    index.remove(3)
    assert index.find(b"k") is None and 3 not in index and len(index) == 0
