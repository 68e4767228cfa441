"""Where the tokens of one sequence lie in one cache group, and which pages a window still needs.

Free of torch. It moves page numbers in and out; the allocator counts them.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np

from cutaway.core.layout import SCRATCH_PAGE, Extent, Window

_MANY = 64  # slots, from which on NumPy makes them sooner than Python


def pages_for(num_tokens: int, page_size: int) -> int:
    """Pages that hold num_tokens tokens from position 0 on."""
    return -(-num_tokens // page_size)


def unseen_pages(extent: Extent, num_tokens: int, page_size: int) -> range:
    """Page indices that no query at position num_tokens or later can see.

    A query at position q sees the keys from q - width + 1 on and the sinks.
    """
    if not isinstance(extent, Window):
        return range(0)
    first_seen = (num_tokens - extent.width + 1) // page_size
    if first_seen <= 0:
        return range(0)
    num_sinks = -(-extent.sinks // page_size)  # for every token: without a call
    return range(num_sinks if num_sinks < first_seen else first_seen, first_seen)


def window_pages(extent: Window, page_size: int) -> int:
    """Most pages that a query and all it sees lie in, wherever the page borders fall."""
    spanned = (extent.width + page_size - 2) // page_size + 1
    return pages_for(extent.sinks, page_size) + spanned


class PageTable:
    """Pages of one sequence in one group, in the order of its tokens.

    Token p lies in pages[p // page_size] at offset p % page_size. A page that has left the
    window is SCRATCH_PAGE here: the mask hides its tokens, so it is never read.
    """

    def __init__(self, extent: Extent, page_size: int, pages: Sequence[int] = ()) -> None:
        self.extent = extent
        self.page_size = page_size
        self.pages = list(pages)
        self.num_unseen = self.pages.count(SCRATCH_PAGE)

    @property
    def capacity(self) -> int:
        """Tokens for which there are pages."""
        return len(self.pages) * self.page_size

    @property
    def held(self) -> list[int]:
        """The pages that this table holds, last token's first.

        Released in this order, the end of a prefix is evicted before its start.
        """
        return [page for page in reversed(self.pages) if page != SCRATCH_PAGE]

    def slots(self, start: int, count: int) -> Sequence[int]:
        """Flat places, page * page_size + offset, of the tokens start to start + count."""
        size = self.page_size
        assert start + count <= self.capacity, "a token has no page; reserve comes first"
        if count == 1:  # for every sequence of every step of decoding
            page = self.pages[start // size]
            assert page != SCRATCH_PAGE, "a token that left the window has no slot"
            return [page * size + start % size]
        first = start // size
        pages = self.pages[first : pages_for(start + count, size)]
        assert SCRATCH_PAGE not in pages, "a token that left the window has no slot"
        if count >= _MANY:
            places = np.array(pages)[:, None] * size + np.arange(size)
            begin = start - first * size
            return array("q", places.ravel()[begin : begin + count].tobytes())
        slots: list[int] = []
        for page in pages:
            slots += range(page * size, (page + 1) * size)
        return slots[start - first * size :][:count]

    def truncate(self, num_tokens: int) -> list[int]:
        """Drop the pages past num_tokens tokens and return them, last first."""
        keep = pages_for(num_tokens, self.page_size)
        if keep >= len(self.pages):
            return []
        dropped = self.pages[keep:]
        assert SCRATCH_PAGE not in dropped, "tokens that left the window cannot be rolled back"
        del self.pages[keep:]
        return dropped[::-1]

    def slide(self, num_tokens: int) -> list[int]:
        """Drop the pages that no query from num_tokens on can see and return them, first first."""
        if not isinstance(self.extent, Window):
            return []
        unseen = unseen_pages(self.extent, num_tokens, self.page_size)
        start = unseen.start + self.num_unseen
        if start >= unseen.stop:
            return []  # most tokens let no page go
        dropped = self.pages[start : unseen.stop]
        self.pages[start : unseen.stop] = [SCRATCH_PAGE] * len(dropped)
        self.num_unseen += len(dropped)
        return dropped
