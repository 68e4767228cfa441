"""The verbs over all groups: hits, reserve, commit, rollback, release, and what they promise."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutaway.cache.allocator import POOLS_UNTIL_IDLE
from cutaway.cache.paged import PagedCache, PageTables
from cutaway.cache.prefix import root_key
from cutaway.core.errors import ConfigError
from cutaway.core.layout import SCRATCH_PAGE, CacheField, CacheSpec, Full, Window, group_layers
from cutaway.core.limits import INT64_MAX

ROOT = root_key("test")


def make_cache(
    *extents: Full | Window, num_pages: int | Sequence[int] = 20, prefix_cache: bool = True
) -> PagedCache:
    """Pages of 8 tokens; one group per extent."""
    specs = [
        CacheSpec((CacheField(f"key{i}", (1,)),), e) for i, e in enumerate(extents or [Full()])
    ]
    numbers = [num_pages] * len(specs) if isinstance(num_pages, int) else num_pages
    return PagedCache(
        group_layers(specs), num_pages=numbers, page_size=8, prefix_cache=prefix_cache
    )


def run(cache: PagedCache, token_ids: Sequence[int], root: bytes = ROOT) -> tuple[PageTables, int]:
    """Admit a sequence and compute all its tokens in one step."""
    admitted = cache.admit(token_ids, cache.keys(root))
    assert admitted is not None
    tables, num_hit = admitted
    assert cache.reserve(tables, len(token_ids))
    cache.commit(tables, token_ids, len(token_ids))
    return tables, num_hit


def warm(cache: PagedCache, token_ids: Sequence[int], root: bytes = ROOT) -> int:
    """Run a sequence to its end; how many of its tokens were hits."""
    tables, num_hit = run(cache, token_ids, root)
    cache.release(tables)
    return num_hit


def evict(cache: PagedCache, *indices: int, group: int = 0, token_ids: Sequence[int]) -> None:
    """Make pages of a prefix unfindable, as eviction does."""
    keys = cache.keys(ROOT).between(0, len(token_ids) // 8, token_ids)
    for index in indices:
        page = cache.allocators[group].index.find(keys[index])
        assert page is not None
        cache.allocators[group].forget(page)


def test_a_prefix_is_found_by_whole_pages_and_never_whole() -> None:
    cache = make_cache()
    ids = list(range(32))
    assert warm(cache, ids) == 0
    assert warm(cache, ids) == 24, "one token is always left to compute"
    assert warm(cache, [*ids, 99]) == 32
    assert warm(cache, [*ids[:20], 99, 99, 99, 99]) == 16
    assert warm(cache, [99, *ids]) == 0
    assert cache.stats.query_tokens == 32 + 32 + 33 + 24 + 33
    assert cache.stats.hit_tokens == 24 + 32 + 16


def test_what_a_sequence_counted_on_is_there_until_it_has_all_its_pages() -> None:
    """Nobody is found idle meanwhile: others' shares would grow over pages that it counted on."""
    cache = make_cache(num_pages=13)

    def warm_page(number: int, owner: str) -> None:
        token_ids = range(8 * number, 8 * number + 8)
        admitted = cache.admit(token_ids, cache.keys(ROOT), owner=owner)
        assert admitted is not None and cache.reserve(admitted[0], 8)
        cache.commit(admitted[0], token_ids, 8)
        cache.release(admitted[0])

    warm_page(0, "carol")
    for number in range(POOLS_UNTIL_IDLE * 12):
        warm_page(number + 1, "alice")
    allocator = cache.allocators[0]
    assert not allocator.is_idle("carol") and allocator.owners() == {"carol": 1, "alice": 11}
    admitted = cache.admit(range(1000, 1056), cache.keys(ROOT), owner="bob")
    assert admitted is not None, "alice has 7 pages more than a third"
    assert cache.reserve(admitted[0], 56)
    assert allocator.owners() == {"carol": 1, "alice": 4, "bob": 7}
    cache.commit(admitted[0], range(1000, 1056), 56)
    assert allocator.is_idle("carol")


def test_max_hit_limits_the_hit() -> None:
    cache = make_cache()
    warm(cache, list(range(32)))
    for max_hit, expected in ((0, 0), (7, 0), (8, 8), (23, 16), (1000, 24)):
        admitted = cache.admit(list(range(32)), cache.keys(ROOT), max_hit=max_hit)
        assert admitted is not None and admitted[1] == expected
        cache.release(admitted[0])


def test_e01_e02_other_roots_share_nothing() -> None:
    cache = make_cache()
    ids = list(range(32))
    roots = [root_key("salt", adapter, load) for adapter in ("x", "y") for load in (1, 2)]
    assert [warm(cache, ids, root) for root in roots] == [0, 0, 0, 0]
    assert [warm(cache, ids, root) for root in roots] == [24, 24, 24, 24]


def test_e05_taken_pages_are_not_found_again() -> None:
    cache = make_cache(num_pages=5)
    first, second = list(range(32)), list(range(100, 132))
    assert warm(cache, first) == 0
    tables, num_hit = run(cache, second)
    assert num_hit == 0
    assert len(cache.allocators[0].index) == 4
    cache.release(tables)
    assert warm(cache, first) == 0, "the pages hold the other prompt now"
    assert cache.stats.evictions == 8


def test_the_end_of_a_prefix_is_evicted_before_its_start() -> None:
    cache = make_cache(num_pages=5)
    warm(cache, list(range(32)))
    warm(cache, list(range(100, 116)))
    assert warm(cache, list(range(32))) == 16


def test_e07_a_hole_ends_the_hit() -> None:
    cache = make_cache()
    ids = list(range(32))
    warm(cache, ids)
    evict(cache, 1, token_ids=ids)
    assert warm(cache, ids) == 8
    evict(cache, 0, token_ids=ids)
    assert warm(cache, ids) == 0
    assert warm(cache, ids) == 24, "the hole was filled"


def test_a_hit_is_the_least_over_the_groups() -> None:
    cache = make_cache(Full(), Full())
    ids = list(range(48))
    warm(cache, ids)
    evict(cache, 3, group=1, token_ids=ids)
    assert warm(cache, ids) == 24


def test_a_window_group_needs_only_its_last_pages_and_the_sinks() -> None:
    ids = list(range(81))
    cache = make_cache(Full(), Window(width=12, sinks=3))
    warm(cache, ids)
    evict(cache, *range(1, 8), group=1, token_ids=ids)
    tables, num_hit = run(cache, ids)
    assert num_hit == 80
    assert [p == SCRATCH_PAGE for p in tables.groups[1].pages] == [False, *[True] * 7, *[False] * 3]
    assert tables.groups[1].slots(69, 12) and tables.groups[1].slots(0, 3)
    cache.release(tables)
    evict(cache, 0, group=1, token_ids=ids)
    assert warm(cache, ids) == 0, "the sinks are gone, and with them every hit"


def test_a_window_group_falls_back_to_a_shorter_hit() -> None:
    ids = list(range(81))
    cache = make_cache(Full(), Window(width=12))
    warm(cache, ids)
    evict(cache, 8, group=1, token_ids=ids)
    assert warm(cache, ids) == 64, "the pages before the hole still serve a query at 64"


def test_prompts_longer_than_a_window_pool_flow_through_it() -> None:
    cache = make_cache(Window(width=12), num_pages=4)
    assert cache.capacity_tokens == INT64_MAX
    admitted = cache.admit(range(1000), cache.keys(ROOT))
    assert admitted is not None
    tables, _ = admitted
    for known in range(1000):
        assert cache.room(tables) > known
        assert cache.reserve(tables, known + 1)
        cache.commit(tables, range(1000), known + 1)
    assert cache.stats.used == 2
    cache.release(tables)
    assert cache.stats.used == 0


def test_reserve_takes_from_every_group_or_from_none() -> None:
    cache = make_cache(Full(), Full(), num_pages=(9, 5))
    tables, _ = run(cache, list(range(20)))
    before = cache.stats
    assert not cache.reserve(tables, 33)
    assert cache.stats == before
    assert [table.capacity for table in tables.groups] == [24, 24]
    assert cache.room(tables) == 32
    assert cache.reserve(tables, 32)


def test_a_reserve_that_fails_evicts_nothing() -> None:
    cache = make_cache(num_pages=9)
    warm(cache, list(range(32)))
    tables, _ = run(cache, list(range(100, 108)))
    assert not cache.reserve(tables, 8 * 9)
    assert cache.stats.evictions == 0
    assert warm(cache, list(range(32))) == 24


def test_admit_leaves_what_is_owed_to_others() -> None:
    cache = make_cache(num_pages=9)
    ids = list(range(32))
    assert cache.admit(ids, cache.keys(ROOT), owed=[{"": 5}]) is None
    assert cache.stats.used == 0 and cache.stats.query_tokens == 0
    admitted = cache.admit(ids, cache.keys(ROOT), owed=[{"": 4}])
    assert admitted is not None and cache.missing(admitted[0], 32) == (4,)


def test_admit_counts_the_pages_that_a_hit_takes_out_of_reach() -> None:
    cache = make_cache(num_pages=5)
    ids = list(range(40))
    warm(cache, ids[:32])
    held, _ = run(cache, ids[:16])
    assert cache.stats.cached + cache.stats.free == 2
    # 3 more pages are needed, beside 2 shared ones and 2 cached ones that are hits themselves.
    assert cache.admit(ids, cache.keys(ROOT)) is None
    assert cache.stats.used == 2
    cache.release(held)


def test_equal_pages_are_published_once() -> None:
    cache = make_cache()
    ids = list(range(17))
    both = [cache.admit(ids, cache.keys(ROOT)) for _ in range(2)]
    tables = [admitted[0] for admitted in both if admitted is not None]
    for each in tables:
        assert cache.reserve(each, 17)
        cache.commit(each, ids, 17)
    assert len(cache.allocators[0].index) == 2
    cache.release(tables[1])
    assert cache.stats.cached == 0, "the private copies are free at once"
    cache.release(tables[0])
    assert cache.stats.cached == 2
    assert warm(cache, ids) == 16


def test_rejected_drafts_are_never_found() -> None:
    cache = make_cache()
    known = list(range(15))
    tables, _ = run(cache, known)
    assert cache.reserve(tables, 26)  # 11 tokens are computed, of which drafts at 16 and beyond
    cache.truncate(tables, 16)
    assert tables.groups[0].capacity == 16
    cache.commit(tables, [*known, 15], 16)
    assert len(cache.allocators[0].index) == 2
    assert warm(cache, [*range(24), 99]) == 16


def test_final_tokens_are_not_rolled_back() -> None:
    cache = make_cache()
    tables, _ = run(cache, list(range(20)))
    with pytest.raises(AssertionError, match="final tokens are not rolled back"):
        cache.truncate(tables, 19)
    with pytest.raises(AssertionError, match="become final in order"):
        cache.commit(tables, list(range(20)), 21)


def test_invalidated_content_is_not_found_and_its_pages_are_named() -> None:
    cache = make_cache(Full(), Window(width=4))
    ids = list(range(40))
    first, _ = run(cache, ids[:20])
    second, num_hit = run(cache, ids)
    assert num_hit == 16
    own = set(second.groups[0].pages) - set(first.groups[0].pages)
    spoilt = cache.invalidate(second, ids)
    assert set(spoilt[0]) == own, "shared pages are left to their other holder"
    assert set(second.groups[1].held) <= set(spoilt[1])
    cache.release(second)
    assert warm(cache, ids) == 0, "not even the pages it had found itself"
    cache.release(first)
    assert cache.stats.used == 0


def test_invalidate_names_equal_pages_that_nobody_holds_and_no_other() -> None:
    cache = make_cache()
    (allocator,) = cache.allocators
    ids = list(range(17))
    twins = [cache.admit(ids, cache.keys(ROOT)) for _ in range(2)]
    first, second = (twin[0] for twin in twins if twin is not None)
    for tables in (first, second):
        assert cache.reserve(tables, 17)
        cache.commit(tables, ids, 17)
    found = first.groups[0].pages[:2]
    assert all(page in allocator.index for page in found), "equal pages of the second are not found"
    own = list(second.groups[0].held)
    cache.release(first)
    third, num_hit = run(cache, ids[:8] + [99] * 9)
    assert num_hit == 8 and allocator.references(found[0]) == 1
    (spoilt,) = cache.invalidate(second, ids)
    # Its own, and the one that lay cached; what another reads is left to it.
    assert sorted(spoilt) == sorted([*own, found[1]])
    assert warm(cache, ids) == 0
    cache.release(second)
    cache.release(third)
    assert cache.stats.used == 0


def test_invalidate_names_pages_that_had_left_the_window() -> None:
    cache = make_cache(Window(width=4))
    tables, _ = run(cache, list(range(40)))
    assert cache.stats.cached == 4
    spoilt = cache.invalidate(tables, list(range(40)))
    assert len(spoilt[0]) == 5
    cache.release(tables)
    assert cache.stats.free == 19


def test_without_prefix_cache_nothing_is_found_or_hashed() -> None:
    cache = make_cache(Full(), Window(4), prefix_cache=False)
    ids = list(range(40))
    tables, _ = run(cache, ids)
    assert cache.stats.cached == 0 and cache.stats.used == 6
    assert len(cache.invalidate(tables, ids)[0]) == 5
    cache.release(tables)
    assert cache.stats.free == 38
    assert warm(cache, ids) == 0
    assert cache.stats.used == 0


EXTENTS = st.just(Full()) | st.builds(Window, st.integers(1, 30), st.integers(0, 20))


@given(st.lists(st.tuples(EXTENTS, st.integers(2, 9)), min_size=1, max_size=3))
def test_a_sequence_of_capacity_tokens_fits_alone(groups: list[tuple[Full | Window, int]]) -> None:
    cache = make_cache(*(e for e, _ in groups), num_pages=[number for _, number in groups])
    ids = [0] * min(cache.capacity_tokens, 150)
    admitted = cache.admit(ids, cache.keys(ROOT), max_hit=0)
    assert admitted is not None
    tables, _ = admitted
    for known in range(len(ids)):
        assert cache.reserve(tables, known + 1)
        cache.commit(tables, ids, known + 1)


def test_capacity_is_that_of_the_smallest_group_that_cannot_let_go() -> None:
    assert make_cache(Full(), Full(), num_pages=(9, 5)).capacity_tokens == 32
    # 12 tokens lie in 3 pages at most, the sink in one more.
    assert make_cache(Full(), Window(12, 1), num_pages=(9, 5)).capacity_tokens == 64
    assert make_cache(Full(), Window(12, 1), num_pages=(9, 4)).capacity_tokens == 24


def test_k_th_allocation_failure_leaves_nothing_behind() -> None:
    def workload(fail_at: int) -> tuple[int, PagedCache]:
        cache = make_cache(Full(), Window(12, sinks=1), num_pages=12)
        calls = 0
        for allocator in cache.allocators:

            def take(owner: str, honest=allocator.take) -> int | None:
                nonlocal calls
                calls += 1
                return None if calls == fail_at else honest(owner)

            allocator.take = take
        for ids in (list(range(30)), list(range(50)), list(range(9))):
            admitted = cache.admit(ids, cache.keys(ROOT))
            assert admitted is not None
            tables, done = admitted
            while done < len(ids):
                before = cache.stats
                end = min(done + 11, len(ids))
                if not cache.reserve(tables, end):
                    assert cache.stats.used == before.used
                    assert cache.reserve(tables, end), "only one call fails"
                cache.commit(tables, ids, end)
                done = end
            cache.release(tables)
        return calls, cache

    total, _ = workload(fail_at=0)
    assert total > 10
    for k in range(1, total + 1):
        _, cache = workload(fail_at=k)
        assert cache.stats.used == 0
        assert cache.stats.free + cache.stats.cached == 22


@pytest.mark.parametrize("page_size", [48, 0, -8, 4, 512])
def test_page_size_out_of_range_is_refused(page_size: int) -> None:
    groups = group_layers([CacheSpec((CacheField("key", (1,)),))])
    with pytest.raises(ConfigError) as caught:
        PagedCache(groups, num_pages=[4], page_size=page_size)
    assert str(caught.value) == (
        f"page_size is {page_size}; it must be a power of two from 8 to 256. "
        "Set page_size, or leave it out for 16."
    )


def test_a_cache_without_pages_is_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        make_cache(num_pages=1)
    assert str(caught.value) == (
        "num_pages is 1; a cache group needs at least 2, of which one is scratch. "
        "Give the cache more memory."
    )


def test_it_is_news_that_an_owner_has_gone() -> None:
    groups = group_layers([CacheSpec((CacheField("key", (1,)),))])
    cache = PagedCache(groups, num_pages=[7], page_size=8)
    (allocator,) = cache.allocators
    cached: dict[str, int] = {}
    for owner in ("alice", "bob"):
        page = cached[owner] = allocator.take(owner) or 0
        allocator.publish(owner.encode(), page)
        allocator.release(page)
    assert allocator.take("bob") and allocator.take("bob")
    news, left = cache.news_for("carol"), cache.available_to("carol", owed=[{"bob": 1}])
    allocator.forget(cached["alice"])
    # A share is larger now: as many pages are kept from Carol as before, but Bob's.
    assert cache.available_to("carol", owed=[{"bob": 1}]) > left
    assert cache.news_for("carol") != news
