"""Pages that are pinned, and pages whose content comes back from a store: the books of both."""

from __future__ import annotations

import numpy as np
from test_cache_paged import ROOT, make_cache, run, warm

from cutaway.cache.stores import Content, HostPages, RestorePage, SavePage

IDS = list(range(32))


def test_a_prefix_pinned_twice_stays_until_both_pins_are_gone() -> None:
    cache = make_cache(num_pages=9)
    warm(cache, IDS)
    keys = cache.keys(ROOT).between(0, 3, IDS)
    assert cache.pin([b"unknown"]) is None, "what is not there cannot be pinned"
    pins = [cache.pin(keys), cache.pin(keys)]
    assert cache.stats.pinned == cache.stats.used == 3
    assert cache.pages_of_hit(3) == (3,)
    assert cache.unpinned_beside(16) == (3,), "8 pages, of which 3 are pinned"
    assert cache.capacity_tokens == 5 * 8
    for left, pin in zip((3, 0), pins, strict=True):
        assert pin is not None
        cache.unpin(pin)
        assert cache.stats.pinned == left
    assert cache.stats.used == 0 and warm(cache, IDS) == 24, "cached as others are"


class LyingStore(HostPages):
    """It says that it has what it has lost."""

    def find(self, group: int, key: bytes) -> Content | None:
        return None


def test_evicted_pages_come_back_from_a_store_and_lost_ones_are_computed() -> None:
    for kind, num_hit in ((HostPages, 24), (LyingStore, 0)):
        cache, store = make_cache(num_pages=9), kind([8], most_bytes=64)
        cache.attach([store])
        warm(cache, IDS)
        warm(cache, list(range(100, 164)))  # takes all pages
        saved = cache.moves.take()
        assert len(saved) == 4 and all(isinstance(move, SavePage) for move in saved)
        for move in saved:
            assert isinstance(move, SavePage)
            store.put(move.group, move.key, np.full(8, move.page, np.uint8))
        tables, found = run(cache, IDS)
        assert found == num_hit
        restored = [move for move in cache.moves.take() if isinstance(move, RestorePage)]
        pages = tables.groups[0].pages[: len(restored)]
        assert [move.page for move in restored] == pages and len(pages) == num_hit // 8


def test_what_a_store_has_of_content_that_was_not_finite_does_not_come_back() -> None:
    cache, store = make_cache(num_pages=9), HostPages([8], most_bytes=64)
    cache.attach([store])
    tables, _ = run(cache, IDS)
    keys = cache.keys(ROOT).between(0, 3, IDS)
    for key in keys:
        store.put(0, key, np.zeros(8, np.uint8))
    cache.invalidate(tables, IDS)
    assert not any(store.has(0, key) for key in keys)
    cache.release(tables)
    assert warm(cache, IDS) == 0
