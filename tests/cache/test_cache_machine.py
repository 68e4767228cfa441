"""Random life of many sequences over one small cache, with the content of every slot checked.

The content of a position is its whole prefix, so a page that is read under the wrong name shows.
Who took a page, or found it again when nobody held it, is kept beside: what counts for an owner,
and what it loses to others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from cutaway.cache.allocator import POOLS_UNTIL_IDLE
from cutaway.cache.fork import adopt, fork, release
from cutaway.cache.hit import longest_hit
from cutaway.cache.paged import PagedCache, PageTables
from cutaway.cache.prefix import PrefixIndex
from cutaway.cache.stores import SavePage, StoreStats
from cutaway.cache.table import unseen_pages
from cutaway.core.layout import SCRATCH_PAGE, CacheField, CacheSpec, Full, Window, group_layers

EXTENTS = st.sampled_from((Full(), Window(3), Window(8), Window(11, 2), Window(20, 9)))
TOKENS = st.integers(0, 1)
OWNERS = ("alice", "bob", "carol")
SIZE = 8


@dataclass
class Live:
    """One sequence: what it knows, and how much of it is stored."""

    root: bytes
    token_ids: list[int]
    tables: PageTables

    @property
    def stored(self) -> int:
        return self.tables.num_committed


class ForgetfulStore:
    """Keeps what leaves the cache, and does not find every third page that it said it has."""

    takes_evicted = True
    stats = StoreStats(kind="test")

    def __init__(self) -> None:
        self.held: dict[tuple[int, bytes], Any] = {}
        self.num_asked = 0

    def has(self, group: int, key: bytes) -> bool:
        return (group, key) in self.held

    def find(self, group: int, key: bytes) -> Any:
        self.num_asked += 1
        return None if self.num_asked % 3 == 0 else self.held[group, key]

    def put(self, group: int, key: bytes, content: Any) -> None:
        self.held[group, key] = content

    def drop(self, group: int, key: bytes) -> None:
        self.held.pop((group, key), None)

    def close(self, seconds: float) -> None:
        pass


class CacheMachine(RuleBasedStateMachine):
    @initialize(
        groups=st.lists(st.tuples(EXTENTS, st.integers(4, 12)), min_size=1, max_size=3),
        prefix_cache=st.sampled_from((True, True, True, False)),
        has_store=st.booleans(),
    )
    def build(
        self, groups: list[tuple[Full | Window, int]], prefix_cache: bool, has_store: bool
    ) -> None:
        specs = [CacheSpec((CacheField(f"k{i}", (1,)),), e) for i, (e, _) in enumerate(groups)]
        self.cache = PagedCache(
            group_layers(specs),
            num_pages=[number for _, number in groups],
            page_size=SIZE,
            prefix_cache=prefix_cache,
        )
        self.memory: list[dict[int, tuple]] = [{} for _ in groups]
        self.extents = [group.spec.extent for group in group_layers(specs)]
        self.owner_of: list[dict[int, str]] = [{} for _ in groups]
        self.live: list[Live] = []
        self.cache.attach([ForgetfulStore()] if has_store else [])

    def settle(self) -> None:
        """What is moved before the next forward, in its order."""
        for move in self.cache.moves.take():
            memory = self.memory[move.group]
            slots = range(move.page * SIZE, move.page * SIZE + SIZE)
            if isinstance(move, SavePage):
                move.store.put(move.group, move.key, [memory.get(slot, ()) for slot in slots])
            else:
                memory.update(zip(slots, move.content, strict=True))

    @rule(
        head=st.sampled_from((0, 8, 16, 33, 50)),
        tail=st.lists(TOKENS, min_size=1, max_size=9),
        root=st.sampled_from((b"a", b"b")),
        owner=st.sampled_from(OWNERS),
        num_owed=st.sampled_from((0, 0, 1, 3)),
        is_alone=st.booleans(),
    )
    def start(
        self, head: int, tail: list[int], root: bytes, owner: str, num_owed: int, is_alone: bool
    ) -> None:
        token_ids = [0] * head + tail
        takes_all = is_alone and not self.live
        owed = None if takes_all else [{OWNERS[0]: num_owed} for _ in self.memory]
        before = self.cached()
        admitted = self.cache.admit(
            token_ids, self.cache.keys(root), owed=owed, owner=owner, takes_all=takes_all
        )
        if self.cache.moves.stores:
            self.charge_tried(owner, before)
        if admitted is not None:
            tables, num_hit = admitted
            assert num_hit < len(token_ids) and tables.owner == owner
            self.live.append(Live(root, token_ids, tables))
            self.charge(tables, before)
            self.settle()
            self.check_visible(self.live[-1])
            # What it was admitted for is there, beside what is owed.
            left = self.cache.available_to(owner, owed=owed)
            missing = self.cache.missing(tables, len(token_ids))
            assert takes_all or all(m <= a for m, a in zip(missing, left, strict=True))
        else:
            self.charge_found(token_ids, root, owner, before)

    @precondition(lambda self: self.live)
    @rule(who=st.integers(0, 99), count=st.integers(1, 20), drafts=st.lists(TOKENS, max_size=9),
          accepted=st.integers(0, 9), sampled=TOKENS)  # fmt: skip
    def compute(self, who: int, count: int, drafts: list[int], accepted: int, sampled: int) -> None:
        each = self.live[who % len(self.live)]
        start, known = each.stored, len(each.token_ids)
        if start + count < known:
            drafts = []
        computed = [*each.token_ids[: start + count], *drafts]
        room = self.cache.room(each.tables)
        before, held = self.cached(), [a.owners() for a in self.cache.allocators]
        seen = [dict(a._last_seen) for a in self.cache.allocators]
        reserved = self.cache.reserve(each.tables, len(computed))
        assert reserved == (len(computed) <= room), "room says what reserve does"
        self.check_shares(each.tables.owner, before, held, seen)
        self.charge(each.tables, before)
        self.settle()
        if not reserved:
            return
        for memory, table in zip(self.memory, each.tables.groups, strict=True):
            slots = table.slots(start, len(computed) - start)
            for slot, end in zip(slots, range(start, len(computed)), strict=True):
                memory[slot] = (each.root, *computed[: end + 1])
        self.check_visible(each, computed)
        valid = len(computed) - len(drafts[accepted:])
        each.token_ids[known:] = [*computed[known:valid], *([sampled] if valid >= known else [])]
        self.cache.truncate(each.tables, valid)
        self.cache.commit(each.tables, each.token_ids, valid)

    @precondition(lambda self: self.live)
    @rule(
        who=st.integers(0, 99),
        ways=st.tuples(*[st.lists(TOKENS, min_size=9, max_size=9)] * 2),
        count=st.integers(1, 9),
        accepted=st.integers(0, 9),
        takes_other=st.booleans(),
    )
    def verify_two_ways(
        self,
        who: int,
        ways: tuple[list[int], list[int]],
        count: int,
        accepted: int,
        takes_other: bool,
    ) -> None:
        """Guesses in two versions, over page borders, of which one becomes the sequence's own."""
        each = self.live[who % len(self.live)]
        start, before = each.stored, self.cached()
        known, end = each.token_ids, start + 1 + count
        if start + 1 != len(known) or not self.cache.reserve(each.tables, end):
            return
        self.charge(each.tables, before)
        held = self.cache.stats.used
        other = fork(self.cache, each.tables, start=start, num_tokens=end)
        if other is None:
            assert self.cache.stats.used == held, "all or nothing"
            self.cache.truncate(each.tables, start)
            return
        for owner_of, own in zip(self.owner_of, other.pages, strict=True):
            owner_of |= {page: each.tables.owner for page in own}
        texts = [[*known, *way[:count]] for way in ways]
        self.settle()
        for group, memory in enumerate(self.memory):
            if (pair := other.copies[group]) is not None:
                for place in range(SIZE):
                    memory[pair[1] * SIZE + place] = memory.get(pair[0] * SIZE + place, ())
            own = each.tables.groups[group].slots(start, 1 + count)
            second = other.slots(group, 1 + count, SIZE)
            assert not {*own} & {*second}, "both ways write the same slot"
            for slots, text in zip((own, second), texts, strict=True):
                for slot, stop in zip(slots, range(start, end), strict=True):
                    memory[slot] = (each.root, *text[: stop + 1])
        if takes_other:
            adopt(each.tables, other)
        release(self.cache, other)
        assert not any(other.pages)
        text = texts[takes_other]
        self.check_visible(each, text)
        valid = start + 1 + min(accepted, count)
        each.token_ids[:] = [*text[:valid], 0]
        self.cache.truncate(each.tables, valid)
        self.cache.commit(each.tables, each.token_ids, valid)

    @precondition(lambda self: self.live)
    @rule(who=st.integers(0, 99))
    def finish(self, who: int) -> None:
        self.cache.release(self.live.pop(who % len(self.live)).tables)

    @precondition(lambda self: self.live)
    @rule(who=st.integers(0, 99))
    def fail(self, who: int) -> None:
        each = self.live.pop(who % len(self.live))
        spoilt = self.cache.invalidate(each.tables, each.token_ids)
        self.cache.release(each.tables)
        self.settle()
        for memory, pages in zip(self.memory, spoilt, strict=True):
            for page in pages:
                for slot in range(page * SIZE, page * SIZE + SIZE):
                    memory.pop(slot, None)

    @precondition(lambda self: self.live)
    @rule(who=st.integers(0, 99))
    def would_finish(self, who: int) -> None:
        """What would come back is what comes back."""
        gone = self.live.pop(who % len(self.live)).tables
        told = [self.cache.available_to(owner, back=[gone]) for owner in OWNERS]
        self.cache.release(gone)
        assert told == [self.cache.available_to(owner) for owner in OWNERS]

    def cached(self) -> list[set[int]]:
        """Pages per group that nobody holds and that can be found."""
        return [
            {p for p in range(1, a.num_pages) if p in a.index and not a.references(p)}
            for a in self.cache.allocators
        ]

    def charge(self, tables: PageTables, before: list[set[int]]) -> None:
        """Note for whom pages count now that were free or cached before a sequence held them."""
        for owner_of, table, cached in zip(self.owner_of, tables.groups, before, strict=True):
            for page in table.held:
                if page in cached or page not in owner_of:
                    owner_of[page] = tables.owner

    def charge_tried(self, owner: str, before: list[set[int]]) -> None:
        """Where a store forgot, a longer hit was tried first: what it found counts too."""
        owners = zip(self.owner_of, self.cache.allocators, before, strict=True)
        for owner_of, allocator, cached in owners:
            for page in cached & owner_of.keys():
                if allocator._owner_of[page] == owner:
                    owner_of[page] = owner

    def charge_found(
        self, token_ids: list[int], root: bytes, owner: str, before: list[set[int]]
    ) -> None:
        """Whoever finds pages that nobody holds has them counted, though it is not admitted."""
        prefix = self.cache.keys(root).between(0, (len(token_ids) - 1) // SIZE, token_ids)
        groups = [(e, a.index) for e, a in zip(self.extents, self.cache.allocators, strict=True)]
        has = [(extent, _has(index)) for extent, index in groups]
        num_hit = longest_hit(has, prefix, page_size=SIZE) if self.cache.prefix_cache else 0
        for group, (extent, index) in enumerate(groups):
            unseen = unseen_pages(extent, num_hit * SIZE, SIZE)
            found = {index.find(k) for i, k in enumerate(prefix[:num_hit]) if i not in unseen}
            for page in found & before[group]:
                self.owner_of[group][page] = owner

    def check_shares(
        self,
        taker: str,
        before: list[set[int]],
        held: list[dict[str, int]],
        seen: list[dict[str, int]],
    ) -> None:
        """Nobody loses what it has cached within its share, but who was not seen for long."""
        allocators = zip(self.cache.allocators, self.cached(), strict=True)
        for group, (allocator, now) in enumerate(allocators):
            share = allocator.num_usable // len({*held[group], taker})
            lost = Counter(self.owner_of[group][page] for page in before[group] - now)
            for owner, count in lost.items():
                most = max(0, held[group][owner] - share)
                unseen = allocator._num_taken - seen[group][owner]
                is_idle = unseen > POOLS_UNTIL_IDLE * allocator.num_usable
                assert owner == taker or is_idle or count <= most, f"{owner} lost {count} pages"

    @invariant()
    def a_page_counts_for_who_took_it(self) -> None:
        for owner_of, allocator in zip(self.owner_of, self.cache.allocators, strict=True):
            for page in list(owner_of):
                if not allocator.references(page) and page not in allocator.index:
                    del owner_of[page]
            assert allocator.owners() == dict(Counter(owner_of.values()))

    @invariant()
    def what_is_kept_from_an_owner_is_remembered_while_it_holds(self) -> None:
        for allocator in self.cache.allocators:
            for owner in OWNERS:
                told = allocator.kept_from(owner)
                allocator._kept_from.clear()
                assert allocator.kept_from(owner) == told

    def check_visible(self, each: Live, computed: list[int] | None = None) -> None:
        """All that queries from the first unstored position on can see is the sequence's own."""
        known = computed if computed is not None else each.token_ids[: each.stored]
        for memory, table in zip(self.memory, each.tables.groups, strict=True):
            extent, start, sinks = table.extent, 0, 0
            if isinstance(extent, Window):
                start = min(len(known), max(0, each.stored - extent.width + 1))
                sinks = min(extent.sinks, len(known))
            for end in (*range(sinks), *range(start, len(known))):
                assert memory[table.slots(end, 1)[0]] == (each.root, *known[: end + 1])

    @invariant()
    def e06_counts_agree(self) -> None:
        for group, allocator in enumerate(self.cache.allocators):
            held = Counter(page for each in self.live for page in each.tables.groups[group].held)
            for page in range(1, allocator.num_pages):
                assert allocator.references(page) == held[page]
            assert allocator.num_used == len(held)
            total = allocator.num_free + allocator.num_cached + allocator.num_used
            assert total == allocator.num_pages - 1

    @invariant()
    def e06_nobody_can_write_what_another_can_read(self) -> None:
        for each in self.live:
            for table, allocator in zip(each.tables.groups, self.cache.allocators, strict=True):
                for page in table.pages[each.stored // SIZE :]:
                    assert allocator.references(page) == 1 and page not in allocator.index

    @invariant()
    def windows_hold_what_they_need_and_no_more(self) -> None:
        for each in self.live:
            for table in each.tables.groups:
                gone = [i for i, page in enumerate(table.pages) if page == SCRATCH_PAGE]
                assert gone == list(unseen_pages(table.extent, each.stored, SIZE))

    def teardown(self) -> None:
        for each in self.live:
            self.cache.release(each.tables)
        stats = self.cache.stats
        assert stats.used == 0
        assert stats.free + stats.cached == sum(a.num_pages - 1 for a in self.cache.allocators)


def _has(index: PrefixIndex) -> Callable[[bytes], bool]:
    return lambda key: index.find(key) is not None


CacheMachine.TestCase.settings = settings(max_examples=100, stateful_step_count=40)
TestE05E06CacheMachine = CacheMachine.TestCase
