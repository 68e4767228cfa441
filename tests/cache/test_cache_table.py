"""Slots, rollback and windows of one sequence's page table, against position-by-position counts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutaway.cache.table import (
    PageTable,
    pages_for,
    unseen_pages,
    window_pages,
)
from cutaway.core.layout import SCRATCH_PAGE, Full, Window

WINDOWS = st.builds(Window, st.integers(1, 40), st.integers(0, 20))
PAGE_SIZES = st.sampled_from((1, 2, 8, 16))


def seen(extent: Window, query: int) -> set[int]:
    """Positions that a query sees, one by one."""
    near = range(max(0, query - extent.width + 1), query + 1)
    return {*near, *range(min(extent.sinks, query + 1))}


def test_slots_follow_the_pages() -> None:
    table = PageTable(Full(), 4, [7, 2, 5])
    assert table.capacity == 12
    assert table.slots(2, 7) == [30, 31, 8, 9, 10, 11, 20]
    assert table.slots(12, 0) == []
    with pytest.raises(AssertionError, match="reserve comes first"):
        table.slots(12, 1)


@given(st.lists(st.integers(1, 99), max_size=6), PAGE_SIZES, st.data())
def test_slots_are_page_times_size_plus_offset(
    pages: list[int], size: int, data: st.DataObject
) -> None:
    table = PageTable(Full(), size, pages)
    start = data.draw(st.integers(0, table.capacity))
    count = data.draw(st.integers(0, table.capacity - start))
    expected = [pages[p // size] * size + p % size for p in range(start, start + count)]
    assert list(table.slots(start, count)) == expected


def test_many_slots_are_what_they_are_one_by_one() -> None:
    table = PageTable(Full(), 16, [3, 1, 2, 5, 4])
    assert list(table.slots(5, 70)) == [table.slots(place, 1)[0] for place in range(5, 75)]


def test_truncate_returns_the_pages_past_the_end() -> None:
    table = PageTable(Full(), 4, [7, 2, 5, 9])
    assert table.truncate(5) == [9, 5]
    assert table.pages == [7, 2]
    assert table.truncate(8) == []
    assert table.truncate(0) == [2, 7]


def test_full_tables_keep_every_page() -> None:
    table = PageTable(Full(), 4, [7, 2, 5])
    assert table.slide(12) == []
    assert table.held == [5, 2, 7]


def test_window_tables_free_what_no_query_sees() -> None:
    table = PageTable(Window(width=5, sinks=1), 4, [1, 2, 3, 4, 5, 6])
    assert table.slide(11) == []  # the query at 11 sees 7 to 11: page 1 is still in
    assert table.slide(12) == [2]  # 8 to 12
    assert table.pages == [1, SCRATCH_PAGE, 3, 4, 5, 6]
    assert table.slide(12) == []
    assert table.slide(24) == [3, 4, 5]
    assert table.held == [6, 1]
    assert table.num_unseen == 4


def test_a_token_that_left_the_window_has_no_slot_and_no_way_back() -> None:
    table = PageTable(Window(width=2), 4, [1, 2, 3])
    table.slide(9)
    with pytest.raises(AssertionError, match="left the window"):
        table.slots(3, 2)
    with pytest.raises(AssertionError, match="cannot be rolled back"):
        table.truncate(0)


@given(WINDOWS, st.integers(0, 120), PAGE_SIZES)
def test_unseen_pages_are_exactly_those_that_later_queries_cannot_see(
    extent: Window, num_tokens: int, size: int
) -> None:
    later = range(num_tokens, num_tokens + 2 * extent.width)
    needed = {p // size for query in later for p in seen(extent, query) if p < num_tokens}
    unseen = set(range(num_tokens // size)) - needed
    # A page that is only partly full is always kept: the next token goes there.
    assert set(unseen_pages(extent, num_tokens, size)) == unseen


@given(WINDOWS, st.integers(1, 150), PAGE_SIZES)
def test_no_more_than_a_windows_pages_are_held_while_growing_token_by_token(
    extent: Window, num_tokens: int, size: int
) -> None:
    table = PageTable(extent, size)
    held = 0
    for known in range(num_tokens):
        if table.capacity == known:
            table.pages.append(1)
        held = max(held, len(table.held))
        table.slide(known + 1)
    assert held <= min(window_pages(extent, size), pages_for(num_tokens, size))


@given(WINDOWS, PAGE_SIZES)
def test_window_pages_is_what_the_worst_placed_query_needs(extent: Window, size: int) -> None:
    far = 10 * (extent.width + extent.sinks) * size  # its window is clear of the sinks
    queries = range(far, far + size)
    assert window_pages(extent, size) == max(
        len({position // size for position in seen(extent, query)}) for query in queries
    )
