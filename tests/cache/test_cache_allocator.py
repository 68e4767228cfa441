"""Pages are counted, shared and evicted without ever having two writers."""

from __future__ import annotations

from itertools import combinations_with_replacement
from random import Random

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from cutaway.cache.allocator import POOLS_UNTIL_IDLE, PageAllocator
from cutaway.core.layout import SCRATCH_PAGE


def take(allocator: PageAllocator) -> int:
    page = allocator.take()
    assert page is not None
    return page


def counts(allocator: PageAllocator) -> tuple[int, int, int]:
    return allocator.num_free, allocator.num_cached, allocator.num_used


def test_the_scratch_page_is_never_handed_out() -> None:
    allocator = PageAllocator(5)
    assert sorted(take(allocator) for _ in range(4)) == [1, 2, 3, 4]
    assert allocator.take() is None
    assert SCRATCH_PAGE == 0


def test_a_released_page_is_free_or_cached() -> None:
    allocator = PageAllocator(4)
    known, unknown = take(allocator), take(allocator)
    assert allocator.publish(b"k", known)
    allocator.release(known)
    allocator.release(unknown)
    assert counts(allocator) == (2, 1, 0)
    assert allocator.index.find(b"k") == known


def test_each_page_has_the_letter_of_its_state() -> None:
    allocator = PageAllocator(6)
    cached, shared, used = take(allocator), take(allocator), take(allocator)
    allocator.publish(b"c", cached)
    allocator.publish(b"s", shared)
    allocator.release(cached)
    allocator.share(shared)
    letters = allocator.states()
    assert [letters[page] for page in (SCRATCH_PAGE, cached, shared, used)] == [".", "c", "s", "u"]
    assert letters.count("f") == allocator.num_free == 2 and len(letters) == 6


def test_free_pages_go_before_cached_ones() -> None:
    allocator = PageAllocator(3)
    page = take(allocator)
    allocator.publish(b"k", page)
    allocator.release(page)
    assert take(allocator) != page
    assert allocator.num_evictions == 0


def test_e05_an_evicted_page_cannot_be_found() -> None:
    allocator = PageAllocator(5)
    first = [take(allocator) for _ in range(4)]
    for number, page in enumerate(first):
        allocator.publish(bytes([number]), page)
    for page in first:
        allocator.release(page)
    assert [take(allocator) for _ in range(3)] == first[:3], "released longest ago goes first"
    assert [allocator.index.find(bytes([n])) for n in range(4)] == [None, None, None, first[3]]
    assert len(allocator.index) == 1
    assert allocator.num_evictions == 3


def test_a_hit_saves_a_cached_page_from_eviction() -> None:
    allocator = PageAllocator(3)
    pages = [take(allocator), take(allocator)]
    for page in pages:
        allocator.publish(bytes([page]), page)
        allocator.release(page)
    allocator.share(pages[0])
    assert take(allocator) == pages[1]
    assert allocator.take() is None
    allocator.release(pages[0])
    assert counts(allocator) == (0, 1, 1)


def test_e06_a_shared_page_stays_until_its_last_holder_leaves() -> None:
    allocator = PageAllocator(2)
    page = take(allocator)
    allocator.publish(b"k", page)
    allocator.share(page)
    allocator.share(page)
    for held in (3, 2, 1):
        assert allocator.references(page) == held
        assert allocator.take() is None
        allocator.release(page)
    assert counts(allocator) == (0, 1, 0)


def test_forgotten_pages_are_free_once_nobody_holds_them() -> None:
    allocator = PageAllocator(3)
    held, cached = take(allocator), take(allocator)
    allocator.publish(b"h", held)
    allocator.publish(b"c", cached)
    allocator.release(cached)
    allocator.forget(held)
    allocator.forget(cached)
    assert counts(allocator) == (1, 0, 1)
    allocator.release(held)
    assert counts(allocator) == (2, 0, 0)


def test_our_own_faults_are_assertions() -> None:
    allocator = PageAllocator(3)
    page = take(allocator)
    with pytest.raises(AssertionError, match="only a page that the index knows"):
        allocator.share(page)
    allocator.release(page)
    with pytest.raises(AssertionError, match="more often than it was held"):
        allocator.release(page)
    with pytest.raises(AssertionError, match="only a held page"):
        allocator.publish(b"k", page)
    with pytest.raises(AssertionError, match="at least one other"):
        PageAllocator(1)


class AllocatorMachine(RuleBasedStateMachine):
    """Random holders over 12 pages, against a dictionary that says who holds what."""

    holds = Bundle("holds")

    def __init__(self) -> None:
        super().__init__()
        self.allocator = PageAllocator(13)
        self.holders: dict[int, int] = {}
        self.page_of: dict[bytes, int] = {}  # what may still be found
        self.written: dict[int, bytes] = {}

    @rule(target=holds)
    def start(self) -> int:
        available = self.allocator.num_available
        page = self.allocator.take()
        assert (page is None) == (available == 0)
        if page is None:
            return SCRATCH_PAGE
        assert self.holders.get(page, 0) == 0, "a held page was given to a second owner"
        self.holders[page] = 1
        self.page_of = {k: p for k, p in self.page_of.items() if p != page}
        self.written.pop(page, None)
        return page

    @rule(page=holds, name=st.integers(0, 8))
    def publish(self, page: int, name: int) -> None:
        key = bytes([name])
        if self.holders.get(page, 0) and page not in self.written:
            is_first = key not in self.page_of
            assert self.allocator.publish(key, page) == is_first
            if is_first:
                self.page_of[key] = page
                self.written[page] = key

    @rule(target=holds, name=st.integers(0, 8))
    def share(self, name: int) -> int:
        page = self.allocator.index.find(bytes([name]))
        assert page == self.page_of.get(bytes([name]))
        if page is None:
            return SCRATCH_PAGE
        self.allocator.share(page)
        self.holders[page] = self.holders.get(page, 0) + 1
        return page

    @rule(page=consumes(holds))
    def finish(self, page: int) -> None:
        if self.holders.get(page, 0):
            self.allocator.release(page)
            self.holders[page] -= 1

    @rule(name=st.integers(0, 8))
    def forget(self, name: int) -> None:
        page = self.page_of.pop(bytes([name]), None)
        if page is not None:
            del self.written[page]
            self.allocator.forget(page)

    @invariant()
    def e06_counts_agree(self) -> None:
        held = {page: n for page, n in self.holders.items() if n}
        assert all(self.allocator.references(p) == held.get(p, 0) for p in range(1, 13))
        cached = {page for page in self.page_of.values() if page not in held}
        assert counts(self.allocator) == (12 - len(held) - len(cached), len(cached), len(held))

    @invariant()
    def e05_only_what_is_there_can_be_found(self) -> None:
        found = {bytes([n]): self.allocator.index.find(bytes([n])) for n in range(9)}
        assert {k: p for k, p in found.items() if p is not None} == self.page_of
        assert len(self.allocator.index) == len(self.page_of) <= 12

    def teardown(self) -> None:
        for page, number in self.holders.items():
            for _ in range(number):
                self.allocator.release(page)
        assert self.allocator.num_available == 12


TestE06AllocatorMachine = AllocatorMachine.TestCase


# Owners


def keep(allocator: PageAllocator, owner: str, names: str) -> list[int]:
    """Pages of an owner that stay findable when it has ended, the first one released first."""
    pages: list[int] = []
    for name in names:
        page = allocator.take(owner)
        assert page is not None
        allocator.publish(f"{owner}{name}".encode(), page)
        pages.append(page)
    for page in pages:
        allocator.release(page)
    return pages


def test_a_flood_evicts_its_own_pages_and_leaves_anothers() -> None:
    allocator = PageAllocator(9)
    kept = keep(allocator, "bob", "123")
    for number in range(20):
        keep(allocator, "alice", chr(65 + number))
    assert all(page in allocator.index for page in kept)
    assert allocator.owners() == {"bob": 3, "alice": 5}
    assert allocator.num_evictions == 15


def cache_one(allocator: PageAllocator, name: str, owner: str) -> int:
    """A page that is cached for an owner."""
    page = allocator.take(owner)
    assert page is not None
    allocator.publish(name.encode(), page)
    allocator.set_clock()
    allocator.release(page)
    return page


def test_who_was_not_seen_for_long_has_no_share_until_it_comes_again() -> None:
    allocator = PageAllocator(9)
    kept = [cache_one(allocator, f"bob {number}", "bob") for number in range(4)]
    for number in range(POOLS_UNTIL_IDLE * allocator.num_usable):
        assert not allocator.is_idle("bob") and allocator.available_to("alice") == 4
        cache_one(allocator, f"alice {number}", "alice")
    assert all(page in allocator.index for page in kept), "a flood leaves them for a while"
    cache_one(allocator, "one more", "alice")
    assert allocator.is_idle("bob") and allocator.available_to("alice") == 8
    assert not allocator.is_idle("alice") and not allocator.is_idle("nobody")
    page = allocator.index.find(b"bob 3")
    assert page == kept[3]
    allocator.share(page, "bob")
    assert not allocator.is_idle("bob"), "who holds a page is there"
    allocator.release(page)
    assert not allocator.is_idle("bob") and allocator.available_to("alice") == 4
    for number in range(100):
        cache_one(allocator, f"later {number}", "alice")
    assert allocator.owners() == {"alice": 8}, "after a while they are anybody's"


def test_pages_are_shared_among_those_who_are_not_idle() -> None:
    """Who was not seen for long makes the others' shares no smaller while its pages are there."""
    allocator = PageAllocator(9)
    for number in range(3):
        cache_one(allocator, f"carol {number}", "carol")
    cache_one(allocator, "bob", "bob")
    assert allocator.kept_from("alice")[1] == 3
    for number in range(POOLS_UNTIL_IDLE * allocator.num_usable):
        assert not allocator.is_idle("carol")
        cache_one(allocator, f"bob {number}", "bob")
    assert allocator.is_idle("carol")
    assert allocator.owners() == {"carol": 3, "bob": 5}
    assert (allocator.kept_from("alice"), allocator.kept_from("bob")) == ((4, 2), (0, 1))
    assert allocator.available_to("alice") == 4, "bob's half is bob's"
    assert allocator.kept_from("carol")[1] == 2, "who comes is there"
    for number in range(3 * allocator.num_usable):
        cache_one(allocator, f"alice {number}", "alice")
    assert allocator.owners() == {"alice": 4, "bob": 4}


def test_what_is_kept_from_an_owner_is_asked_anew_when_a_page_is_pinned_or_forgotten() -> None:
    allocator = PageAllocator(9)
    for number in range(4):
        cache_one(allocator, f"bob {number}", "bob")
    held = allocator.take("alice")
    assert held is not None
    assert allocator.kept_from("alice") == (4, 2)
    allocator.pin(held)
    assert allocator.kept_from("carol") == (3, 2), "of 7 that are shared bob's half is 3"
    allocator.unpin(held)
    assert allocator.kept_from("carol") == (4, 2)
    for number in (0, 1):
        found = allocator.index.find(f"bob {number}".encode())
        assert found is not None
        allocator.forget(found)
    assert allocator.kept_from("carol") == (2, 2)


def test_an_owner_that_holds_a_page_is_never_idle() -> None:
    allocator = PageAllocator(9)
    held = allocator.take("bob")
    assert held is not None
    cache_one(allocator, "bob", "bob")
    for number in range(20 * allocator.num_usable):
        cache_one(allocator, f"alice {number}", "alice")
    assert not allocator.is_idle("bob") and allocator.index.find(b"bob") is not None
    allocator.release(held)
    assert not allocator.is_idle("bob"), "it was seen when its answer ended"


def test_what_is_more_than_a_share_goes_oldest_first_whoever_asks() -> None:
    allocator = PageAllocator(9)
    bob = keep(allocator, "bob", "12345")
    keep(allocator, "alice", "abc")
    for number in range(1, 3):  # with a third owner a share is 2 pages and a bit
        assert allocator.take("carol") == bob[number - 1]
    assert allocator.owners() == {"bob": 3, "alice": 3, "carol": 2}


def test_where_all_of_the_rich_are_in_use_the_oldest_of_all_goes() -> None:
    allocator = PageAllocator(5)
    for _ in range(3):
        allocator.take("alice")
    (page,) = keep(allocator, "bob", "1")
    assert allocator.take("alice") == page


def test_a_page_counts_for_whoever_found_it_again() -> None:
    allocator = PageAllocator(5)
    first, second = keep(allocator, "bob", "12")
    allocator.share(first, "alice")
    allocator.share(first, "carol")
    assert allocator.owners() == {"bob": 1, "alice": 1}
    allocator.forget(second)
    assert allocator.owners() == {"alice": 1} and allocator.num_free == 3


def crowd(chance: Random) -> tuple[PageAllocator, dict[int, str]]:
    """An allocator that three owners used at random, and the pages held once with their owners."""
    allocator, held = PageAllocator(chance.randint(4, 30)), dict[int, str]()
    for number in range(chance.randint(0, 60)):
        owner = chance.choice("abc")
        if held and chance.random() < 0.4:
            allocator.release(page := chance.choice(list(held)))
            del held[page]
        elif allocator.available_to(owner):
            page = allocator.take(owner)
            assert page is not None
            held[page] = owner
            if chance.random() < 0.6:
                allocator.publish(bytes([number]), page)
    return allocator, held


def test_what_would_be_available_is_what_is_available_when_pages_have_come_back() -> None:
    others = 0
    for seed in range(400):
        chance = Random(seed)
        allocator, held = crowd(chance)
        back = [page for page in held if chance.random() < 0.5]
        told = {o: allocator.available_to(o, back=back) for o in "abcd"}
        others += any(told[o] < allocator.num_available + len(back) for o in "abcd")
        for page in back:
            allocator.release(page)
        assert told == {o: allocator.available_to(o) for o in "abcd"}, f"seed {seed}"
    assert others > 100, "others kept what is theirs"


def test_pages_that_are_owed_leave_as_many_before_they_are_taken_as_afterwards() -> None:
    kept = 0
    for seed in range(400):
        chance = Random(seed)
        allocator, _ = crowd(chance)
        taker, other = chance.sample("abc", 2)
        num_owed = chance.randint(0, allocator.num_free)
        told = allocator.available_to(other, owed={taker: num_owed})
        kept += told > allocator.available_to(other) - num_owed
        had_any = taker in allocator.owners()
        for _ in range(num_owed):
            allocator.take(taker)
        if had_any:  # else it is one owner more, and shares are smaller
            assert told == allocator.available_to(other), f"seed {seed}"
    assert kept > 20, "it took what nobody else could have had"


def allocator_of(states: tuple[str, ...]) -> PageAllocator:
    """One with a page for each state: A for one that a holds, a for a cached one, none if free."""
    allocator = PageAllocator(len(states) + 1)
    pages = [allocator.take(state.lower()) for state in states]
    for number, (state, page) in enumerate(zip(states, pages, strict=True)):
        assert page is not None
        if state.islower():
            allocator.publish(bytes([number]), page)
        if not state.isupper():
            allocator.release(page)
    return allocator


@pytest.mark.parametrize("num_pages", [1, 2, 3, 4])
def test_what_an_owner_is_told_it_gets_leaves_others_their_shares(num_pages: int) -> None:
    """Whoever has pages beside it, be they as many owners as there are pages."""
    for states in combinations_with_replacement(("", *"abcdABCD"), num_pages):
        for taker in "abcde":
            allocator = allocator_of(states)
            for _ in range(allocator.available_to(taker)):
                before = allocator.owners()
                assert allocator.take(taker) is not None
                after = allocator.owners()
                lost = [n for o, n in before.items() if o != taker and after.get(o, 0) < n]
                share = max(1, num_pages / len({*before, taker}))
                assert all(n > share for n in lost), f"{taker} took from {states}"
