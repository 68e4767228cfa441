"""A second way on from a sequence's last final token: pages of its own from there, for one step.

Free of torch. Both ways lie at their own places, so each is attended to as if it were alone: what
is summed, and in which order, is what plain decoding sums. The page in which they part is copied.
"""

from __future__ import annotations

from dataclasses import dataclass

from cutaway.cache.paged import PagedCache, PageTables
from cutaway.cache.table import pages_for


@dataclass(eq=False)
class Fork:
    """Pages of the second way, which the first way's tables know nothing of.

    first:  index of its first own page; those before are the tables'.
    pages:  its own of each group; empty once they were given back.
    copies: of each group the page in which the ways part and what it is to be copied to; None
            where they part at a border.
    """

    start: int
    first: int
    pages: list[list[int]]
    copies: tuple[tuple[int, int] | None, ...]

    def pages_of(self, tables: PageTables, group: int) -> list[int]:
        """All pages of the second way in a group, in the order of its tokens."""
        return [*tables.groups[group].pages[: self.first], *self.pages[group]]

    def slots(self, group: int, count: int, page_size: int) -> list[int]:
        """Flat places of its first so many tokens."""
        own, base = self.pages[group], self.first * page_size
        places = range(self.start - base, self.start - base + count)
        return [own[place // page_size] * page_size + place % page_size for place in places]


def fork(cache: PagedCache, tables: PageTables, *, start: int, num_tokens: int) -> Fork | None:
    """Pages for the tokens from start to num_tokens a second time; None, and nothing, when short.

    start: tokens whose keys and values are there, and which both ways have.
    """
    size = cache.page_size
    first = start // size
    needed = pages_for(num_tokens, size) - first
    if needed > min(cache.available_to(tables.owner)):
        return None
    made = Fork(start, first, [[] for _ in tables.groups], ())
    for own, allocator in zip(made.pages, cache.allocators, strict=True):
        while len(own) < needed:
            page = allocator.take(tables.owner)
            if page is None:
                release(cache, made)
                return None
            own.append(page)
    made.copies = tuple(
        (table.pages[first], own[0]) if start % size else None
        for table, own in zip(tables.groups, made.pages, strict=True)
    )
    return made


def adopt(tables: PageTables, other: Fork) -> None:
    """Make the second way the sequence's own; the fork then holds what the first way had."""
    for table, own in zip(tables.groups, other.pages, strict=True):
        own[:], table.pages[other.first :] = table.pages[other.first :], list(own)


def release(cache: PagedCache, other: Fork) -> None:
    """Give its pages back; once more where that was left halfway."""
    for own, allocator in zip(other.pages, cache.allocators, strict=True):
        while own:
            allocator.release(own[-1])
            own.pop()
