"""Pages of one cache group: who holds them, which are free, which may be evicted.

Free of torch and of token ids: a page is a number. Every page but the scratch page is in exactly
one of three states, so that free + cached + used = num_pages - 1 at all times:

  free     nobody holds it, nobody can find it
  cached   nobody holds it, the prefix index can find it; evicted when the free ones are gone
  used     held by one sequence or shared by several

A page that is not free counts for one owner: who took it, or who found it again when nobody held
it. The pages in equal parts are the owners' shares, a page each at least, and only who holds more
than that is evicted from: a flood of one leaves the others' prefixes where they were. An owner of
whom nothing was seen while others took the whole pool several times has no share any more, and is
none of those among whom pages are shared, until it comes again.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from cutaway.cache.prefix import PrefixIndex
from cutaway.core.layout import SCRATCH_PAGE

# Of an owner that holds nothing, so many times all pages are taken by others before what it has
# cached is anybody's: minutes of a flood. It would stay until a restart else.
POOLS_UNTIL_IDLE = 4
_NOBODY: Final[frozenset[str]] = frozenset()


class PageAllocator:
    """Hands out pages, counts who holds them and keeps released ones findable while it can."""

    def __init__(self, num_pages: int) -> None:
        assert num_pages > 1, "a group needs the scratch page and at least one other"
        self.index = PrefixIndex()
        self.num_pages = num_pages
        self.num_evictions = 0
        # Told of a page that is evicted and its key, while the page still holds what it held.
        self.on_evict: Callable[[bytes, int], None] | None = None
        self.num_returned = 0  # pages that came back: more can be handed out than before
        self._num_taken = 0
        self._now = 0  # the clock by which owners are idle: _num_taken when it was set last
        self._last_seen: dict[str, int] = {}  # of owners for whom a page counts
        self._references = [0] * num_pages
        # Taken from the end, so the page released last, still warm in a CPU's cache, goes first.
        self._free = [page for page in reversed(range(num_pages)) if page != SCRATCH_PAGE]
        self._owner_of = [""] * num_pages
        self._pinned: Counter[int] = Counter()  # pages that count for nobody, and how often
        self._held: Counter[str] = Counter()  # pages of each owner, used and cached
        # By owner, page to when it came back: the one that did so longest ago stands first.
        self._cached: dict[str, OrderedDict[int, int]] = {}
        self._num_cached = 0
        # What kept_from told since a page last changed its state or its owner: asked several times
        # in a step, of which most move no page.
        self._kept_from: dict[str, tuple[int, int]] = {}

    @property
    def num_usable(self) -> int:
        """All pages but the scratch page."""
        return self.num_pages - 1

    @property
    def num_free(self) -> int:
        """Pages that nobody holds and nobody can find."""
        return len(self._free)

    @property
    def num_cached(self) -> int:
        """Pages that nobody holds and the prefix index can find."""
        return self._num_cached

    @property
    def num_used(self) -> int:
        """Pages held by a sequence or more."""
        return self.num_usable - self.num_available

    @property
    def num_available(self) -> int:
        """Pages that can be handed out now."""
        return len(self._free) + self._num_cached

    @property
    def num_pinned(self) -> int:
        """Pages that stay whatever comes; they are used, and count for nobody."""
        return len(self._pinned)

    @property
    def num_shared(self) -> int:
        """Pages that owners have between them."""
        return self.num_usable - self.num_pinned

    def kept_from(self, owner: str) -> tuple[int, int]:
        """Pages that can be handed out but not to this owner, and among how many pages are shared.

        When it comes, that is: idle ones are none of those.
        """
        if len(self._cached) <= (owner in self._cached):
            return 0, len(self._held) + (owner not in self._held)
        known = self._kept_from.get(owner)
        if known is None:
            cached = {other: len(pages) for other, pages in self._cached.items()}
            known = self._kept_from[owner] = self._kept(owner, self._held, cached, None)
        return known

    def available_to(
        self, owner: str, *, back: Sequence[int] = (), owed: Mapping[str, int] | None = None
    ) -> int:
        """Pages that an owner gets without taking cached ones from others within their shares.

        back: held pages that are taken for released, by all who hold them.
        owed: pages that owners have yet to take. Beyond its share each takes what it has cached,
        which nobody else could have had: so what is left is the same before and after. Within its
        share it does so too while no page is free and none is back, and then more is left after.
        """
        available = len(self._free) + self._num_cached + len(back)
        if owed:
            available -= sum(owed.values())
        if not back and len(self._cached) <= (owner in self._cached):
            return available
        if not back and not owed:
            return available - self.kept_from(owner)[0]
        held = self._held
        cached = {other: len(pages) for other, pages in self._cached.items()}
        if back:
            held = held.copy()
            for page in back:
                other = self._owner_of[page]
                if page in self.index:
                    cached[other] = cached.get(other, 0) + 1
                else:
                    held[other] -= 1
            held += Counter()  # who has none left is no owner
        return available - self._kept(owner, held, cached, owed)[0]

    def is_idle(self, owner: str) -> bool:
        """Whether an owner holds no page and was not seen for long: it has no share then."""
        return owner in self._cached and owner in self._idle_beside(None)

    def references(self, page: int) -> int:
        """How many sequences hold the page."""
        return self._references[page]

    def owners(self) -> dict[str, int]:
        """Pages that count for each owner; owners without any are not named."""
        return dict(self._held)

    def states(self) -> str:
        """A letter for each page: . scratch, f free, c cached, u used, s used by several."""
        letters = ["f" if not held else "u" if held == 1 else "s" for held in self._references]
        letters[SCRATCH_PAGE] = "."
        for pages in self._cached.values():
            for page in pages:
                letters[page] = "c"
        return "".join(letters)

    def take(self, owner: str = "") -> int | None:
        """A page for one writer, or None. It leaves the index at this moment."""
        if self._free:
            page = self._free.pop()
        elif self._num_cached:
            page = next(iter(self._cached[self._evictable(owner)]))
            self._uncache(page)
            self._discharge(page)
            key = self.index.remove(page)
            self.num_evictions += 1
            if self.on_evict is not None and key is not None:
                self.on_evict(key, page)
        else:
            return None
        self._num_taken += 1
        self._references[page] = 1
        self._charge(page, owner)
        return page

    def share(self, page: int, owner: str = "") -> None:
        """Hold a page that the index has found, for reading only."""
        assert page in self.index, "only a page that the index knows can be shared"
        if self._references[page] == 0:
            self._uncache(page)
            self._discharge(page)
            self._charge(page, owner)
        self._references[page] += 1

    def release(self, page: int) -> None:
        """Give one hold back; without any, the page is cached if it can be found, else free."""
        assert self._references[page] > 0, "a page was released more often than it was held"
        self._references[page] -= 1
        if self._references[page] > 0:
            return
        self.num_returned += 1
        owner = self._owner_of[page]
        self._last_seen[owner] = self._num_taken
        if page not in self.index:
            self._set_free(page)
            return
        pages = self._cached.setdefault(owner, OrderedDict())
        pages[page] = self.num_returned
        self._num_cached += 1
        self._kept_from.clear()

    def pin(self, page: int) -> None:
        """Let a held page count for nobody, as long as whoever pins it holds it."""
        assert self._references[page] > 0, "only a held page is pinned"
        if not self._pinned[page]:
            self._discharge(page)
        self._pinned[page] += 1

    def unpin(self, page: int) -> None:
        """Take a pin back, and its hold with it."""
        self._pinned[page] -= 1
        if not self._pinned[page]:
            del self._pinned[page]
            self._charge(page, self._owner_of[page])
        self.release(page)

    def publish(self, key: bytes, page: int) -> bool:
        """Make a page that is full and final findable; False when an equal one already is."""
        assert self._references[page] > 0, "only a held page has content to publish"
        return self.index.add(key, page)

    def set_clock(self) -> None:
        """Let owners become idle that were not seen for long.

        Not amid taking: others' shares would grow over pages that were counted on.
        """
        if self._now != self._num_taken:
            self._now = self._num_taken
            self._kept_from.clear()

    def forget(self, page: int) -> None:
        """Make a page unfindable; who holds it keeps it."""
        is_cached = self._references[page] == 0 and page in self.index
        self.index.remove(page)
        if is_cached:
            self._uncache(page)
            self._set_free(page)

    def _kept(
        self,
        owner: str,
        held: Counter[str],
        cached: Mapping[str, int],
        owed: Mapping[str, int] | None,
    ) -> tuple[int, int]:
        """Pages that can be handed out but not to an owner, and among how many they are shared.

        held, cached, owed: of each owner, all pages, those cached, and those it has yet to take.
        """
        idle = self._idle_beside(owner)
        num_sharers = len(held) + (owner not in held) - len(idle)
        # A page at least: with an owner whose last one went shares would grow amid taking.
        share = (self.num_pages - 1 - len(self._pinned)) // num_sharers or 1
        kept = 0
        for other, num_cached in cached.items():
            if other == owner:
                continue
            num_above = held[other] if other in idle else held[other] - share
            if owed:
                num_above += owed.get(other, 0)
            if num_above < num_cached:
                kept += num_cached if num_above < 0 else num_cached - num_above
        return kept, num_sharers

    def _evictable(self, taker: str) -> str:
        """Whose oldest page goes: of those who hold more than a share, the one released first.

        When all of theirs are in use, the taker's own; of all, when it has none.
        """
        if len(self._cached) == 1:
            return next(iter(self._cached))
        idle = self._idle_beside(taker)
        num_sharers = len(self._held) + (taker not in self._held) - len(idle)
        rich = [
            o for o in self._cached if self._held[o] * num_sharers > self.num_shared or o in idle
        ]
        if not rich and taker in self._cached:
            return taker
        return min(rich or self._cached, key=lambda o: next(iter(self._cached[o].values())))

    def _idle_beside(self, owner: str | None) -> frozenset[str]:
        """Who is idle; whoever comes now is not."""
        seen_since = self._now - POOLS_UNTIL_IDLE * (self.num_pages - 1 - len(self._pinned))
        last_seen, idle = self._last_seen, _NOBODY
        for each, pages in self._cached.items():
            if last_seen[each] < seen_since and len(pages) >= self._held[each] and each != owner:
                idle = idle | {each}  # hardly ever: most askings make no set
        return idle

    def _uncache(self, page: int) -> None:
        owner = self._owner_of[page]
        del self._cached[owner][page]
        if not self._cached[owner]:
            del self._cached[owner]
        self._num_cached -= 1
        self._kept_from.clear()

    def _charge(self, page: int, owner: str) -> None:
        self._owner_of[page] = owner
        self._held[owner] += 1
        self._last_seen[owner] = self._num_taken
        self._kept_from.clear()

    def _discharge(self, page: int) -> None:
        owner = self._owner_of[page]
        self._held[owner] -= 1
        if not self._held[owner]:
            del self._held[owner]  # owners come and go
            del self._last_seen[owner]
        self._kept_from.clear()

    def _set_free(self, page: int) -> None:
        self._discharge(page)
        self._free.append(page)
