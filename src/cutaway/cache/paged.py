"""Pages of all cache groups for all sequences: admit with prefix hits, reserve, commit, roll back.

Free of torch and of scheduling. It knows token ids only to name full pages. Every verb acts on
all groups or on none, so the groups of a sequence always hold the same tokens.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from cutaway.cache.allocator import PageAllocator
from cutaway.cache.hit import Has, longest_hit
from cutaway.cache.prefix import PageKeys
from cutaway.cache.stores import PageMoves, PageStore
from cutaway.cache.table import PageTable, pages_for, unseen_pages, window_pages
from cutaway.core.errors import ConfigError
from cutaway.core.layout import SCRATCH_PAGE, CacheGroup, Window
from cutaway.core.limits import INT64_MAX
from cutaway.host.faults import again

Owed = Sequence[Mapping[str, int]]  # per group, pages by owner
DEFAULT_PAGE_SIZE = 16
LEAST_PAGE_SIZE, MOST_PAGE_SIZE = 8, 256


@dataclass(eq=False)
class PageTables:
    """Where one sequence's tokens lie: a table per group, in the groups' order."""

    groups: tuple[PageTable, ...]
    keys: PageKeys
    num_committed: int  # tokens whose keys and values are final; never rolled back
    owner: str = ""  # whom the pages count for


@dataclass(frozen=True)
class CacheStats:
    """Pages summed over the groups, and what the prefix index gave since the start.

    query_tokens counts the tokens of admitted sequences, hit_tokens those found in the index.
    """

    free: int
    cached: int
    used: int
    query_tokens: int
    hit_tokens: int
    evictions: int
    pinned: int = 0  # of the used ones
    restored: int = 0  # pages whose content came back from a store


class PagedCache:
    """The pages of every cache group, and the verbs by which sequences come to hold them.

    num_pages: per group, the scratch page included.
    Raises: ConfigError when page_size or a number of pages is out of range.
    """

    def __init__(
        self,
        groups: Sequence[CacheGroup],
        *,
        num_pages: Sequence[int],
        page_size: int = DEFAULT_PAGE_SIZE,
        prefix_cache: bool = True,
    ) -> None:
        _check_sizes(page_size, num_pages)
        assert groups and len(num_pages) == len(groups), "each group has its number of pages"
        self.page_size = page_size
        self.prefix_cache = prefix_cache
        self.allocators = tuple(PageAllocator(number) for number in num_pages)
        self.moves = PageMoves(())
        self._extents = tuple(group.spec.extent for group in groups)
        # Most pages of a group's window, INT64_MAX of one without.
        self._in_window = tuple(
            window_pages(extent, page_size) if isinstance(extent, Window) else INT64_MAX
            for extent in self._extents
        )
        self._windows = [g for g, most in enumerate(self._in_window) if most < INT64_MAX]
        self._query_tokens = 0
        self._hit_tokens = 0

    def attach(self, stores: Sequence[PageStore]) -> None:
        """Have stores behind the pages. Whoever computes takes the moves first."""
        self.moves = PageMoves(stores)
        for group, allocator in enumerate(self.allocators):
            allocator.on_evict = self.moves.hear_of_evicted(group)

    @property
    def capacity_tokens(self) -> int:
        """Longest sequence that fits when it has the cache to itself."""
        return min(
            self._group_capacity(group, allocator.num_shared)
            for group, allocator in enumerate(self.allocators)
        )

    @property
    def available(self) -> tuple[int, ...]:
        """Pages per group that can be handed out now."""
        return tuple([allocator.num_available for allocator in self.allocators])

    def available_to(
        self, owner: str, *, back: Sequence[PageTables] = (), owed: Owed | None = None
    ) -> tuple[int, ...]:
        """Pages per group that an owner gets while others keep what is cached of their shares.

        back: tables that are taken for released. owed: pages that owners have yet to take.
        """
        if not back and not owed:
            return tuple([allocator.available_to(owner) for allocator in self.allocators])
        return tuple(
            [
                allocator.available_to(
                    owner,
                    back=self._coming_back(group, back) if back else (),
                    owed=owed[group] if owed else None,
                )
                for group, allocator in enumerate(self.allocators)
            ]
        )

    def news_for(self, owner: str) -> object:
        """Equals what it was as long as an owner has no more pages to hope for than then."""
        # What is kept from it hangs on what owners have, and on how many of them share the pages.
        allocators = self.allocators
        kept = [allocator.kept_from(owner) for allocator in allocators]
        return sum([allocator.num_returned for allocator in allocators]), kept

    @property
    def stats(self) -> CacheStats:
        """The counts of this moment."""
        return CacheStats(
            free=sum(a.num_free for a in self.allocators),
            cached=sum(a.num_cached for a in self.allocators),
            used=sum(a.num_used for a in self.allocators),
            query_tokens=self._query_tokens,
            hit_tokens=self._hit_tokens,
            evictions=sum(a.num_evictions for a in self.allocators),
            pinned=sum(a.num_pinned for a in self.allocators),
            restored=self.moves.restored_pages,
        )

    def keys(self, root: bytes, pinned: Sequence[bytes] = ()) -> PageKeys:
        """A chain of page keys for a sequence that shares with those of the same root.

        pinned: of the pages of a prefix that has a root of its own; the chain goes on behind it.
        """
        return PageKeys(root, self.page_size, pinned)

    def pages_of_hit(self, num_pages: int) -> tuple[int, ...]:
        """Pages per group that a hit of so many pages holds."""
        tokens = num_pages * self.page_size
        return tuple(
            num_pages - len(unseen_pages(extent, tokens, self.page_size))
            for extent in self._extents
        )

    def unpinned_beside(self, num_tokens: int) -> tuple[int, ...]:
        """Pages per group that may be pinned beside a sequence of so many tokens."""
        return tuple(
            allocator.num_shared - most
            for allocator, most in zip(self.allocators, self.most_pages(num_tokens), strict=True)
        )

    def pin(self, keys: Sequence[bytes]) -> PageTables | None:
        """Hold the pages of a prefix that is in the index until unpin; None where it is not."""
        tables, stored = self._hold_hit(keys, self.keys(b""), "")
        if stored:
            self.release(tables)
            return None
        for table, allocator in zip(tables.groups, self.allocators, strict=True):
            for page in table.held:
                allocator.pin(page)
        return tables

    def unpin(self, tables: PageTables) -> None:
        """Let a pinned prefix go; its pages are cached as others are."""
        for table, allocator in zip(tables.groups, self.allocators, strict=True):
            for page in table.held:
                allocator.unpin(page)
            table.pages.clear()

    def admit(
        self,
        token_ids: Sequence[int],
        keys: PageKeys,
        *,
        max_hit: int | None = None,
        owed: Owed | None = None,
        owner: str = "",
        takes_all: bool = False,
    ) -> tuple[PageTables, int] | None:
        """Tables of a new sequence and how many of its tokens they hold already.

        At least one token is left to compute, and at most max_hit are taken from the index.
        The pages count for owner. takes_all: as for reserve.
        None when the pages to finish token_ids, beside those owed to sequences, are short.
        """
        while True:
            num_hit = self._longest_hit(token_ids, keys, max_hit)
            prefix = keys.between(0, num_hit, token_ids)
            tables, stored = self._hold_hit(prefix, keys, owner)
            is_short, is_whole = True, False
            try:
                missing = self.missing(tables, len(token_ids))
                left = self.available if takes_all else self.available_to(owner, owed=owed)
                is_short = any([m > a for m, a in zip(missing, left, strict=True)])
                is_whole = not is_short and self._restore(tables, prefix, stored)
            finally:
                if not is_whole:
                    again(partial(self.release, tables))
            if is_short:
                return None
            if is_whole:
                break  # else a store has forgotten what it did not have, and has less
        self._query_tokens += len(token_ids)
        self._hit_tokens += tables.num_committed
        return tables, tables.num_committed

    def room(self, tables: PageTables, *, takes_all: bool = False) -> int:
        """Most tokens that the tables could be made to hold now. takes_all: as for reserve."""
        left = self.available if takes_all else self.available_to(tables.owner)
        pairs = zip(tables.groups, left, strict=True)
        return min([len(table.pages) + num_left for table, num_left in pairs]) * self.page_size

    def most_pages(self, num_tokens: int) -> tuple[int, ...]:
        """Most pages per group that a sequence holds that grows to num_tokens, token by token."""
        needed = pages_for(num_tokens, self.page_size)
        return tuple([needed if needed < most else most for most in self._in_window])

    def missing(self, tables: PageTables, num_tokens: int) -> tuple[int, ...]:
        """Pages per group that the tables still lack to grow to num_tokens, token by token."""
        needed = pages_for(num_tokens, self.page_size)
        missing: list[int] = []
        for table, in_window in zip(tables.groups, self._in_window, strict=True):
            # Of every sequence in every step: without a call for each group.
            most = needed if needed < in_window else in_window
            lacks = most - len(table.pages) + table.num_unseen
            missing.append(lacks if lacks > 0 else 0)
        return tuple(missing)

    def reserve(self, tables: PageTables, num_tokens: int, *, takes_all: bool = False) -> bool:
        """Give the tables pages for num_tokens tokens in all; False, and nothing, when short.

        takes_all: cached pages of other owners too that are within their shares.
        """
        needed = -(-num_tokens // self.page_size)  # for every token of every sequence: no call
        for table in tables.groups:
            if len(table.pages) < needed:
                break
        else:
            return True
        before = [len(table.pages) for table in tables.groups]
        # Asked first: a failure must not have evicted anything.
        left = self.available if takes_all else self.available_to(tables.owner)
        pairs = zip(before, left, strict=True)
        if any([needed - length > available for length, available in pairs]):
            return False
        for table, allocator in zip(tables.groups, self.allocators, strict=True):
            while len(table.pages) < needed:
                page = allocator.take(tables.owner)
                if page is None:
                    self._give_back(tables, before)
                    return False
                table.pages.append(page)
        return True

    def commit(self, tables: PageTables, token_ids: Sequence[int], num_computed: int) -> None:
        """Declare the first num_computed tokens final: publish full pages, slide the windows.

        Where an equal page is already findable, that one stays so and ours remains private.
        """
        assert tables.num_committed <= num_computed <= len(token_ids), (
            "tokens become final in order, and only those that the sequence has"
        )
        first, last = tables.num_committed // self.page_size, num_computed // self.page_size
        if self.prefix_cache and last > first:
            keys = tables.keys.between(first, last, token_ids)
            for table, allocator in zip(tables.groups, self.allocators, strict=True):
                for key, page in zip(keys, table.pages[first:last], strict=True):
                    allocator.publish(key, page)
                allocator.set_clock()
        tables.num_committed = num_computed
        for group in self._windows:
            for page in tables.groups[group].slide(num_computed):
                self.allocators[group].release(page)

    def truncate(self, tables: PageTables, num_tokens: int) -> None:
        """Roll back to num_tokens tokens; the pages past them go back."""
        assert num_tokens >= tables.num_committed, (
            "final tokens are not rolled back: others may read them"
        )
        for table, allocator in zip(tables.groups, self.allocators, strict=True):
            for page in table.truncate(num_tokens):
                allocator.release(page)

    def release(self, tables: PageTables) -> None:
        """Give every page back and empty the tables; once more where that was left halfway."""
        for table, allocator in zip(tables.groups, self.allocators, strict=True):
            while table.pages:  # the last token's first: a prefix is evicted from its end
                if table.pages[-1] != SCRATCH_PAGE:
                    allocator.release(table.pages[-1])
                table.pages.pop()
            table.num_unseen = 0
        tables.num_committed = 0

    def invalidate(
        self, tables: PageTables, token_ids: Sequence[int]
    ) -> tuple[tuple[int, ...], ...]:
        """Make the content of the tables unfindable, for a sequence whose numbers were not finite.

        Pages that were hits leave the index as well: one of them may be the cause.
        Returns per group the pages that nobody else holds; they must be zeroed before reuse.
        """
        num_full = tables.num_committed // self.page_size if self.prefix_cache else 0
        keys = tables.keys.between(0, num_full, token_ids)
        spoilt: list[tuple[int, ...]] = []
        for table, allocator in zip(tables.groups, self.allocators, strict=True):
            found = [allocator.index.find(key) for key in keys]
            for key in keys if self.moves.stores else ():
                self.moves.drop(len(spoilt), key)
            for page in found:
                if page is not None:
                    allocator.forget(page)
            own = [page for page in table.held if allocator.references(page) == 1]
            left = [p for p in found if p is not None and allocator.references(p) == 0]
            spoilt.append((*own, *left))
        return tuple(spoilt)

    def _group_capacity(self, group: int, usable: int) -> int:
        return INT64_MAX if self._in_window[group] <= usable else usable * self.page_size

    def _longest_hit(self, token_ids: Sequence[int], keys: PageKeys, max_hit: int | None) -> int:
        """Pages of the longest prefix that every group can still serve."""
        most = len(token_ids) - 1 if max_hit is None else min(len(token_ids) - 1, max_hit)
        if not self.prefix_cache or most < self.page_size:
            return 0
        prefix = keys.between(0, most // self.page_size, token_ids)
        has: list[Has] = [allocator.index.has for allocator in self.allocators]
        if self.moves.stores:
            has = [partial(self._has, group, a) for group, a in enumerate(self.allocators)]
        groups = list(zip(self._extents, has, strict=True))
        return longest_hit(groups, prefix, page_size=self.page_size)

    def _has(self, group: int, allocator: PageAllocator, key: bytes) -> bool:
        return allocator.index.has(key) or self.moves.has(group, key)

    def _hold_hit(
        self, prefix: Sequence[bytes], keys: PageKeys, owner: str
    ) -> tuple[PageTables, list[tuple[int, int]]]:
        """Tables of a hit, and group and index of what a store has of it: no page yet."""
        num_tokens = len(prefix) * self.page_size
        tables: list[PageTable] = []
        stored: list[tuple[int, int]] = []
        for extent, allocator in zip(self._extents, self.allocators, strict=True):
            unseen = unseen_pages(extent, num_tokens, self.page_size)
            pages: list[int] = []
            for index, key in enumerate(prefix):
                page = SCRATCH_PAGE if index in unseen else allocator.index.find(key)
                if page is None:
                    stored.append((len(tables), index))
                    page = SCRATCH_PAGE
                elif page != SCRATCH_PAGE:
                    allocator.share(page, owner)
                pages.append(page)
            tables.append(PageTable(extent, self.page_size, pages))
        return PageTables(tuple(tables), keys, num_tokens, owner), stored

    def _restore(
        self, tables: PageTables, prefix: Sequence[bytes], stored: Sequence[tuple[int, int]]
    ) -> bool:
        """Give what stores have of a hit pages; False where one has not what it seemed to have."""
        for group, index in stored:
            content = self.moves.find(group, prefix[index])
            if content is None:
                self.moves.drop(group, prefix[index])
                return False
            page = self.allocators[group].take(tables.owner)
            assert page is not None, "there were pages for all that is missing"
            table = tables.groups[group]
            table.pages[index] = page
            table.num_unseen -= 1
            self.moves.restore(group, page, content)
            self.allocators[group].publish(prefix[index], page)
        return True

    def _coming_back(self, group: int, released: Sequence[PageTables]) -> list[int]:
        """Pages of a group that nobody would hold any more if the tables were released."""
        holds = Counter(page for tables in released for page in tables.groups[group].held)
        references = self.allocators[group].references
        return [page for page, count in holds.items() if references(page) == count]

    def _give_back(self, tables: PageTables, lengths: Sequence[int]) -> None:
        for table, allocator, length in zip(tables.groups, self.allocators, lengths, strict=True):
            while len(table.pages) > length:
                allocator.release(table.pages.pop())


def check_page_size(page_size: int) -> None:
    """Raise ConfigError unless it is one that caches have."""
    is_power_of_two = page_size > 0 and page_size & (page_size - 1) == 0
    if not is_power_of_two or not LEAST_PAGE_SIZE <= page_size <= MOST_PAGE_SIZE:
        raise ConfigError(
            f"page_size is {page_size}; it must be a power of two from {LEAST_PAGE_SIZE} to "
            f"{MOST_PAGE_SIZE}. Set page_size, or leave it out for {DEFAULT_PAGE_SIZE}."
        )


def _check_sizes(page_size: int, num_pages: Sequence[int]) -> None:
    check_page_size(page_size)
    for number in num_pages:
        if number < 2:
            raise ConfigError(
                f"num_pages is {number}; a cache group needs at least 2, of which one is scratch. "
                "Give the cache more memory."
            )
