"""Pages of one cache group: who holds them, which are free, which may be evicted.

Free of torch and of token ids: a page is a number. Every page but the scratch page is in exactly
one of three states, so that free + cached + used = num_pages - 1 at all times:

  free     nobody holds it, nobody can find it
  cached   nobody holds it, the prefix index can find it; evicted when the free ones are gone
  used     held by one sequence or shared by several
"""

from __future__ import annotations

from collections import OrderedDict

from cutaway.cache.prefix import PrefixIndex
from cutaway.core.layout import SCRATCH_PAGE


class PageAllocator:
    """Hands out pages, counts who holds them and keeps released ones findable while it can."""

    def __init__(self, num_pages: int) -> None:
        assert num_pages > 1, "a group needs the scratch page and at least one other"
        self.index = PrefixIndex()
        self.num_pages = num_pages
        self.num_evictions = 0
        self._references = [0] * num_pages
        # Taken from the end, so the page released last, still warm in a CPU's cache, goes first.
        self._free = [page for page in reversed(range(num_pages)) if page != SCRATCH_PAGE]
        self._cached: OrderedDict[int, None] = OrderedDict()  # released longest ago first

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_cached(self) -> int:
        return len(self._cached)

    @property
    def num_used(self) -> int:
        return self.num_pages - 1 - self.num_available

    @property
    def num_available(self) -> int:
        """Pages that can be handed out now."""
        return len(self._free) + len(self._cached)

    def references(self, page: int) -> int:
        """How many sequences hold the page."""
        return self._references[page]

    def states(self) -> str:
        """A letter for each page: . scratch, f free, c cached, u used, s used by several."""
        letters = ["f" if not held else "u" if held == 1 else "s" for held in self._references]
        letters[SCRATCH_PAGE] = "."
        for page in self._cached:
            letters[page] = "c"
        return "".join(letters)

    def take(self) -> int | None:
        """A page for one writer, or None. It leaves the index at this moment."""
        if self._free:
            page = self._free.pop()
        elif self._cached:
            page, _ = self._cached.popitem(last=False)
            self.index.remove(page)
            self.num_evictions += 1
        else:
            return None
        self._references[page] = 1
        return page

    def share(self, page: int) -> None:
        """Hold a page that the index has found, for reading only."""
        assert page in self.index, "only a page that the index knows can be shared"
        if self._references[page] == 0:
            del self._cached[page]
        self._references[page] += 1

    def release(self, page: int) -> None:
        """Give one hold back; without any, the page is cached if it can be found, else free."""
        assert self._references[page] > 0, "a page was released more often than it was held"
        self._references[page] -= 1
        if self._references[page] > 0:
            return
        if page in self.index:
            self._cached[page] = None
        else:
            self._free.append(page)

    def publish(self, key: bytes, page: int) -> bool:
        """Make a page that is full and final findable; False when an equal one already is."""
        assert self._references[page] > 0, "only a held page has content to publish"
        return self.index.add(key, page)

    def forget(self, page: int) -> None:
        """Make a page unfindable; who holds it keeps it."""
        self.index.remove(page)
        if page in self._cached:
            del self._cached[page]
            self._free.append(page)
