"""Which tokens of which sequences the next step computes; a state machine without clock or device.

Free of torch. It knows neither the model nor sampling: tokens come from the engine, pages from
the cache.

Order of one step, which keeps the invariant of Sequence at every point:

  1. schedule() reserves pages and says what to compute.
  2. The engine runs the forward and samples where Scheduled.samples is set.
  3. The engine appends the accepted drafts and the new token to sequence.token_ids.
  4. complete() makes what is valid final: num_computed_tokens grows, full pages become findable.
  5. finish() ends a sequence whose answer is over; spoil() comes first where its numbers were not
     finite.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence as Items
from collections.abc import Set
from dataclasses import dataclass
from functools import partial

from cutaway.cache.fork import fork, release
from cutaway.cache.paged import PagedCache, PageTables
from cutaway.cache.prefix import PageKeys
from cutaway.core.errors import ConfigError, ContextLengthError
from cutaway.engine.admission.shares import (
    PROMPT_TOKENS_PER_TOKEN,
    Owners,
    Shares,
    share_beside,
)
from cutaway.engine.admission.waiting import WaitingQueue
from cutaway.engine.sequence import Sequence
from cutaway.host.faults import again


@dataclass(frozen=True, kw_only=True)
class SchedulerConfig:
    """How much one step may hold.

    max_sequences:       running at the same time.
    max_tokens_per_step: computed in one forward, drafts included.
    prefill_chunk:       of one sequence's prompt in one forward.
    max_prompt_tokens:   of all prompts in one forward; None sets no further bound. A step is not
                         interrupted, so this bounds what a newcomer waits for it.
    shared_tokens:       of who has most, while somebody has several sequences, running or waiting,
                         and others come now and then: they would wait for a long step each time.
    Raises: ConfigError when one is out of range.
    """

    max_sequences: int
    max_tokens_per_step: int
    prefill_chunk: int
    max_prompt_tokens: int | None = None
    shared_tokens: int | None = None

    def __post_init__(self) -> None:
        for name in ("max_sequences", "max_tokens_per_step", "prefill_chunk"):
            if getattr(self, name) < 1:
                raise ConfigError(
                    f"{name} is {getattr(self, name)}; it must be at least 1. "
                    f"Set EngineConfig.{name}, or leave it out."
                )
        if self.max_tokens_per_step < self.max_sequences:
            raise ConfigError(
                f"max_tokens_per_step is {self.max_tokens_per_step}; it must be at least "
                f"max_sequences, {self.max_sequences}, so that every running sequence can get a "
                "token. Raise the one or lower the other."
            )


@dataclass(slots=True, eq=False)
class Scheduled:
    """Tokens start to start + count of a sequence, its drafts behind its token_ids included.

    samples: the last known token is among them, so the logits of the last 1 + num_drafts rows
    are wanted.
    is_forked: its last known token comes a second time, with the other guesses behind it, as many.
    took_other: those stood longer; they are its drafts now.
    Not to be changed; not frozen, since one is made for every token: 0.3 us instead of 1.1.
    """

    sequence: Sequence
    start: int
    count: int
    num_drafts: int
    samples: bool
    is_forked: bool = False
    took_other: bool = False

    @property
    def num_other(self) -> int:
        """Tokens of the second way."""
        return self.count if self.is_forked else 0

    @property
    def token_ids(self) -> list[int]:
        """What goes into the forward."""
        known = self.sequence.token_ids[self.start : self.start + self.count]
        return known + self.sequence.draft_token_ids[: self.num_drafts]


class _Plan:
    """The step in the making: tokens granted so far and the budget left."""

    def __init__(self, config: SchedulerConfig) -> None:
        self.budget = config.max_tokens_per_step
        self.prompt_budget = config.max_prompt_tokens or config.max_tokens_per_step
        self._chunk = config.prefill_chunk
        self.granted: dict[Sequence, int] = {}
        self.has_preempted = False
        self.gives_back = True  # what who is preempted had been granted

    def grant(self, sequence: Sequence, count: int) -> None:
        self.granted[sequence] = self.granted.get(sequence, 0) + count
        self.budget -= count

    def grant_prompt(self, sequence: Sequence, count: int) -> None:
        self.grant(sequence, count)
        self.prompt_budget -= count

    def chunk(self, num_left: int) -> int:
        """Tokens of a prompt that this step may take; one in any case, so that it moves."""
        return max(1, min(num_left, self._chunk, self.prompt_budget))

    def withdraw(self, sequence: Sequence) -> None:
        count = self.granted.pop(sequence, 0)
        if self.gives_back:
            self.budget += count

    def keep(self, sequence: Sequence, count: int) -> None:
        """Leave only so many tokens to a sequence; nobody else gets the others."""
        if count:
            self.granted[sequence] = count
        else:
            del self.granted[sequence]

    def schedule(self) -> list[Scheduled]:
        """The step. Chunks of prompts come last: kernels and graphs take the others together."""
        steps: list[Scheduled] = []
        for sequence, count in self.granted.items():
            start = sequence.num_computed_tokens
            past_end = start + count - len(sequence.token_ids)
            is_forked = sequence.fork is not None
            steps.append(
                Scheduled(sequence, start, count, max(0, past_end), past_end >= 0, is_forked)
            )
        if len(self.granted) > 1:
            steps.sort(key=lambda item: item.count - item.num_drafts > 1)
        return steps


class Scheduler:
    """Continuous batching over a paged cache: every step takes whoever can move.

    Running sequences stand in the order of their admission. When pages or slots run out one is
    preempted: its pages go back and it will be recomputed, its output so far included. It is the
    youngest of the owner who has most. The oldest of all is never preempted and moves in every
    step, so there is no livelock. Prompts of owners with less than others have go first.
    """

    def __init__(self, config: SchedulerConfig, cache: PagedCache) -> None:
        self.config = config
        self.cache = cache
        self.num_preemptions = 0
        self._shares = Shares(
            max_sequences=config.max_sequences, capacity_tokens=cache.capacity_tokens
        )
        self._num_steps = 0
        self._owners = Owners()
        self._waiting = WaitingQueue()
        self._running: list[Sequence] = []
        self._keys: dict[Sequence, PageKeys] = {}  # of every sequence that has not ended
        # The first waiting one while pages are short, and what it was told when it was asked: it
        # is asked again when pages have come back since, wherever from, or shares are others.
        self._blocked: tuple[Sequence, object] | None = None
        self._turns: dict[Sequence, int] = {}  # of those admitted in the step that is planned
        self._held: set[Sequence] = set()  # they neither run nor wait, and hold no pages
        # Whose turn it is while a step is planned: what is raised meanwhile is its fault.
        self.turn: Sequence | None = None

    @property
    def has_work(self) -> bool:
        """Whether there is a sequence that may move."""
        return len(self._held) < len(self._keys)

    @property
    def num_waiting(self) -> int:
        """Sequences that hold no pages, the held ones included."""
        return len(self._keys) - len(self._running)

    @property
    def may_admit(self) -> bool:
        """Whether somebody who waits may start in the next step, as far as can be known now."""
        if not self._waiting:
            return False
        has_slot = len(self._running) < self.config.max_sequences
        if has_slot and self._blocked is None:
            return True  # whoever is next
        loads = self._shares.loads(self._running)
        sequence = self._waiting.first(loads)
        if self._shares.is_light(loads, sequence):
            return True
        return has_slot and not self._is_blocked(sequence)

    @property
    def num_running(self) -> int:
        """Sequences that hold pages."""
        return len(self._running)

    @property
    def running(self) -> tuple[Sequence, ...]:
        """Sequences that hold pages, the one admitted first in front."""
        return tuple(self._running)

    @property
    def waiting(self) -> tuple[Sequence, ...]:
        """Sequences that hold no pages, grouped by owner."""
        return tuple(iter(self._waiting))  # of the queue itself its length would be asked first

    @property
    def crowds(self) -> Set[str]:
        """Owners with several sequences, running or waiting."""
        return self._owners.crowds

    @property
    def capacity_tokens(self) -> int:
        """Length at which the engine ends a sequence, because nothing longer can be computed."""
        return self.cache.capacity_tokens

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence.

        Raises: ContextLengthError when not even one more token would ever fit.
        """
        assert sequence not in self._keys, "a sequence is added once"
        capacity = self.cache.capacity_tokens
        if sequence.num_tokens + 1 > capacity:
            raise ContextLengthError(
                f"prompt has {sequence.num_tokens} tokens and its answer at least 1; the cache "
                f"holds at most {capacity} tokens of one sequence. Shorten the prompt, or give "
                "the cache more memory.",
                param="prompt",
            )
        keys = self.cache.keys(sequence.cache_root, sequence.pinned_keys)
        self._waiting.add(sequence)
        self._keys[sequence] = keys
        self._owners.come(sequence.owner, self._num_steps)

    def schedule(self) -> list[Scheduled]:
        """What the next step computes; empty only when there is no work.

        Every list must be completed, or its sequences ended, before the next one is asked for.
        Where this raises, nothing was scheduled: end the sequence in turn, if any, and ask again.
        """
        self._num_steps += 1
        self._owners.forget_those_before(self._num_steps)
        self.turn = None
        steps = self._plan_step()
        if not steps and self.has_work:
            # A shortage of pages cannot lead here, an allocation that failed can: start afresh.
            while self._running:
                self.preempt(self._running[-1])
            steps = self._plan_step()
        assert steps or not self.has_work, "a step with work moves the oldest sequence"
        self._turns.clear()
        self.turn = None
        return steps

    def go_on(self, begun: Items[Sequence], starts: Items[int]) -> list[Scheduled]:
        """A decode step that was begun, without the sequences that have left it since.

        It takes the place of schedule(): whoever waits is asked in the next step.

        starts: position of each one's token.
        """
        self.turn = None
        self._num_steps += 1
        steps: list[Scheduled] = []
        for sequence, start in zip(begun, starts, strict=True):
            is_known = len(sequence.token_ids) == start + 1
            if is_known and sequence.num_computed_tokens == start and sequence.tables is not None:
                sequence.last_step = self._num_steps
                steps.append(Scheduled(sequence, start, 1, 0, True))
        return steps

    def hold(self, sequence: Sequence, *, is_held: bool) -> None:
        """Give a sequence no more steps, or let it go on; may be said of one that has ended.

        To be said between two steps. It is preempted at once, so that nobody waits for it: its full
        pages stay findable, and where nobody needed them it finds them again when its turn comes,
        before all that wait.
        """
        if sequence not in self._keys or (sequence in self._held) == is_held:
            return
        self._blocked = None
        if not is_held:
            self._held.remove(sequence)
            self._waiting.add_preempted(sequence)
            return
        if sequence.tables is not None:
            self.preempt(sequence)
        self._waiting.remove(sequence)
        self._held.add(sequence)

    def complete(self, scheduled: Scheduled, num_valid: int) -> None:
        """Make the first num_valid computed tokens final and roll back the rest.

        The tokens are in sequence.token_ids by now. A sequence that ended since schedule() is
        left alone.
        """
        sequence, tables = scheduled.sequence, scheduled.sequence.tables
        if sequence not in self._keys:
            return
        end = scheduled.start + num_valid
        assert tables is not None and sequence.num_computed_tokens == scheduled.start, (
            "each scheduled step is completed once, before the next is scheduled"
        )
        assert 0 <= num_valid <= scheduled.count, "no more is valid than was computed"
        assert end <= len(sequence.token_ids), "accepted drafts are appended before complete"
        if num_valid < scheduled.count:
            self.cache.truncate(tables, end)
        if sequence.draft_token_ids:
            self._drop_drafts(sequence)
        sequence.num_computed_tokens = end
        self.cache.commit(tables, sequence.token_ids, end)

    def finish(self, sequence: Sequence) -> None:
        """End a sequence, wherever it stands; its full pages stay findable.

        One that has ended, or was ended halfway, may be ended again.
        """
        self._drop_drafts(sequence)
        if sequence.tables is not None:
            self.cache.release(sequence.tables)
            sequence.tables = None
        if sequence in self._running:
            self._running.remove(sequence)
        elif sequence in self._held:
            self._held.remove(sequence)
        elif sequence in self._keys:
            self._waiting.remove(sequence)
        if self._keys.pop(sequence, None) is not None:
            self._owners.leave(sequence.owner, self._num_steps)
        self._blocked = None

    def spoil(self, sequence: Sequence) -> tuple[tuple[int, ...], ...]:
        """Let nobody find what a sequence stored whose numbers were not finite.

        Returns per group the pages to be zeroed before it is finished.
        """
        assert sequence.tables is not None, "only a running sequence has numbers"
        spoilt = self.cache.invalidate(sequence.tables, sequence.token_ids)
        if sequence.fork is None:
            return spoilt
        return tuple((*a, *b) for a, b in zip(spoilt, sequence.fork.pages, strict=True))

    def prompt_pages(self, sequence: Sequence) -> dict[int, dict[bytes, int]]:
        """By group the page of each key that can be found of a sequence's prompt."""
        keys, size = self._keys.get(sequence), self.cache.page_size
        if keys is None:
            return {}
        own = keys.between(0, sequence.num_prompt_tokens // size, sequence.token_ids)
        return {
            group: {k: page for k in own if (page := allocator.index.find(k)) is not None}
            for group, allocator in enumerate(self.cache.allocators)
        }

    def preempt(self, sequence: Sequence) -> None:
        """Take the pages of a running sequence; it will be computed again.

        In the very step of its admission its owner's turn, which was for nothing, comes again.
        """
        assert sequence.tables is not None, "a running sequence has tables"
        self._drop_drafts(sequence)
        self.cache.release(sequence.tables)
        sequence.tables = None
        self._running.remove(sequence)
        self._blocked = None
        sequence.num_computed_tokens = 0
        sequence.num_preemptions += 1
        self.num_preemptions += 1
        turn = self._turns.pop(sequence, None)
        if turn is None:
            self._waiting.add_preempted(sequence)
        else:
            self._waiting.give_back(sequence, turn)

    def _drop_drafts(self, sequence: Sequence) -> None:
        sequence.draft_token_ids.clear()
        sequence.other_token_ids.clear()
        if sequence.fork is not None:
            release(self.cache, sequence.fork)
            sequence.fork = None

    def _plan_step(self) -> list[Scheduled]:
        plan = _Plan(self.config)
        light, heavy = self._by_load()
        num_prompt = self._plan_light(plan, light)
        # Some may have given way to a light owner's newcomer.
        self._plan_heavy(plan, [s for s in heavy if s.tables is not None], num_prompt)
        if not num_prompt:
            for sequence in self._running:
                if sequence.draft_token_ids:
                    self._grant_drafts(plan, sequence)
        self._admit(plan)
        for sequence in plan.granted:
            sequence.last_step = self._num_steps
        return plan.schedule()

    def _by_load(self) -> tuple[list[Sequence], list[Sequence]]:
        """The running sequences of owners that have less than another, the least first; the rest.

        The oldest of all stands in front of either.
        """
        if len({s.owner for s in self._running}) < 2:  # most steps: nobody needs be weighed
            return [], list(self._running)
        loads = self._shares.loads(self._running)
        most = max(loads.values())
        light = [s for s in self._running if loads[s.owner] < most]
        light.sort(key=lambda s: (s is not self._running[0], loads[s.owner]))
        return light, [s for s in self._running if loads[s.owner] == most]

    def _plan_light(self, plan: _Plan, light: list[Sequence]) -> int:
        """Let owners with less than another go first. Returns how many tokens of prompts."""
        if not light and not self._waiting:
            return 0
        decodes, prefills = _split(light)
        for sequence in decodes:
            self._grant(plan, sequence, 1)
        share = self.config.max_tokens_per_step // (1 + PROMPT_TOKENS_PER_TOKEN)
        kept_back = max(1, min(share, plan.budget - len(prefills) - 1))
        plan.budget -= kept_back
        for sequence in prefills:
            self._grant(plan, sequence, plan.chunk(_num_left(sequence)))
        self._admit(plan, is_light=True)
        plan.budget += kept_back
        # Not what the budget lost: the token of an answer that gave way to a prompt came back.
        num_answer = sum([plan.granted.get(sequence, 0) for sequence in decodes])
        return sum(plan.granted.values()) - num_answer

    def _plan_heavy(self, plan: _Plan, heavy: list[Sequence], num_prompt: int) -> None:
        """A token for each answer and a chunk of each prompt; few while a light owner's goes on."""
        most = self._most_of_heavy(num_prompt)
        if most is not None:
            plan.budget = min(plan.budget, most)
            plan.gives_back = not num_prompt  # a light owner's tokens are not for these
            # The oldest moves; of the others those that have waited longest.
            heavy.sort(key=lambda s: (s is not self._running[0], s.last_step))
        decodes, prefills = _split(heavy)
        kept_back = int(prefills[:1] == heavy[:1])  # a token, so that the oldest moves
        if most is not None and (prefills or self.may_admit):  # answers alone could fill each step
            kept_back = max(kept_back, plan.budget // 4)
        plan.budget -= kept_back
        for sequence in decodes:
            self._grant(plan, sequence, 1)
        plan.budget += kept_back
        # Drafts come before prompts in the budget, but after them in pages: nobody is preempted
        # for a guess.
        num_drafts = 0 if num_prompt else sum([len(s.draft_token_ids) for s in self._running])
        kept_back = max(0, min(num_drafts, plan.budget - len(prefills)))
        plan.budget -= kept_back
        for sequence in prefills:
            self._grant(plan, sequence, plan.chunk(_num_left(sequence)))
        plan.budget += kept_back
        if num_prompt and plan.has_preempted:
            self._take_back(plan, heavy)

    def _take_back(self, plan: _Plan, heavy: list[Sequence]) -> None:
        """Where light owners' prompts gave way in this step, keep to the share beside the others.

        The last to get tokens loses them first; the oldest keeps one.
        """
        granted = [s for s in heavy if s in plan.granted]
        others = plan.granted.keys() - set(granted)
        num_prompt = sum(plan.granted[s] for s in others if _num_left(s) > 1)
        if not num_prompt:
            return
        excess = sum(plan.granted[s] for s in granted) - share_beside(num_prompt)
        for sequence in sorted(granted, key=list(plan.granted).index, reverse=True):
            assert sequence.tables is not None, "whoever is in the step has tables"
            count = plan.granted[sequence]
            kept = max(count - max(0, excess), int(sequence is self._running[0]))
            if kept < count:
                excess -= count - kept
                plan.keep(sequence, kept)
                self.cache.truncate(sequence.tables, sequence.num_computed_tokens + kept)

    def _most_of_heavy(self, num_prompt: int) -> int | None:
        """Tokens that who has most may take; None sets no bound.

        num_prompt: what light owners' prompts take of this step.
        """
        if num_prompt:
            return share_beside(num_prompt)
        shared = self.config.shared_tokens
        return shared if shared and self._owners.has_room_to_keep else None

    def _grant(self, plan: _Plan, sequence: Sequence, wanted: int) -> None:
        """Give a running sequence what budget and pages allow; for its first token, preempt."""
        self.turn = sequence
        wanted = min(wanted, plan.budget)
        start = sequence.num_computed_tokens
        takes_all = False
        # Without tables it was preempted for an older one in this very step.
        while wanted > 0 and sequence.tables is not None:
            if self.cache.reserve(sequence.tables, start + wanted, takes_all=takes_all):
                grant = plan.grant_prompt if _num_left(sequence) > 1 else plan.grant
                grant(sequence, wanted)
                return
            room = self.cache.room(sequence.tables, takes_all=takes_all) - start
            if 0 < room < wanted:
                wanted = room
                continue
            victim = self._shares.victim(self._running, sequence)
            is_oldest = sequence is self._running[0]
            if is_oldest and not takes_all and (not victim or victim.owner != sequence.owner):
                takes_all = True  # what others have cached goes before what they run
            elif victim is None:
                return  # it keeps its pages and waits for more
            else:
                self._withdraw(plan, victim)

    def _grant_drafts(self, plan: _Plan, sequence: Sequence) -> None:
        """Let the drafts join for which budget and pages are left over, and drop the others."""
        tables, drafts = sequence.tables, sequence.draft_token_ids
        if tables is None or sequence not in plan.granted:
            return
        self.turn = sequence
        known = sequence.num_tokens
        del drafts[max(0, min(plan.budget, sequence.max_length - known - 1)) :]
        if not self.cache.reserve(tables, known + len(drafts)):
            del drafts[max(0, self.cache.room(tables) - known) :]
            if drafts and not self.cache.reserve(tables, known + len(drafts)):
                return
        if drafts:
            plan.grant(sequence, len(drafts))
            self._grant_other(plan, sequence)

    def _grant_other(self, plan: _Plan, sequence: Sequence) -> None:
        """Let other guesses be computed in place of as many drafts, if there are pages for both."""
        tables, count = sequence.tables, len(sequence.draft_token_ids)
        assert tables is not None, "who has drafts runs"
        del sequence.other_token_ids[count:]
        if len(sequence.other_token_ids) < count or plan.budget < 1 + count or self._waiting:
            return  # who waits may need the pages
        start = sequence.num_computed_tokens
        sequence.fork = fork(self.cache, tables, start=start, num_tokens=start + 1 + count)
        if sequence.fork is not None:
            plan.budget -= 1 + count

    def _admit(self, plan: _Plan, *, is_light: bool = False) -> None:
        """Start waiting sequences in turn while slots, budget and pages last.

        is_light: only those of owners that still have less than another; others give way to them.
        """
        # Whoever was preempted in this step would only come back to be preempted again.
        if plan.has_preempted or not self._waiting:
            return
        has_slot = len(self._running) < self.config.max_sequences
        if not has_slot and not is_light and self._blocked is None:
            return  # most steps of a full engine: nobody needs be asked who is next
        loads = self._shares.loads(self._running)
        owed: list[Counter[str]] | None = None
        while self._waiting and plan.budget > 0 and plan.prompt_budget > 0:
            sequence = self._waiting.first(loads)
            if is_light and not self._shares.is_light(loads, sequence):
                return
            if self._is_blocked(sequence):
                return
            self.turn = sequence
            has_slot = len(self._running) < self.config.max_sequences
            if not has_slot and not is_light:
                self._blocked = None
                return
            owed = owed or self._owed(self._running)
            admitted = self._tables_for(sequence, owed) if has_slot else None
            if admitted is None and is_light:
                giving = self._giving_way(sequence, owed)
                for victim in giving:
                    self._withdraw(plan, victim)
                if giving:
                    loads, owed = self._shares.loads(self._running), self._owed(self._running)
                    admitted = self._tables_for(sequence, owed)
            if admitted is None:
                news = self.cache.news_for(sequence.owner)
                self._blocked = (sequence, news) if has_slot else None
                return
            if not self._start(plan, sequence, *admitted):
                return
            loads[sequence.owner] += self._shares.weight(sequence)
            self._add_owed(owed, sequence)

    def _is_blocked(self, sequence: Sequence) -> bool:
        """Whether it waits for pages, and would be told what it was told when it was asked."""
        blocked = self._blocked
        if blocked is None or blocked[0] is not sequence:
            return False  # what is new for it is asked of every owner's pages
        return blocked[1] == self.cache.news_for(sequence.owner)

    def _giving_way(self, sequence: Sequence, owed: list[Counter[str]]) -> list[Sequence]:
        """Who has to give way so that a waiting sequence can start; nobody where it is of no use.

        owed: pages per group and owner that running sequences still need.
        """
        needed = self.cache.most_pages(sequence.num_tokens)
        giving: list[Sequence] = []
        tables: list[PageTables] = []
        for victim in self._shares.victims_for(self._running, sequence):
            assert victim.tables is not None, "a running sequence has tables"
            giving.append(victim)
            tables.append(victim.tables)
            owed = [old - own for old, own in zip(owed, self._owed([victim]), strict=True)]
            # Pages that come back may only make good what their owner has cached within its share.
            left = self.cache.available_to(sequence.owner, back=tables, owed=owed)
            if all(n <= a for n, a in zip(needed, left, strict=True)):
                return giving
        return []

    def _tables_for(
        self, sequence: Sequence, owed: list[Counter[str]]
    ) -> tuple[PageTables, int] | None:
        # Prompt logprobs need the logits of every prompt token, so all are computed.
        max_hit = 0 if sequence.request.params.prompt_logprobs is not None else None
        return self.cache.admit(
            sequence.token_ids,
            self._keys[sequence],
            max_hit=max_hit,
            owed=owed,
            owner=sequence.owner,
            takes_all=not self._running,  # whoever runs alone could not wait for anybody
        )

    def _start(self, plan: _Plan, sequence: Sequence, tables: PageTables, num_hit: int) -> bool:
        wanted = min(plan.chunk(sequence.num_tokens - num_hit), plan.budget)
        count = min(wanted, self.cache.room(tables, takes_all=not self._running) - num_hit)
        is_started = False
        try:
            if self.cache.reserve(tables, num_hit + count, takes_all=not self._running):
                self._turns[sequence] = self._waiting.pop(sequence)
                is_started = True
        finally:
            if not is_started:
                again(partial(self.cache.release, tables))
        if not is_started:
            return False
        self._running.append(sequence)
        sequence.tables = tables
        sequence.num_computed_tokens = num_hit
        if sequence.num_preemptions == 0:
            sequence.num_cached_tokens = num_hit
        plan.grant_prompt(sequence, count)
        return True

    def _owed(self, running: list[Sequence]) -> list[Counter[str]]:
        """Pages per group and owner that running sequences still need for what they know already.

        One page more for each that may grow so far: without it, in a pool of 100 pages of 8
        tokens, whom we admit is preempted twice as often (1.43 instead of 1.19 tokens computed
        per token needed, for 3 % fewer steps).
        """
        owed: list[Counter[str]] = [Counter() for _ in self.cache.allocators]
        for sequence in running:
            self._add_owed(owed, sequence)
        return owed

    def _add_owed(self, owed: list[Counter[str]], sequence: Sequence) -> None:
        assert sequence.tables is not None, "a running sequence has tables"
        length, owner = len(sequence.token_ids) + self.cache.page_size, sequence.owner
        missing = self.cache.missing(sequence.tables, min(length, sequence.max_length))
        for group, number in zip(owed, missing, strict=True):
            group[owner] = group.get(owner, 0) + number

    def _withdraw(self, plan: _Plan, victim: Sequence) -> None:
        """Preempt a sequence that may be in the step already."""
        plan.withdraw(victim)
        plan.has_preempted = True
        self.preempt(victim)


def _split(running: list[Sequence]) -> tuple[list[Sequence], list[Sequence]]:
    """Those with one token to compute, and those with more."""
    decodes: list[Sequence] = []
    prefills: list[Sequence] = []
    for sequence in running:  # every one in every step: once through, and one call for each
        num_left = _num_left(sequence)
        assert num_left > 0, (
            "a running sequence has a token to compute: append the sampled one, or finish it"
        )
        (prefills if num_left > 1 else decodes).append(sequence)
    return decodes, prefills


def _num_left(sequence: Sequence) -> int:
    return len(sequence.token_ids) - sequence.num_computed_tokens
