"""Where the content of pages outlives the page: memory of the host, files on a disk.

Free of torch: a page's content is bytes, with a checksum, so what is doubtful is computed again. A
store forgets what it likes, whenever it likes; nobody waits for one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

Content: TypeAlias = NDArray[np.uint8]  # all fields of all layers of a page, one after the other


@dataclass(frozen=True, kw_only=True)
class StoreStats:
    """What a store holds, and what it has counted since its start.

    written, found: pages that came in, and that were given back.
    spoilt:         found with another checksum than they were written with; computed again.
    skipped:        not written, since the store was behind.
    is_shared:      whether other engines put their pages there too, and see these.
    """

    kind: str
    is_shared: bool = False
    num_bytes: int = 0
    most_bytes: int = 0
    pages: int = 0
    written: int = 0
    found: int = 0
    spoilt: int = 0
    skipped: int = 0


class PageStore(Protocol):
    """Pages by cache group and key.

    takes_evicted: whether it is for pages that leave the cache; else for those of prompts.
    """

    @property
    def takes_evicted(self) -> bool:
        """Whether it is for pages that leave the cache; else for those of prompts."""
        ...

    @property
    def stats(self) -> StoreStats:
        """The counts of this moment."""
        ...

    def has(self, group: int, key: bytes) -> bool:
        """Whether a page is probably there. Cheap: it is asked for every page of a prompt."""
        ...

    def find(self, group: int, key: bytes) -> Content | None:
        """A page's content, if it is there and is what was written."""
        ...

    def put(self, group: int, key: bytes, content: Content) -> None:
        """Keep a page's content, in the place of what was used longest ago."""
        ...

    def drop(self, group: int, key: bytes) -> None:
        """Forget a page; it may be unknown."""
        ...

    def close(self, seconds: float) -> None:
        """Keep what was put, and take no more; wait for so long at most."""
        ...


@dataclass(frozen=True)
class SavePage:
    """Hand a page's content to a store, before anything is written to the page."""

    group: int
    page: int
    key: bytes
    store: PageStore


@dataclass(frozen=True)
class RestorePage:
    """Write to a page what it held."""

    group: int
    page: int
    content: Content


PageMove: TypeAlias = SavePage | RestorePage


class PageMoves:
    """Stores behind the pages, and what is to be moved before the next forward, in its order.

    The order matters: a page that was given away is saved before another's content goes there.
    """

    def __init__(self, stores: Sequence[PageStore]) -> None:
        self.stores = tuple(stores)
        self.restored_pages = 0
        self._restored: list[tuple[int, int]] = []
        self._pending: list[PageMove] = []

    def __bool__(self) -> bool:
        """Whether something is to be moved."""
        return bool(self._pending)

    def take(self) -> list[PageMove]:
        """What is to be moved, once."""
        pending, self._pending = self._pending, []
        return pending

    def take_restored(self) -> list[tuple[int, int]]:
        """Group and page of what was restored since this was last asked."""
        restored, self._restored = self._restored, []
        return restored

    def hear_of_evicted(self, group: int) -> Callable[[bytes, int], None] | None:
        """What an allocator tells of evicted pages; None where no store wants them."""
        wanting = [store for store in self.stores if store.takes_evicted]
        if not wanting:
            return None

        def save(key: bytes, page: int) -> None:
            for store in wanting:
                if not store.has(group, key):
                    self._pending.append(SavePage(group, page, key, store))

        return save

    def has(self, group: int, key: bytes) -> bool:
        """Whether a store probably has a page."""
        return any(store.has(group, key) for store in self.stores)

    def find(self, group: int, key: bytes) -> Content | None:
        """A page's content from the first store that has it whole."""
        for store in self.stores:
            if store.has(group, key):
                content = store.find(group, key)
                if content is not None:
                    return content
        return None

    def restore(self, group: int, page: int, content: Content) -> None:
        """Have a page hold what it held."""
        self.restored_pages += 1
        self._restored.append((group, page))
        self._pending.append(RestorePage(group, page, content))

    def drop(self, group: int, key: bytes) -> None:
        """Have all stores forget a page, and what waits to be saved of it."""
        self._pending = [
            move
            for move in self._pending
            if not (isinstance(move, SavePage) and (move.group, move.key) == (group, key))
        ]
        for store in self.stores:
            store.drop(group, key)


class HostPages:
    """Pages in the host's memory, behind those of a device: what leaves the one goes to the other.

    new_slots: makes the memory of each group, so many slots of so many bytes; a GPU wants it
        pinned, so that copies run at the bus's speed.
    page_bytes: of a page of each group. most_bytes: of all slots together.
    """

    takes_evicted = True

    def __init__(
        self,
        page_bytes: Sequence[int],
        *,
        most_bytes: int,
        new_slots: Callable[[int, int], Content] = lambda count, size: np.zeros(
            (count, size), np.uint8
        ),
    ) -> None:
        count = most_bytes // max(1, sum(page_bytes))
        self._slots = [new_slots(count, size) for size in page_bytes]
        self._most_bytes = most_bytes
        self._free = [list(range(count)) for _ in page_bytes]
        # By key the slot and the checksum; what was used longest ago stands first.
        self._held: list[OrderedDict[bytes, tuple[int, int]]] = [OrderedDict() for _ in page_bytes]
        self._written = self._found = self._spoilt = 0

    @property
    def stats(self) -> StoreStats:
        """The counts of this moment."""
        held = [len(each) for each in self._held]
        return StoreStats(
            kind="host",
            num_bytes=sum(n * s.shape[1] for n, s in zip(held, self._slots, strict=True)),
            most_bytes=self._most_bytes,
            pages=sum(held),
            written=self._written,
            found=self._found,
            spoilt=self._spoilt,
        )

    def has(self, group: int, key: bytes) -> bool:
        """Whether a page is there."""
        return key in self._held[group]

    def find(self, group: int, key: bytes) -> Content | None:
        """A copy of a page's content, if its checksum is what it was."""
        held = self._held[group].get(key)
        if held is None:
            return None
        slot, checksum = held
        content = self._slots[group][slot].copy()
        if checksum_of(content) != checksum:
            self._spoilt += 1
            self.drop(group, key)
            return None
        self._held[group].move_to_end(key)
        self._found += 1
        return content

    def put(self, group: int, key: bytes, content: Content) -> None:
        """Keep a page's content, in the place of what was used longest ago."""
        self.drop(group, key)
        if self._free[group]:
            slot = self._free[group].pop()
        elif self._held[group]:
            _, (slot, _) = self._held[group].popitem(last=False)
        else:
            return  # there is not a slot
        self._slots[group][slot] = content
        self._held[group][key] = (slot, checksum_of(content))
        self._written += 1

    def drop(self, group: int, key: bytes) -> None:
        """Forget a page; it may be unknown."""
        held = self._held[group].pop(key, None)
        if held is not None:
            self._free[group].append(held[0])

    def close(self, seconds: float) -> None:
        """Nothing is to be done: it ends with the process."""


def checksum_of(content: Content) -> int:
    """The sum of 64-bit words, each times an odd number of its place: 5 GB/s on one core.

    The places matter, so that two pages whose words are swapped do not look alike.
    """
    end = len(content) // 8 * 8
    words = content[:end].view(np.uint64)
    places = np.arange(1, 2 * len(words), 2, dtype=np.uint64)
    rest = int(content[end:].sum(dtype=np.uint64))
    return int((words * places).sum(dtype=np.uint64)) ^ rest
