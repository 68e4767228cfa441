"""Keys that name the content of a page, and the index from key to page.

Free of torch. It knows neither who holds a page nor how long it may stay.

A key is SHA-256 over the parent's key and the page's token ids, so it names the whole prefix up
to the page's end; pages of different owners never meet because the root differs.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence

KeyField = bytes | int | str | tuple["KeyField", ...]

# First byte of what is hashed, so that no root can be read as a page.
_ROOT = b"R"
_PAGE = b"P"


def root_key(*fields: KeyField) -> bytes:
    """Digest of everything that must agree before two sequences may share pages.

    For instance a salt, the adapter's load id and the position key. Two different tuples of
    fields never give the same bytes to hash: each field carries its type and its length.
    """
    return hashlib.sha256(_ROOT + _serialise(fields)).digest()


def _serialise(field: KeyField) -> bytes:
    assert not isinstance(field, bool), "a key field is bytes, int, str or a tuple, not a bool"
    if isinstance(field, bytes):
        return _tagged(b"b", len(field), field)
    if isinstance(field, str):
        text = field.encode("utf-8", "surrogatepass")
        return _tagged(b"s", len(text), text)
    if isinstance(field, int):
        digits = str(field).encode()
        return _tagged(b"i", len(digits), digits)
    return _tagged(b"t", len(field), b"".join(_serialise(each) for each in field))


def _tagged(tag: bytes, length: int, payload: bytes) -> bytes:
    return tag + length.to_bytes(8, "little") + payload


class PageKeys:
    """Keys of one sequence's full pages, each computed once, as its tokens become known.

    Survives preemption, so a token is hashed once in the life of its sequence.
    """

    def __init__(self, root: bytes, page_size: int, pinned: Sequence[bytes] = ()) -> None:
        """pinned: keys of the first pages, which are another root's; behind them this one acts."""
        self._root = root
        self._page_size = page_size
        self._layout = struct.Struct(f"<{page_size}I")
        self._num_pinned = len(pinned)
        self._keys: list[bytes] = [*pinned]

    def between(self, first: int, last: int, token_ids: Sequence[int]) -> list[bytes]:
        """Keys of the pages first to last - 1; between calls token_ids may only grow."""
        size = self._page_size
        assert last * size <= len(token_ids), "only full pages have a key"
        while len(self._keys) < last:
            start = len(self._keys) * size
            is_first = len(self._keys) == self._num_pinned
            parent = self._root if is_first else self._keys[-1]
            tokens = self._layout.pack(*token_ids[start : start + size])
            self._keys.append(hashlib.sha256(_PAGE + parent + tokens).digest())
        return self._keys[first:last]


class PrefixIndex:
    """Which page holds the content of a key; each key and each page at most once."""

    def __init__(self) -> None:
        self._page_of: dict[bytes, int] = {}
        self._key_of: dict[int, bytes] = {}

    def __len__(self) -> int:
        return len(self._page_of)

    def __contains__(self, page: int) -> bool:
        return page in self._key_of

    def find(self, key: bytes) -> int | None:
        """The page that holds this content, if one does."""
        return self._page_of.get(key)

    def has(self, key: bytes) -> bool:
        """Whether a page holds this content."""
        return key in self._page_of

    def add(self, key: bytes, page: int) -> bool:
        """Make the page findable, unless an equal one is already: then that one stays."""
        if key in self._page_of:
            return self._page_of[key] == page
        assert page not in self._key_of, "a page cannot hold the content of two keys"
        self._page_of[key] = page
        self._key_of[page] = key
        return True

    def remove(self, page: int) -> bytes | None:
        """Make the page unfindable; it may be unknown. Returns the key that found it."""
        key = self._key_of.pop(page, None)
        if key is not None:
            del self._page_of[key]
        return key
