"""Random scenarios with a fake model keep every promise, and known faults are found by them."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from cutaway.cache import hit, paged, prefix, table
from cutaway.cache.allocator import PageAllocator
from cutaway.cache.paged import PagedCache
from cutaway.engine import scheduler as scheduling
from cutaway.engine.admission.shares import Shares
from cutaway.engine.admission.waiting import WaitingQueue
from cutaway.engine.scheduler import Scheduler


def load_simulator() -> ModuleType:
    path = Path(__file__).parents[2] / "bench" / "simulate_scheduler.py"
    spec = importlib.util.spec_from_file_location("simulate_scheduler", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


simulator = load_simulator()


def test_120_seeds_keep_every_promise() -> None:
    totals, failures = simulator.run_seeds(range(120))
    assert [f.seed for f in failures] == [], failures[0].text
    # Whatever may go wrong did happen, so the promises were put to the test.
    for what in ("finished", "hit_tokens", "evictions", "accepted_drafts"):
        assert getattr(totals, what) > 100, what
    for what in ("preemptions", "aborted", "failed", "refused", "failed_allocations"):
        assert getattr(totals, what) > 20, what


# What scenarios of 1,000 steps found: an answer preempted for a newcomer that did not start; one
# that nobody asked again when an owner had gone, or when pages were owed to whoever has its own;
# one that was preempted and back within a step, in which it then was twice; one whose tokens in a
# step went to who has most when it was preempted. Steps of who has most that were as long as if a
# prompt that gave way still stood beside them; a turn that was lost with the pages; and two checks
# that took who starts beside pages which came up amid a step for one who had waited beside them.
# Another such step, beside a prompt that was not counted, since an answer gave way to it;
# and an owner found idle amid a reserve, which then took pages of another's share, as another did
# that took the last page of one among more owners than there were pages.
@pytest.mark.parametrize(
    ("seed", "num_steps"),
    [
        *((seed, 1000) for seed in (20049, 30147, 30251, 30382, 40798, 10785, 70038)),
        *((10100240, 240), (10130170, 400), (10250118, 920), (33380080, 920)),
        *((38220226, 150), (38440065, 160), (50750207, 430)),
    ],
)
def test_seeds_that_broke_a_promise_once_keep_it(seed: int, num_steps: int) -> None:
    assert simulator.run_seed(seed, num_steps).steps >= num_steps


def test_a_light_prompt_that_goes_on_by_one_token_bounds_a_step() -> None:
    # Beside its one token who has most gets a few, and nobody is let in: by design. The
    # check once took that token for one of an answer, which bounds nothing.
    assert simulator.run_seed(1_001_808).finished > 0


@pytest.mark.slow
def test_500_seeds_more_keep_every_promise() -> None:
    _, failures = simulator.run_seeds(range(1_000_000, 1_000_500))
    assert [f.seed for f in failures] == [], failures[0].text


def test_a_seed_repeats_exactly() -> None:
    assert simulator.run_seed(7) == simulator.run_seed(7)


# Faults that other engines had, or that one slip here would make. Each must be noticed.

Patch = Callable[[pytest.MonkeyPatch], None]


def evicted_pages_stay_findable(patch: pytest.MonkeyPatch) -> None:
    def take(self: PageAllocator, owner: str = "") -> int | None:
        if not self._free and not self._cached:
            return None
        if self._free:
            page = self._free.pop()
        else:
            page = next(iter(self._cached[self._evictable(owner)]))
            self._uncache(page)
            self._discharge(page)
        self._references[page] = 1
        self._charge(page, owner)
        return page

    patch.setattr(PageAllocator, "take", take)


def release_ignores_other_holders(patch: pytest.MonkeyPatch) -> None:
    honest = PageAllocator.release

    def release(self: PageAllocator, page: int) -> None:
        if self._references[page]:
            self._references[page] = 1
            honest(self, page)

    patch.setattr(PageAllocator, "release", release)


def ended_sequences_keep_their_pages(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PagedCache, "release", lambda self, tables: None)


def holes_are_counted_as_hits(patch: pytest.MonkeyPatch) -> None:
    def leading(index: prefix.PrefixIndex, keys: list[bytes]) -> int:
        return max((n + 1 for n, key in enumerate(keys) if index.find(key) is not None), default=0)

    patch.setattr(hit, "_leading", leading)


def keys_ignore_what_came_before(patch: pytest.MonkeyPatch) -> None:
    def between(self: prefix.PageKeys, first: int, last: int, ids: list[int]) -> list[bytes]:
        size = self._page_size
        return [bytes(ids[i * size : (i + 1) * size]) for i in range(first, last)]

    patch.setattr(prefix.PageKeys, "between", between)


def keys_ignore_the_owner(patch: pytest.MonkeyPatch) -> None:
    honest = PagedCache.keys
    patch.setattr(PagedCache, "keys", lambda self, root: honest(self, b""))


def unfinished_pages_are_published(patch: pytest.MonkeyPatch) -> None:
    honest = PageAllocator.publish

    def commit(self: PagedCache, tables: paged.PageTables, ids: list[int], computed: int) -> None:
        size = self.page_size
        last = min(-(-computed // size), len(ids) // size)
        keys = tables.keys.between(0, last, ids)
        for each, allocator in zip(tables.groups, self.allocators, strict=True):
            for key, page in zip(keys, each.pages, strict=False):
                if page and page not in allocator.index:
                    honest(allocator, key, page)
            for page in each.slide(computed):
                allocator.release(page)
        tables.num_committed = computed

    patch.setattr(PagedCache, "commit", commit)


def windows_let_go_too_early(patch: pytest.MonkeyPatch) -> None:
    honest = table.unseen_pages
    patch.setattr(table, "unseen_pages", lambda e, n, size: honest(e, n + 1, size))


def windows_never_let_go(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(table.PageTable, "slide", lambda self, num_tokens: [])


def sinks_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    honest = table.unseen_pages

    def unseen(extent: table.Extent, num_tokens: int, size: int) -> range:
        return range(0, honest(extent, num_tokens, size).stop)

    for module in (table, hit, paged, simulator):
        patch.setattr(module, "unseen_pages", unseen)


def a_rejected_draft_counts_as_computed(patch: pytest.MonkeyPatch) -> None:
    honest = Scheduler.complete
    patch.setattr(
        Scheduler, "complete", lambda self, s, valid: honest(self, s, min(valid + 1, s.count))
    )


def pages_of_rejected_drafts_are_kept(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PagedCache, "truncate", lambda self, tables, num_tokens: None)


def the_preempted_stay_in_the_step(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(scheduling._Plan, "withdraw", lambda self, sequence: None)


def the_preempted_keep_their_count(patch: pytest.MonkeyPatch) -> None:
    honest = Scheduler.preempt

    def preempt(self: Scheduler, sequence: scheduling.Sequence) -> None:
        computed = sequence.num_computed_tokens
        honest(self, sequence)
        sequence.num_computed_tokens = computed

    def start(self: Scheduler, plan, sequence, tables, num_hit: int, honest=Scheduler._start):
        computed = sequence.num_computed_tokens
        done = honest(self, plan, sequence, tables, num_hit)
        if done and computed:
            sequence.num_computed_tokens = min(computed, sequence.num_tokens - 1)
        return done

    patch.setattr(Scheduler, "preempt", preempt)
    patch.setattr(Scheduler, "_start", start)


def nobody_is_preempted(patch: pytest.MonkeyPatch) -> None:
    def grant(self: Scheduler, plan, sequence, wanted: int) -> None:
        wanted = min(wanted, plan.budget, self.cache.room(sequence.tables))
        start = sequence.num_computed_tokens
        if wanted and self.cache.reserve(sequence.tables, start + wanted):
            plan.grant(sequence, wanted)

    patch.setattr(Scheduler, "_grant", grant)


def pages_that_failed_stay_findable(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PagedCache, "invalidate", lambda self, tables, ids: ((),) * len(tables.groups))


def pages_beyond_capacity_are_promised(patch: pytest.MonkeyPatch) -> None:
    honest = PagedCache._group_capacity
    patch.setattr(
        PagedCache, "_group_capacity", lambda self, g, usable: honest(self, g, usable + 1)
    )


def an_owner_is_served_until_it_has_no_more(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(WaitingQueue, "pop", WaitingQueue.remove)


def eviction_knows_no_owner(patch: pytest.MonkeyPatch) -> None:
    def oldest(self: PageAllocator, taker: str) -> str:
        return min(self._cached, key=lambda owner: next(iter(self._cached[owner].values())))

    patch.setattr(PageAllocator, "_evictable", oldest)


def what_is_cached_of_a_share_can_be_had(patch: pytest.MonkeyPatch) -> None:
    def available(self: PageAllocator, owner: str, *, back=(), owed=None) -> int:
        return self.num_available + len(back) - sum((owed or {}).values())

    patch.setattr(PageAllocator, "available_to", available)


def nobody_gives_way_to_a_newcomer(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Shares, "victims_for", lambda self, running, newcomer: ())


def the_oldest_gives_way_to_a_newcomer(patch: pytest.MonkeyPatch) -> None:
    def yielding(self: Shares, running: list, newcomer: scheduling.Sequence) -> list:
        return [each for each in running[:1] if each.owner != newcomer.owner]

    patch.setattr(Shares, "victims_for", yielding)


def prompts_go_by_age_alone(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Scheduler, "_by_load", lambda self: ([], list(self._running)))
    patch.setattr(Shares, "is_light", lambda self, loads, newcomer: False)


def who_has_most_takes_the_rest_of_a_step(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(scheduling, "share_beside", lambda num_prompt: 1 << 20)


def who_has_most_takes_16_tokens_beside_a_prompt(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(scheduling, "share_beside", lambda num_prompt: max(16, num_prompt // 4))


def the_youngest_of_all_gives_its_pages(patch: pytest.MonkeyPatch) -> None:
    def victim(self: Shares, running: list, grower: scheduling.Sequence) -> object:
        return None if running[-1] is grower else running[-1]

    patch.setattr(Shares, "victim", victim)


def the_oldest_gives_its_pages(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        Shares, "victim", lambda self, running, grower: next(r for r in running if r is not grower)
    )


def turns_ignore_what_owners_have(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(WaitingQueue, "first", lambda self, loads: next(iter(self._owners.values()))[0])


def pages_that_windows_give_back_are_not_seen(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PagedCache, "news_for", lambda self, owner: None)


FAULTS: tuple[Patch, ...] = (
    evicted_pages_stay_findable,
    release_ignores_other_holders,
    ended_sequences_keep_their_pages,
    holes_are_counted_as_hits,
    keys_ignore_what_came_before,
    keys_ignore_the_owner,
    unfinished_pages_are_published,
    windows_let_go_too_early,
    windows_never_let_go,
    sinks_are_forgotten,
    a_rejected_draft_counts_as_computed,
    pages_of_rejected_drafts_are_kept,
    the_preempted_stay_in_the_step,
    the_preempted_keep_their_count,
    nobody_is_preempted,
    pages_that_failed_stay_findable,
    pages_beyond_capacity_are_promised,
    an_owner_is_served_until_it_has_no_more,
    eviction_knows_no_owner,
    what_is_cached_of_a_share_can_be_had,
    nobody_gives_way_to_a_newcomer,
    the_oldest_gives_way_to_a_newcomer,
    prompts_go_by_age_alone,
    who_has_most_takes_the_rest_of_a_step,
    who_has_most_takes_16_tokens_beside_a_prompt,
    the_youngest_of_all_gives_its_pages,
    the_oldest_gives_its_pages,
    turns_ignore_what_owners_have,
    pages_that_windows_give_back_are_not_seen,
)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_fault_is_found(fault: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    fault(monkeypatch)
    for seed in range(140, 740):
        if simulator.run_seeds(range(seed, seed + 1))[1]:
            return
    pytest.fail("the simulation did not notice")
