"""Promises of scheduler and cache that random scenarios with a fake model could break.

The pool is an array from slot to content, where the content of a position is a hash of the whole
prefix up to it. Content is written when a token is computed and read back, in every step, for
every position that a query can see: a leak, a stale hit, a bad rollback or a page with two
writers shows as a wrong content. Sampled tokens are a function of the content read, so the
answer also tells whether preemption, chunking or drafting changed it.

    python bench/simulate_scheduler.py --seeds 100000
    python bench/simulate_scheduler.py --seeds 1000 --steps 1000    longer ones
    python bench/reliability.py 8 --jobs 16                         100,000 of those, in slices
"""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import os
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from collections.abc import Sequence as Items
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from random import Random
from typing import NoReturn

from cutaway.cache.fork import adopt
from cutaway.cache.paged import PagedCache, PageTables
from cutaway.cache.prefix import root_key
from cutaway.cache.table import unseen_pages
from cutaway.core.errors import ContextLengthError
from cutaway.core.layout import SCRATCH_PAGE, CacheField, CacheGroup, CacheSpec, Full, Window
from cutaway.core.request import Request, SamplingParams
from cutaway.engine.admission.shares import Loads, Shares
from cutaway.engine.scheduler import Scheduled, Scheduler, SchedulerConfig
from cutaway.engine.sequence import Sequence

SEEDS_OF_A_SLICE = 10_000  # the most that a slice of the plan takes; the next one begins behind
Slots = list[Items[int]]  # per group: page * page size + offset of each token
NAN = -1  # stands in a slot for numbers that are not finite


@dataclass
class Totals:
    """What happened, summed over scenarios."""

    scenarios: int = 0
    steps: int = 0
    computed_tokens: int = 0
    finished: int = 0
    aborted: int = 0
    failed: int = 0
    refused: int = 0
    preemptions: int = 0
    hit_tokens: int = 0
    evictions: int = 0
    drafts: int = 0
    accepted_drafts: int = 0
    forks: int = 0
    forks_taken: int = 0
    failed_allocations: int = 0

    def add(self, other: Totals) -> None:
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))


@dataclass(frozen=True)
class Scenario:
    """One random setting: sizes of the cache, limits of a step, and how often what goes wrong."""

    seed: int
    groups: tuple[CacheGroup, ...]
    num_pages: tuple[int, ...]
    page_size: int
    prefix_cache: bool
    config: SchedulerConfig
    requests: tuple[tuple[int, Request], ...]  # step of arrival
    num_drafts: int
    draft_accuracy: float
    abort_rate: float
    fail_rate: float
    allocation_failure_rate: float
    hole_rate: float
    has_forks: bool

    @staticmethod
    def draw(seed: int) -> Scenario:
        random = Random(seed)
        page_size = random.choice((8, 8, 8, 16))
        extents = [_extent(random) for _ in range(random.randint(1, 3))]
        max_sequences = random.randint(1, 6)
        has_faults = random.random() < 0.4
        return Scenario(
            seed=seed,
            groups=tuple(
                CacheGroup(i, CacheSpec((CacheField("key", (1,)),), extent), (i,))
                for i, extent in enumerate(extents)
            ),
            num_pages=tuple(random.randint(3, random.choice((8, 30))) for _ in extents),
            page_size=page_size,
            prefix_cache=random.random() < 0.85,
            config=SchedulerConfig(
                max_sequences=max_sequences,
                max_tokens_per_step=max_sequences + random.choice((0, 1, 7, 30, 100)),
                prefill_chunk=random.choice((1, 3, 8, 16, 17, 64)),
                max_prompt_tokens=(None, None, None, 20)[seed % 4],
                shared_tokens=(None, 5)[seed // 4 % 2],
            ),
            requests=tuple(_requests(random)),
            num_drafts=random.choice((0, 0, 1, 4, 9)),
            draft_accuracy=random.random(),
            abort_rate=random.choice((0.0, 0.02)) if has_faults else 0.0,
            fail_rate=random.choice((0.0, 0.02)) if has_faults else 0.0,
            allocation_failure_rate=random.choice((0.0, 0.1)) if has_faults else 0.0,
            hole_rate=random.choice((0.0, 0.3)),
            has_forks=seed % 3 > 0,
        )


def _extent(random: Random) -> Full | Window:
    if random.random() < 0.5:
        return Full()
    return Window(random.choice((1, 2, 7, 8, 9, 20)), random.choice((0, 0, 1, 4, 9)))


@cache
def _params(**fields: int | None) -> SamplingParams:
    """Checked once: there are 96 of them, and millions of requests."""
    return SamplingParams(**fields).on({})


@cache
def _root(salt: bytes) -> bytes:
    return root_key(salt)


def _requests(random: Random, lot: int = 0) -> Iterator[tuple[int, Request]]:
    """Prompts over three tokens, most of them beginning alike, in bursts."""
    below = random._randbelow  # as randrange draws
    shared = [below(3) for _ in range(80)]
    owners = random.choice((("",), ("", "", "a"), ("", "a", "b"), ("", "a", "b")))
    step = 0
    for number in range(random.randint(2, random.choice((9, 9, 20)))):
        head = shared[: random.choice((0, 0, 8, 16, 17, 40, 80))]
        tail = [below(3) for _ in range(random.randint(0 if head else 1, 12))]
        params = _params(
            n=random.choice((1, 1, 1, 3)),
            seed=random.randrange(2),
            max_tokens=random.choice((1, 2, 8, 9, 25, 40)),
            prompt_logprobs=0 if random.random() < 0.1 else None,
        )
        owner = random.choice(owners)
        step += random.choice((0, 0, 1, 10))
        yield (
            step,
            Request(
                request_id=f"r{lot}.{number}",
                prompt_token_ids=tuple(head + tail),
                params=params,
                cache_salt=owner.encode(),
                owner=owner,
            ),
        )


class BrokenPromiseError(AssertionError):
    """The scheduler or the cache broke a promise."""


def require(condition: bool, message: str) -> None:
    """An assertion that python -O keeps."""
    if not condition:
        broken(message)


def broken(message: str) -> NoReturn:
    """Say which promise was broken."""
    raise BrokenPromiseError(message)


def next_token(content: int, seed: int) -> int:
    """What the fake model answers after this prefix."""
    return hash((content, seed, 7)) % 3


@dataclass(slots=True)
class Contents:
    """Content of each position of one sequence: a hash chain over its tokens."""

    root: int
    chain: list[int] = field(default_factory=list[int])

    def upto(self, token_ids: list[int]) -> list[int]:
        chain = self.chain
        if len(chain) < len(token_ids):
            parent = chain[-1] if chain else self.root
            for token in token_ids[len(chain) :]:
                parent = hash((parent, token))
                chain.append(parent)
        return chain

    def behind(self, token_ids: list[int], drafts: list[int]) -> list[int]:
        """Contents of all tokens and of drafts behind them; not to be changed."""
        chain = self.upto(token_ids)
        if not drafts:
            return chain
        contents, parent = chain.copy(), chain[-1]
        for token in drafts:
            parent = hash((parent, token))
            contents.append(parent)
        return contents


@dataclass(slots=True)
class Before:
    """Who ran before a step, whose sequences waited, and the pages that light owners could get.

    owners: of who waited. most: the heaviest load. rooms: by owner, pages of each group.
    short: who is next and lacked pages then, be it that the heaviest owner's youngest gave way.
    Not to be changed; not frozen, since one is made for every step.
    """

    running: tuple[Sequence, ...]
    owners: set[str]
    loads: Loads
    most: int
    rooms: dict[str, tuple[int, ...]]
    num_preemptions: int
    short: Sequence | None

    @staticmethod
    def of(scheduler: Scheduler, shares: Shares, slot: int) -> Before:
        """slot: what a sequence weighs at least."""
        running, owners = scheduler.running, {*scheduler._waiting._owners}
        loads = shares.loads(running)
        most = max(loads.values(), default=0)
        rooms: dict[str, tuple[int, ...]] = {}
        short: Sequence | None = None
        # Nobody else has less than another with one sequence more, and letting such a one in
        # makes no load the heaviest: so nobody else's room is asked for.
        light = [o for o in owners if loads.get(o, 0) + slot < most]
        if light:
            owed = still_owed(scheduler.cache, running)
            rooms = {o: scheduler.cache.available_to(o, owed=owed) for o in light}
            first = scheduler._waiting.first(loads)
            if len(running) == scheduler.config.max_sequences and shares.is_light(loads, first):
                victim = youngest_of_heaviest(running, loads)
                left = tuple([s for s in running if s is not victim])
                if lacks_pages(scheduler.cache, first, left, (victim.tables,)):
                    short = first
        preempted = scheduler.num_preemptions
        return Before(running, owners, loads, most, rooms, preempted, short)

    def newcomers(self, running: tuple[Sequence, ...]) -> list[Sequence]:
        """Who was admitted in the step, in this order. running: behind it."""
        before = self.running
        return [s for s in running if s not in before] if self.owners else []


def still_owed(cache: PagedCache, running: tuple[Sequence, ...]) -> list[dict[str, int]]:
    """Pages per group and owner that running sequences lack, with one more to grow into."""
    owed: list[dict[str, int]] = [{} for _ in cache.allocators]
    for sequence in running:
        length, owner = len(sequence.token_ids) + cache.page_size, sequence.owner
        missing = cache.missing(sequence.tables, min(length, sequence.max_length))
        for own, number in zip(owed, missing, strict=True):
            own[owner] = own.get(owner, 0) + number
    return owed


def youngest_of_heaviest(running: tuple[Sequence, ...], loads: Loads) -> Sequence:
    """Who gives way to a newcomer."""
    heaviest = max(loads, key=loads.__getitem__)
    return [s for s in running if s.owner == heaviest][-1]


def lacks_pages(
    cache: PagedCache, first: Sequence, running: tuple[Sequence, ...], back: tuple[PageTables, ...]
) -> bool:
    """Whether pages are short for a newcomer beside who runs. back: tables of who gave way."""
    needed = cache.most_pages(len(first.token_ids))
    # Most often there are too few, whatever of them is owed or kept for others.
    if not back:
        pairs = zip(cache.allocators, needed, strict=True)
        if any([allocator.num_available < number for allocator, number in pairs]):
            return True
    left = cache.available_to(first.owner, back=back, owed=still_owed(cache, running))
    return any([a < b for a, b in zip(left, needed, strict=True)])


class Simulation:
    """One scenario, run step by step until all its requests have ended."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.totals = Totals(scenarios=1)
        self.random = Random(scenario.seed + 1_000_003)
        self.below = self.random._randbelow  # what randrange draws, without what it asks first
        self.forks = Random(scenario.seed)  # apart, so that scenarios with and without are alike
        self.cache = PagedCache(
            scenario.groups,
            num_pages=scenario.num_pages,
            page_size=scenario.page_size,
            prefix_cache=scenario.prefix_cache,
        )
        self.scheduler = Scheduler(scenario.config, self.cache)
        self.capacity = self.cache.capacity_tokens  # nothing is pinned: it stays
        self.shares = Shares(
            max_sequences=scenario.config.max_sequences, capacity_tokens=self.capacity
        )
        extents = [group.spec.extent for group in scenario.groups]
        self.windows = [each if isinstance(each, Window) else None for each in extents]
        # Of each group and page the contents of its slots: pages are compared as a whole.
        self.memory = [
            [[0] * scenario.page_size for _ in range(number)] for number in scenario.num_pages
        ]
        self.contents: dict[Sequence, Contents] = {}
        self.owners: set[str] = set()  # who ever asked, in whichever burst
        self.allocation_failed = False
        self.step_bound = 0
        # Per owner that waits: admissions of others that had as much, since it began to wait.
        self.passed: dict[str, Counter[str]] = {}
        if scenario.allocation_failure_rate:
            self._make_allocation_flaky()
        self._watch_evictions()

    def run(self, num_steps: int = 0) -> Totals:
        """num_steps: go on with further bursts of requests until there were so many steps."""
        arrivals = list(self.scenario.requests)
        clock = lot = 0
        while True:
            if not arrivals and self.totals.steps < num_steps and self.scheduler.num_waiting < 8:
                lot += 1
                arrivals = self._further(lot, clock)
            if not (arrivals or self.scheduler.has_work):
                break
            while arrivals and arrivals[0][0] <= clock:
                self._arrive(arrivals.pop(0)[1])
            self._step()
            self._check_pages()
            clock += 1
            if not self.scenario.allocation_failure_rate:
                require(self.totals.steps <= self.step_bound, "more steps than tokens: no progress")
        require(self.cache.stats.used == 0, "pages are held although every sequence has ended")
        self.totals.preemptions = self.scheduler.num_preemptions
        self.totals.hit_tokens = self.cache.stats.hit_tokens
        self.totals.evictions = self.cache.stats.evictions
        return self.totals

    def _further(self, lot: int, clock: int) -> list[tuple[int, Request]]:
        """Requests of another burst; what has ended is forgotten, so that memory stays small."""
        alive = {*self.scheduler.waiting, *self.scheduler.running}
        self.contents = {s: known for s, known in self.contents.items() if s in alive}
        drawn = _requests(Random(f"{self.scenario.seed} {lot}"), lot)
        return [(clock + step, request) for step, request in drawn]

    def _make_allocation_flaky(self) -> None:
        """Let an allocation fail now and then, at most once per step: the second try is clean."""
        for allocator in self.cache.allocators:

            def take(owner: str, honest=allocator.take) -> int | None:
                rate = self.scenario.allocation_failure_rate
                if not self.allocation_failed and self.random.random() < rate:
                    self.allocation_failed = True
                    self.totals.failed_allocations += 1
                    return None
                return honest(owner)

            allocator.take = take

    def _watch_evictions(self) -> None:
        """No page of an owner within its share goes while another has more than its share.

        Who was not seen for long has none.
        """
        for allocator in self.cache.allocators:

            def take(owner: str, honest=allocator.take, allocator=allocator) -> int | None:
                evictions = allocator.num_evictions
                if allocator._free:
                    page = honest(owner)
                    require(evictions == allocator.num_evictions, "evicted beside free pages")
                    return page
                before = allocator.owners()
                if before.keys() == {owner}:
                    return honest(owner)  # there is nobody else
                idle = {each for each in before if each != owner and allocator.is_idle(each)}
                cached = set(allocator._cached)
                page = honest(owner)
                if allocator.num_evictions > evictions:
                    share = max(1, allocator.num_usable / len({*before, owner} - idle))
                    rich = {o for o, n in before.items() if n > share or o in idle}
                    left = allocator.owners()
                    victim = next((o for o, n in before.items() if left.get(o, 0) < n), owner)
                    require(victim in rich or not rich & cached, "evicted from who has little")
                    oldest = [s.owner for s in self.scheduler.running[:1]]
                    is_last_way = oldest in ([], [owner])
                    require(
                        victim in rich or victim == owner or is_last_way,
                        "a prefix within a share went although somebody could have waited",
                    )
                return page

            allocator.take = take

    def _arrive(self, request: Request) -> None:
        self.owners.add(request.owner)
        prompt = len(request.prompt_token_ids)
        capacity = self.capacity
        for choice in range(request.params.n):
            seed = (request.params.seed or 0) + choice // 2
            sequence = Sequence(
                request=request,
                choice=choice,
                seed=seed,
                max_length=prompt + (request.params.max_tokens or 0),
                cache_root=_root(request.cache_salt),
            )
            waiting = self.scheduler.waiting
            try:
                self.scheduler.add(sequence)
            except ContextLengthError:
                require(prompt + 1 > capacity, "a request that fits was refused")
                self.totals.refused += 1
                continue
            require(prompt + 1 <= capacity, "a request that can never fit was taken in")
            self.contents[sequence] = Contents(len(request.cache_salt))
            self.step_bound += min(sequence.max_length, capacity)
            if not any(s.owner == sequence.owner for s in waiting):
                self.passed[sequence.owner] = Counter()

    def _step(self) -> None:
        self._abort_some()
        self._lose_a_page()
        self.allocation_failed = False
        for sequence in self.scheduler.running:
            if not sequence.draft_token_ids:
                self._propose(sequence)
        before = Before.of(self.scheduler, self.shares, self.capacity)
        steps = self.scheduler.schedule()
        running = self.scheduler.running
        newcomers = before.newcomers(running)
        self._check_turns(before, newcomers)
        if not self.allocation_failed:
            self._check_shares(before, newcomers, steps)
            self._check_victim(before, newcomers)
            self._check_nobody_waits_in_vain(before, running, newcomers, steps)
        if not steps:
            require(not self.scheduler.has_work, "a step with work did nothing")
            return
        self.totals.steps += 1
        written = self._check_plan(steps, before.running[:1])
        # As in a forward: all keys and values are stored before any is read.
        ways = [
            self._store(scheduled, *each) for scheduled, each in zip(steps, written, strict=True)
        ]
        for scheduled, contents in zip(steps, ways, strict=True):
            self._check_visible(scheduled, *contents)
        self._abort_some()
        for scheduled in steps:
            self._advance(scheduled)

    def _abort_some(self) -> None:
        rate, draw = self.scenario.abort_rate, self.random.random
        if not rate:
            return
        chances = [draw() for _ in range(self.scheduler.num_waiting + self.scheduler.num_running)]
        if min(chances, default=1.0) >= rate:
            return
        known = (*self.scheduler.waiting, *self.scheduler.running)
        chosen = [s.request for s, chance in zip(known, chances, strict=True) if chance < rate]
        for number, request in enumerate(chosen):
            if any(request is each for each in chosen[:number]):
                continue
            ended = [each for each in known if each.request is request]
            self.totals.aborted += len(ended)
            for each in ended:
                self.scheduler.finish(each)

    def _lose_a_page(self) -> None:
        """Make any page unfindable: a prefix may get a hole wherever it is."""
        rate, draw = self.scenario.hole_rate, self.random.random
        for allocator in self.cache.allocators if rate else ():
            if draw() < rate:
                allocator.forget(1 + self.below(allocator.num_pages - 1))

    def _propose(self, sequence: Sequence) -> None:
        """Drafts that the fake model would accept with the scenario's probability each."""
        if sequence.num_computed_tokens + 1 < len(sequence.token_ids):
            return
        num_drafts = self.below(self.scenario.num_drafts + 1)
        if not num_drafts:
            return
        content = self.contents[sequence].upto(sequence.token_ids)[-1]
        for _ in range(num_drafts):
            token = next_token(content, sequence.seed)
            if self.random.random() > self.scenario.draft_accuracy:
                token = (token + 1) % 3
            sequence.draft_token_ids.append(token)
            content = hash((content, token))
        if self.scenario.has_forks:
            self._propose_other(sequence)

    def _propose_other(self, sequence: Sequence) -> None:
        """As many guesses in the drafts' place, which part from them somewhere."""
        drafts, chance = sequence.draft_token_ids, self.forks
        kept = chance.randrange(len(drafts))
        content = self.contents[sequence].upto(sequence.token_ids)[-1]
        for place, draft in enumerate(drafts):
            right = next_token(content, sequence.seed)
            token = draft if place < kept else right if chance.random() < 0.8 else (draft + 1) % 3
            sequence.other_token_ids.append(token)
            content = hash((content, token))

    def _check_plan(
        self, steps: list[Scheduled], oldest: tuple[Sequence, ...]
    ) -> list[tuple[Slots, Slots]]:
        """Per sequence the slots of each group that it writes, and those of its second way."""
        config, size = self.scenario.config, self.scenario.page_size
        require(self.scheduler.num_running <= config.max_sequences, "too many are running")
        scheduled = {s.sequence for s in steps}
        require(len(scheduled) == len(steps), "a sequence is in the step twice")
        if oldest and not self.allocation_failed:
            require(oldest[0] in scheduled, "the oldest sequence did not move")
        num_tokens = num_prompt = 0
        written: list[tuple[Slots, Slots]] = []
        ways: list[Slots] = []
        for s in steps:
            sequence, start, count = s.sequence, s.start, s.count
            tables, num_known = sequence.tables, len(sequence.token_ids)
            num_tokens += count + s.num_other
            if num_known - start > 1:
                num_prompt += count
            self._check_tokens(s, num_known + s.num_drafts)
            own = [table.slots(start, count) for table in tables.groups]
            other: Slots = []
            if s.is_forked:
                other = [sequence.fork.slots(g, count, size) for g in range(len(own))]
                ways.append(other)
            ways.append(own)
            written.append((own, other))
        require(num_tokens <= config.max_tokens_per_step, "budget exceeded")
        # Prompts that had begun take a token each in any case.
        most = config.max_prompt_tokens or config.max_tokens_per_step
        require(num_prompt < most + config.max_sequences, "too many tokens of prompts")
        for slots_of in zip(*ways, strict=True):
            slots = set[int]().union(*slots_of)
            require(len(slots) == num_tokens, "a slot is written twice")
            require(min(slots) >= size, "the scratch page is written")
        return written

    def _check_tokens(self, scheduled: Scheduled, end: int) -> None:
        """The step's tokens of a sequence are those that come next. end: of all it has."""
        sequence, start, count = scheduled.sequence, scheduled.start, scheduled.count
        if sequence.tables is None:  # asked here, not in require: so often, it takes longer
            broken("a sequence in the step has no tables")
        if count <= 0 or start != sequence.num_computed_tokens:
            broken("wrong tokens")
        if start + count > end:
            broken("tokens past the end are computed")
        if scheduled.samples != (start + count == end):
            broken("samples in the wrong step")
        if len(scheduled.token_ids) != count:
            broken("the step's tokens are not its count")
        if scheduled.num_drafts and end >= sequence.max_length:
            broken("a draft lies past the longest answer")

    def _check_turns(self, before: Before, newcomers: list[Sequence]) -> None:
        """Who has least is admitted first; among equals, none twice while another waits."""
        owners = before.owners
        if not self.passed.keys() <= owners:
            self.passed = {owner: count for owner, count in self.passed.items() if owner in owners}
        has_preempted = self.scheduler.num_preemptions > before.num_preemptions
        if has_preempted and self.allocation_failed:
            # All began afresh: who was let in again stands nowhere.
            self.passed = {owner: Counter[str]() for owner in self.passed}
        if not newcomers:
            return
        loads = self.shares.loads(s for s in self.scheduler.running if s not in newcomers)
        # Nobody who ran waits: where one was preempted, turns are not compared.
        waiting = Counter([s.owner for s in (*newcomers, *self.scheduler.waiting)])
        for sequence in newcomers:
            admitted = sequence.owner
            waiting[admitted] -= 1
            for owner, passed in self.passed.items():
                if has_preempted or owner == admitted or not waiting[owner]:
                    continue
                require(loads[admitted] <= loads[owner], "an owner that has more came first")
                passed[admitted] += loads[admitted] == loads[owner]
                require(passed[admitted] <= 1, "an owner was passed over")
            self.passed[admitted] = Counter()
            loads[admitted] += self.shares.weight(sequence)

    def _check_shares(
        self, before: Before, newcomers: list[Sequence], steps: list[Scheduled]
    ) -> None:
        """While prompts of owners with less go on, those with most get few tokens beside them."""
        light = self._light(before, newcomers)
        prompts = [s for s in light if len(s.token_ids) - s.num_computed_tokens > 1]
        if not prompts:
            return
        taken = Counter({s.sequence: s.count for s in steps})
        num_prompt = sum([taken[s] for s in prompts])
        if num_prompt:
            loads, most = before.loads, before.most
            num_heavy = sum([n for s, n in taken.items() if loads[s.owner] == most > 0])
            # Of who came, some may have had less than others although it is not known to be so.
            others = {s for s in newcomers if loads[s.owner] < most}
            num_all = sum([taken[s] for s in others.union(prompts)])
            beside = max(1, num_all // 4, 8 - num_prompt)
            require(num_heavy <= beside, "who has most took most of a step")
        if self.scheduler.num_preemptions > before.num_preemptions:
            return  # the pages of who gave way came too late for some
        for sequence in prompts:
            if sequence.tables is not None:
                room = self.cache.room(sequence.tables) - sequence.num_computed_tokens
                require(num_prompt > 0 or room <= 0, "a prompt of who has less did not go on")

    def _light(self, before: Before, newcomers: list[Sequence]) -> set[Sequence]:
        """Sequences of owners with less than another, those admitted in the step included.

        Of these only those for whom there were pages before others took theirs. Pages that come
        up amid the step start others as it ends, beside whatever it holds by then: who was next
        and lacked pages, and whoever stood behind it, be it that there were pages for that one.
        """
        loads, most = before.loads, before.most
        light = {s for s in before.running if loads[s.owner] < most}
        if not before.rooms:
            return light  # of nobody who waited
        loads = Loads(loads)
        taken = [0] * len(self.cache.allocators)
        for sequence in newcomers:
            if not self.shares.is_light(loads, sequence):
                break  # it and who came after it were admitted in their turn
            needed = self.cache.most_pages(sequence.num_tokens)
            rooms = zip(before.rooms[sequence.owner], taken, needed, strict=True)
            if any(r - t < n for r, t, n in rooms):
                break
            light.add(sequence)
            loads[sequence.owner] += self.shares.weight(sequence)
            grown = self.cache.most_pages(sequence.num_tokens + self.cache.page_size)
            taken = [a + b for a, b in zip(taken, grown, strict=True)]
        return light

    def _check_victim(self, before: Before, newcomers: list[Sequence]) -> None:
        """For pages that a running sequence lacks, who has most besides the oldest gives way."""
        if newcomers:
            return
        gone = [s for s in before.running if s.tables is None and s in self.contents]
        if len(gone) != 1:
            return
        loads = self.shares.loads(before.running[1:])
        require(loads[gone[0].owner] == max(loads.values()), "who has less gave way")

    def _check_nobody_waits_in_vain(
        self,
        before: Before,
        running: tuple[Sequence, ...],
        newcomers: list[Sequence],
        steps: list[Scheduled],
    ) -> None:
        """Whoever is next starts where slots and pages are, be it that another gives way.

        Who gives way is asked for as a step begins. Pages may come up in it: an owner that takes
        one for what it runs evicts its own, which was kept from others, where none is free. They
        are for the next step.
        """
        has_preempted = self.scheduler.num_preemptions > before.num_preemptions
        if not running or not self.scheduler.num_waiting or has_preempted:
            return
        loads = self.shares.loads(running) if newcomers else before.loads  # the same run
        first = self.scheduler._waiting.first(loads)
        is_full = len(running) == self.scenario.config.max_sequences
        if not is_full:
            if sum([s.count for s in steps]) >= self._most_tokens():
                return
            if lacks_pages(self.cache, first, running, ()):
                return  # as most often: asked before what takes longer
        victim = youngest_of_heaviest(running, loads)
        heaviest = victim.owner
        if is_full:
            load = loads[first.owner] + self.shares.weight(first)
            left = loads[heaviest] - self.shares.weight(victim)
            if first is before.short or first.owner == heaviest or left < load:
                return
        if self._has_light_prompt(before, heaviest, newcomers, steps):
            return
        num_prompt = sum(
            s.count for s in steps if s.sequence in newcomers or s.sequence.num_tokens - s.start > 1
        )
        config = self.scenario.config
        most = config.max_prompt_tokens or config.max_tokens_per_step
        if num_prompt >= most:
            return
        others = tuple(s for s in running if s is not victim)
        is_short = is_full and lacks_pages(self.cache, first, others, (victim.tables,))
        require(is_short, "who is next waits although there is room")

    def _has_light_prompt(
        self, before: Before, heaviest: str, newcomers: list[Sequence], steps: list[Scheduled]
    ) -> bool:
        """Whether a prompt of who has less goes on: a step is not filled with others then.

        Be it that its chunk is a single token. heaviest: who has most behind the step.
        """
        loads, most = before.loads, before.most
        return any(
            s.sequence.owner != heaviest or loads[s.sequence.owner] < most
            if s.sequence in newcomers
            else loads[s.sequence.owner] < most and s.sequence.num_tokens - s.start > 1
            for s in steps
        )

    def _most_tokens(self) -> int:
        """Of a step: a crowd takes few while others may come."""
        config, scheduler = self.scenario.config, self.scheduler
        most = config.max_tokens_per_step
        if not config.shared_tokens or len(self.owners) < 2:
            return most
        num_known = scheduler.num_running + scheduler.num_waiting
        is_crowd = num_known > len(self.owners)  # else they are few, and are counted
        if not is_crowd:
            known = (*scheduler.running, *scheduler.waiting)
            is_crowd = len({s.owner for s in known}) < num_known
        return min(most, config.shared_tokens) if is_crowd else most

    def _store(self, scheduled: Scheduled, own: Slots, other: Slots) -> tuple[list[int], list[int]]:
        """Write what the step computes. Contents up to its last position, on either way."""
        sequence, start, count = scheduled.sequence, scheduled.start, scheduled.num_drafts
        known, ids = self.contents[sequence], sequence.token_ids
        contents = known.upto(ids)
        if count:
            contents = known.behind(ids, sequence.draft_token_ids[:count])
        self._write(own, contents, start)
        self.totals.computed_tokens += scheduled.count
        if not scheduled.is_forked:
            return contents, []
        for memory, pair in zip(self.memory, sequence.fork.copies, strict=True):
            if pair is not None:
                source, target = pair
                memory[target][:] = memory[source]
        others = known.behind(ids, sequence.other_token_ids[:count])
        self._write(other, others, start)
        self.totals.forks += 1
        return contents, others

    def _write(self, slots_of: Slots, contents: list[int], start: int) -> None:
        size = self.scenario.page_size
        for memory, slots in zip(self.memory, slots_of, strict=True):
            for position, slot in enumerate(slots, start):
                memory[slot // size][slot % size] = contents[position]

    def _check_visible(self, scheduled: Scheduled, contents: list[int], others: list[int]) -> None:
        tables = scheduled.sequence.tables
        self._check_way(scheduled, [table.pages for table in tables.groups], contents)
        if scheduled.is_forked:
            fork = scheduled.sequence.fork
            pages = [fork.pages_of(tables, group) for group in range(len(self.memory))]
            self._check_way(scheduled, pages, others)

    def _check_way(
        self, scheduled: Scheduled, pages_of: list[list[int]], contents: list[int]
    ) -> None:
        """Each group reads what was stored of this prefix, wherever a query of the step sees it."""
        start, end = scheduled.start, scheduled.start + scheduled.count
        for memory, pages, window in zip(self.memory, pages_of, self.windows, strict=True):
            if window is None:
                self._check_content(memory, pages, contents, 0, end)
                continue
            if window.sinks:
                self._check_content(memory, pages, contents, 0, min(window.sinks, end))
            self._check_content(memory, pages, contents, max(0, start - window.width + 1), end)

    def _check_content(
        self, memory: list[list[int]], pages: list[int], contents: list[int], start: int, end: int
    ) -> None:
        """Positions start to end, of which there is one at least."""
        size = self.scenario.page_size
        first, last = start // size, (end - 1) // size
        if first == last:
            base = first * size
            found = memory[pages[first]][start - base : end - base]
        else:
            found = memory[pages[first]][start - first * size :]
            for page in pages[first + 1 : last]:
                found += memory[page]
            found += memory[pages[last]][: end - last * size]
        if found != (contents[start:end] if start or end < len(contents) else contents):
            broken("a group reads what is not its own prefix")

    def _advance(self, scheduled: Scheduled) -> None:
        """Sample, accept, complete, and end the sequence if it is over."""
        sequence = scheduled.sequence
        if sequence.tables is None:
            self.scheduler.complete(scheduled, scheduled.count)  # aborted meanwhile: ignored
            return
        if self.scenario.fail_rate and self.random.random() < self.scenario.fail_rate:
            self._fail(scheduled)
            return
        num_valid = scheduled.count
        if scheduled.samples:
            num_valid -= scheduled.num_drafts - self._sample(scheduled)
        limit = min(sequence.max_length, self.capacity)
        self.scheduler.complete(scheduled, num_valid)
        if len(sequence.token_ids) >= limit:
            self._check_answer(sequence)
            self.scheduler.finish(sequence)
            self.totals.finished += 1

    def _sample(self, scheduled: Scheduled) -> int:
        """Append the accepted drafts and one token more; how many drafts were accepted."""
        sequence = scheduled.sequence
        if scheduled.is_forked:
            self._take_longest(scheduled)
        num_drafts = scheduled.num_drafts
        drafts = [*sequence.draft_token_ids[:num_drafts], None]
        first_row = scheduled.start + scheduled.count - num_drafts - 1
        slots = sequence.tables.groups[0].slots(first_row, num_drafts + 1)
        memory, size, seed = self.memory[0], self.scenario.page_size, sequence.seed
        accepted = 0
        for slot, draft in zip(slots, drafts, strict=True):
            token = next_token(memory[slot // size][slot % size], seed)
            sequence.token_ids.append(token)
            if token != draft:
                break
            accepted += 1
        self.totals.drafts += num_drafts
        self.totals.accepted_drafts += accepted
        return accepted

    def _take_longest(self, scheduled: Scheduled) -> None:
        """Go on along the way on which more guesses stand, as the engine does."""
        sequence, other = scheduled.sequence, scheduled.sequence.fork
        slots = other.slots(0, scheduled.count, self.scenario.page_size)
        own = sequence.tables.groups[0].slots(scheduled.start, scheduled.count)
        if self._stood(slots, sequence.other_token_ids, sequence.seed) > self._stood(
            own, sequence.draft_token_ids, sequence.seed
        ):
            adopt(sequence.tables, other)
            sequence.draft_token_ids[:] = sequence.other_token_ids
            self.totals.forks_taken += 1

    def _stood(self, slots: Items[int], drafts: list[int], seed: int) -> int:
        size = self.scenario.page_size
        for place, (slot, draft) in enumerate(zip(slots, drafts, strict=False)):
            if next_token(self.memory[0][slot // size][slot % size], seed) != draft:
                return place
        return len(drafts)

    def _fail(self, scheduled: Scheduled) -> None:
        """Numbers that are not finite in this step: what they touched must be zeroed."""
        sequence, size = scheduled.sequence, self.scenario.page_size
        ways = [[table.slots(scheduled.start, scheduled.count) for table in sequence.tables.groups]]
        if scheduled.is_forked:
            groups = range(len(self.memory))
            ways += [[sequence.fork.slots(group, scheduled.count, size) for group in groups]]
        for way in ways:
            self._write(way, [NAN] * (scheduled.start + scheduled.count), scheduled.start)
        spoilt = self.scheduler.spoil(sequence)
        self.scheduler.finish(sequence)
        for memory, pages in zip(self.memory, spoilt, strict=True):
            for page in pages:
                memory[page][:] = [0] * size
            is_zeroed = not any(NAN in page for page in memory)
            require(is_zeroed, "a page with numbers that are not finite was not zeroed")
        self.totals.failed += 1

    def _check_answer(self, sequence: Sequence) -> None:
        contents = self.contents[sequence].upto(sequence.token_ids)
        first = sequence.num_prompt_tokens
        right = [next_token(content, sequence.seed) for content in contents[first - 1 : -1]]
        require(sequence.token_ids[first:] == right, "the answer differs from the cold one")

    def _check_pages(self) -> None:
        """Counts, holders and index agree, and nobody can write what another can read."""
        size, running = self.scenario.page_size, self.scheduler.running
        known = [(s.tables.groups, s.num_computed_tokens) for s in running]
        for group, (allocator, window) in enumerate(
            zip(self.cache.allocators, self.windows, strict=True)
        ):
            # Looked at within: so many calls in every step would be half of its time.
            findable, references = allocator.index._key_of, allocator._references
            holders = [0] * allocator.num_pages
            for tables, computed in known:
                pages = tables[group].pages
                if window is not None:
                    unseen = unseen_pages(window, computed, size)
                    gone = pages[unseen.start : unseen.stop].count(SCRATCH_PAGE)
                    if not pages.count(SCRATCH_PAGE) == gone == len(unseen):
                        broken("the window lost a page it needs, or kept one")
                spare = len(pages) * size - computed
                if spare < 0:
                    broken("a computed token has no page")
                if spare >= size:
                    broken("a page without a computed token is kept")
                for page in pages[computed // size :]:
                    if page in findable:
                        broken("an unfinished page can be found")
                    if references[page] != 1:
                        broken("an unfinished page is shared")
                for page in pages:
                    holders[page] += 1
            if window is None and holders[SCRATCH_PAGE]:
                broken("a page is gone although all are seen")
            holders[SCRATCH_PAGE] = 0
            if references != holders:
                broken("a page's count is not the number of its holders")
            if SCRATCH_PAGE in findable:
                broken("the scratch page can be found")
            if len(findable) != len(allocator.index):
                broken("the index knows a page that is none")
            if list(map(holders.__getitem__, findable)).count(0) != allocator.num_cached:
                broken("cached pages are not those that can be found")
            if allocator.num_used != len(holders) - holders.count(0):
                broken("free + cached + used is not the total")


@dataclass(frozen=True)
class Failure:
    """A seed that broke a promise, and how."""

    seed: int
    text: str


def run_seed(seed: int, num_steps: int = 0) -> Totals:
    """Run one scenario; raises when a promise is broken."""
    return Simulation(Scenario.draw(seed)).run(num_steps)


def run_seeds(seeds: range, num_steps: int = 0) -> tuple[Totals, list[Failure]]:
    """Run many; failures are collected."""
    totals, failures = Totals(), list[Failure]()
    for seed in seeds:
        try:
            totals.add(run_seed(seed, num_steps))
        except Exception:
            failures.append(Failure(seed, traceback.format_exc()))
        if not gc.isenabled():  # in a worker, where little else is to be looked through
            gc.collect()
    return totals, failures


def begin_worker() -> None:
    """Leave the machine to others, where the system can; look for cycles between scenarios alone.

    A scenario makes a few as it begins, and none in a step.
    """
    if hasattr(os, "nice"):
        os.nice(10)
    gc.freeze()
    gc.disable()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--steps", type=int, default=0, help="least steps of each scenario")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    args = parser.parse_args()
    if (asked := os.environ.get("PLAN_TRIALS")) is not None:  # a slice of bench/reliability.py
        args.seeds, args.first = int(asked), int(os.environ["PLAN_SEED"]) * SEEDS_OF_A_SLICE
    start = time.monotonic()
    ends = range(args.first, args.first + args.seeds, 250)
    parts = [range(s, min(s + 250, args.first + args.seeds)) for s in ends]
    totals, failures = Totals(), list[Failure]()
    with multiprocessing.Pool(args.workers, initializer=begin_worker) as pool:
        jobs = [pool.apply_async(run_seeds, (part, args.steps)) for part in parts]
        for part_totals, part_failures in (job.get() for job in jobs):
            totals.add(part_totals)
            failures += part_failures
    for failure in failures[:10]:
        print(f"seed {failure.seed}\n{failure.text}", file=sys.stderr)
    report(totals, failures, args.seeds, time.monotonic() - start)
    if log := os.environ.get("PLAN_LOG"):
        said = {"count": args.seeds, "figures": {"total_steps": totals.steps}}
        Path(log).write_text(json.dumps(said) + "\n", encoding="utf-8")
    return 1 if failures else 0


def report(totals: Totals, failures: list[Failure], num_seeds: int, seconds: float) -> None:
    """Print what ran and what it says about the seeds that did not."""
    print(f"seeds {num_seeds}, violations {len(failures)}, {seconds:.0f} s")
    for each in fields(totals):
        print(f"{each.name.replace('_', ' '):>20} {getattr(totals, each.name):>14,}")
    if failures:
        print("seeds that failed:", sorted(f.seed for f in failures)[:50])
    else:
        # Rule of three: with 0 of n, the rate is below 3 / n at 95 % confidence.
        print(f"rate of violations below {3 / num_seeds:.1e} per scenario (95 %)")


if __name__ == "__main__":
    sys.exit(main())
