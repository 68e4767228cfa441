"""The pipeline in one place: requests in, one step at a time, tokens and text out.

Start reading at step(). Each stage is called from here and knows nothing of the next.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Items
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Concatenate, NamedTuple, ParamSpec

import torch

from cutaway.cache.fork import adopt
from cutaway.cache.paged import CacheStats
from cutaway.cache.stores import PageStore
from cutaway.core.errors import CutawayError, DeadlineError, NumericsError
from cutaway.core.output import Delta, ToldChoice
from cutaway.core.request import Request, SamplingParams
from cutaway.core.step import Sink
from cutaway.engine.admission.prerequisites import AdmissionQueue
from cutaway.engine.admission.request_checks import check_request
from cutaway.engine.ahead import Ahead
from cutaway.engine.batch import Batch, build_batch
from cutaway.engine.breaks import Breaks, BrokenOffError, EngineLostError
from cutaway.engine.config import EngineConfig
from cutaway.engine.drafting import Drafting, check_draft, refuse_states
from cutaway.engine.draws import SequenceDraws, draw, score_prompts, take_until_fault
from cutaway.engine.follow import Follower
from cutaway.engine.loading.fingerprints import fingerprints
from cutaway.engine.loading.loaded_model import LoadedModel
from cutaway.engine.loading.paged_model import page_model
from cutaway.engine.native import is_recorded
from cutaway.engine.pace import Pace
from cutaway.engine.pages.pins import Pins
from cutaway.engine.recorder import Recorder
from cutaway.engine.running import NewTokens, Running
from cutaway.engine.scheduler import Scheduled, Scheduler, SchedulerConfig
from cutaway.engine.sequence import Sequence
from cutaway.host.faults import again, error_of, note
from cutaway.sampling.accept import accept
from cutaway.sampling.grammars.grammar_compiler import result_of
from cutaway.sampling.grammars.grammar_state import GrammarState
from cutaway.sampling.sampler import Sampled, Sampler
from cutaway.trace.ledger import Ledger

# Prompt tokens in a step of native kernels. More make it longer and no prompt faster: SmolLM2 takes
# 0.45 ms a token from 64 tokens on, 0.49 with 512 and 0.85 with 2,048 in one step.
_NATIVE_PROMPT_TOKENS = 128
# Tokens of who has most in a step while others come, answers included: SmolLM2 on one core takes 50
# ms for 128 of a prompt and 14.5 for 32, where a first token with a cached prefix takes 9; it costs
# prompts 13 % of their speed. 64 answers take 75 ms in one step and 79 in two.
_NATIVE_SHARED_TOKENS = 32
# How long a step without other work waits for a grammar: no longer than a new request may wait.
_COMPILE_WAIT = 0.005
_CLOSE_SECONDS = 5.0  # for pages that are still being written
_ENDS = "this answer ends here"

P = ParamSpec("P")


class Computed(NamedTuple):
    """What a step gave.

    drawn:   for each scheduled sequence.
    began, computed: when it was begun, and when its forward was handed to the device.
    """

    batch: Batch
    drawn: list[SequenceDraws]
    computed: float
    began: float


class Settled(NamedTuple):
    """A sequence whose tokens were taken.

    tell: what is left to do, for which the device need not wait.
    goes_on: whether it is in the next step, as far as is known without telling.
    """

    tell: Callable[[], None] | None = None
    goes_on: bool = False


@dataclass
class Plan:
    """A step that is computed next, or is being computed.

    began:  when it was planned.   spent: what it took in the step before, where it was launched.
    awaited: whether it was not begun ahead, for the guesses that it might have got.
    num_captured: captured steps by then: a step that adds one takes the time of a capture.
    """

    scheduled: list[Scheduled]
    began: float
    awaited: bool
    num_captured: int
    spent: float = 0.0


class Engine:
    """Runs any number of requests at once over one model.

    Not thread-safe: one caller adds, steps and aborts. A fault of our own ends the sequence whose
    work raised it, and nobody else; docs/faults.md has the table.
    """

    def __init__(
        self,
        model: LoadedModel,
        config: EngineConfig,
        *,
        num_pages: int,
        drafting: Drafting | None = None,
        sink: Sink | None = None,
        scores_drawn: bool = False,
        page_secret: bytes | None = None,
        pinned: Items[tuple[str, Items[int]]] = (),
        piece_tokens: int | None = None,
    ) -> None:
        """scores_drawn: see SamplerRow; a request that asks for logprobs gets them so.

        page_secret: of which keys of pages are made; None draws one. Engines that share it could
        find one another's pages.
        pinned: names and tokens of prefixes that are computed first and never evicted.
        piece_tokens: most of one forward, for whoever lets others in between two; a step of more
            sequences is computed in several. Where the runner is invariant that changes no bit.
        """
        config = config.on(model.device.type)
        self.model = model
        self.config = config
        self.sink = sink
        self._streams = None if drafting is None else drafting.streams
        paged = page_model(
            model,
            config,
            num_pages=num_pages,
            streams=self._streams,
            pinned_tokens=sum(len(token_ids) for _, token_ids in pinned),
        )
        self.cache, self.runner, self.max_length = paged.cache, paged.runner, paged.max_length
        self.scheduler = Scheduler(
            SchedulerConfig(
                max_sequences=config.max_sequences,
                max_tokens_per_step=config.max_tokens_per_step,
                prefill_chunk=config.prefill_chunk,
                max_prompt_tokens=_max_prompt_tokens(model, piece_tokens),
                shared_tokens=_NATIVE_SHARED_TOKENS if is_recorded(model) else None,
            ),
            self.cache,
        )
        self.sampler = Sampler(model.facts.vocab_size)
        self._scores_drawn = scores_drawn
        self.ledger = Ledger(config.ledger_bytes) if config.ledger_bytes else None
        self.recorder = (
            None if self.ledger is None else Recorder(self.ledger, page_size=config.page_size)
        )
        # Of the weights as recording began, to find out later which have changed.
        self.fingerprints = {} if self.ledger is None else fingerprints(model.transformer)
        self._can_roll_back = paged.can_roll_back
        if not paged.can_roll_back:
            refuse_states(config, model.name)
        self.drafting = drafting if paged.can_roll_back else None
        runs_ahead = self.runner.runs_ahead and sink is None
        self._ahead = Ahead(self.runner, self.scheduler) if runs_ahead else None
        self._awaits_guesses = False  # no step was begun ahead, for those of the next one
        self._next: Plan | None = None  # which was launched before the last step was told of
        self._answers: dict[Sequence, Running] = {}
        self._suspects: set[Sequence] = set()  # of a step that raised: each is computed alone
        self._piece_tokens = piece_tokens
        self._admission = AdmissionQueue(
            model, self.scheduler, max_length=self.max_length, page_secret=page_secret
        )
        self.page_keys = self._admission.page_keys
        self._prompt_stores: list[PageStore] = []  # that want the pages of prompts
        self.tells_draws = False  # whether somebody wants what each token was drawn from
        self._rejoining: set[Sequence] = set()  # their last token was told by another engine
        self.pace = Pace()
        self.breaks = Breaks()
        self._news: list[Delta] = []  # what the next end of a step says
        self._next_end = math.inf  # no deadline lies before
        self.follower = Follower(self)
        self.num_steps = 0
        self.num_drafted = 0
        self.num_accepted = 0
        self.pins = Pins(
            self.cache,
            root=self._admission.pinned_root,
            page_bytes=self.runner.pool.page_bytes,
            max_length=self.max_length,
        )
        self._admission.pins = self.pins
        for name, token_ids in pinned:
            self.pin(name, token_ids)

    def renew_weights(self) -> None:
        """Take up weights that were changed in place: nothing of the old ones is found again.

        Pages get keys of another root, recorded answers are dropped, since they cannot be run
        again, and fingerprints are taken anew. Captured steps read the same tensors.

        No answer may be under way: it would have begun under other weights than it ends.
        """
        assert not self.has_work and not self._answers, "an answer has one version of weights"
        assert not is_recorded(self.model), "packed weights are copies; they are never trained"
        self.pins.forget()
        self._admission.renew()
        if self.ledger is not None:
            self.ledger.forget()
            self.fingerprints = fingerprints(self.model.transformer)

    def attach(self, stores: Items[PageStore]) -> None:
        """Have stores behind the pages, before the first request."""
        self.cache.attach(stores)
        self.runner.moves = self.cache.moves
        self._prompt_stores = [store for store in stores if not store.takes_evicted]

    def close(self) -> None:
        """Let stores keep what they were given; nothing is computed any more."""
        for store in self.cache.moves.stores:
            store.close(_CLOSE_SECONDS)

    def pin(self, name: str, token_ids: Items[int]) -> None:
        """Have a prefix computed and never evicted. Raises: as Pins.begin."""
        self.add(self.pins.begin(name, token_ids))

    def load_adapter(self, name: str, path: str) -> None:
        """Let requests name an adapter from now on. Raises: ConfigError, ModelFormatError."""
        self.model.adapters.load(name, path)

    def unload_adapter(self, name: str) -> None:
        """Refuse it to new requests; answers that have it go on. Raises: ConfigError."""
        self.model.adapters.unload(name)
        self.free_adapters()

    def free_adapters(self) -> None:
        """Let go what was unloaded and no answer here has any more."""
        self.model.adapters.free([sequence.adapter for sequence in self._answers])

    @property
    def has_work(self) -> bool:
        """Whether a step would do something, or news wait to be handed out."""
        return self.scheduler.has_work or bool(self._news) or bool(self._admission)

    @property
    def cache_stats(self) -> CacheStats:
        """Pages of the cache by state, and what the prefix index gave since the start."""
        return self.cache.stats

    def add(self, request: Request, told: Items[ToldChoice] = ()) -> None:
        """Queue a request; or go on with some of its choices, which another engine began.

        told: what that one said of each. It is as if they had been preempted here: tokens and text
        follow from there on, after a delta that tells whether the seam is exact. A choice that had
        ended is recorded alone, and that delta is its last.
        Raises: RequestError when a field does not fit the model; ContextLengthError when prompt
        and answer can never fit; GrammarError when the compiler of grammars is not installed.
        Nothing is queued then. A grammar that cannot be compiled ends the request with a delta.
        """
        arrived = perf_counter()
        check_request(request, self.model.facts.vocab_size, self.max_length)
        check_draft(
            request.params.draft,
            self.drafting,
            can_roll_back=self._can_roll_back,
            name=self.model.name,
        )
        sequences = self._admission.open(request, told)
        # All that may raise comes before the first change, so a bad request leaves no trace.
        answers = {sequence: self._answer(sequence, arrived) for sequence in sequences}
        for answer in answers.values():
            for token_id in request.continued_token_ids:
                answer.stream.advance(token_id)  # another server has told its text
        for sequence, choice in zip(sequences, told, strict=False):
            if choice.token_ids:
                answers[sequence].told = choice
                for token_id in choice.token_ids[:-1]:
                    answers[sequence].stream.advance(token_id)  # its text was told
        try:
            self._admission.add(sequences)
        except BaseException:
            for sequence in sequences:  # whole or not at all
                self._admission.discard(sequence)
                self.scheduler.finish(sequence)
            raise
        self._answers.update(answers)
        self._rejoining |= {sequence for sequence in sequences if answers[sequence].told}
        for sequence in sequences:
            if self.drafting is not None:
                self.drafting.begin(sequence)
            self._record(Recorder.open_answer, sequence, arrived=arrived)
        self._next_end = min(self._next_end, answers[sequences[0]].ends)

    def abort(
        self, request_id: str, *, choice: int | None = None, error: CutawayError | None = None
    ) -> None:
        """End a request, or one choice that has begun.

        Its pages are free at once, its last delta comes with the next step.
        """
        ended = [
            s
            for s in self._answers
            if s.request.request_id == request_id and choice in (None, s.choice)
        ]
        for sequence in ended:
            try:
                has_followers = self._admission.discard(sequence)
                assert choice is None or not has_followers, "others wait for this choice's prompt"
                self.scheduler.finish(sequence)
                answer = self._answers[sequence]
                self._close(answer, answer.delta(reason="abort", error=error))
            except Exception as fault:
                self._break(sequence, fault)

    def hold(self, request_id: str, *, is_held: bool) -> None:
        """Make no more of a request until told otherwise: its reader is slow. Nobody waits for it.

        May be said of one that has ended.
        """
        for sequence in self._answers:
            if sequence.request.request_id == request_id:
                self.scheduler.hold(sequence, is_held=is_held)

    def grammar_state(self, params: SamplingParams) -> GrammarState | None:
        """The grammar of an answer before its first token; compiled again where it is not kept."""
        return self._admission.grammar_state(params)

    def step(self) -> list[Delta]:
        """Compute one step and say what is new. Empty when there is no work.

        Raises: what is no sequence's fault. Nothing is lost by it: the next step goes on.
        """
        self._end_the_late(perf_counter())
        self._take_compiled(may_wait=not self._news and not self.scheduler.has_work)
        began = perf_counter()  # a step's time is all of it, drafting and scheduling too
        plan = self._take_next() or self._plan()
        for batch, drawn_for, computed, start in self._whole(plan.scheduled, began):
            ended = perf_counter()
            for item in batch.scheduled:
                if item.took_other:
                    _take_other(item.sequence)
            self._record(Recorder.note_plan, self.num_steps, batch)
            settled = self._settle_all(batch.scheduled, drawn_for)
            seconds = plan.spent + ended - start
            is_usual = self.runner.num_captured == plan.num_captured
            drafting = self.drafting
            if drafting is not None and drafting.is_asked and not drafting.is_resting and is_usual:
                drafting.learn_time(batch.scheduled, seconds, was_awaited=plan.awaited)
            kernel = self.runner.kernel
            try:
                if all(each is not None and each.goes_on for each in settled):
                    self._launch_next(batch.scheduled)
            finally:
                self._tell_all(batch.scheduled, settled)
                self._record(
                    Recorder.end_step, self.num_steps, kernel=kernel, began=start, computed=computed
                )
                self.pace.note(batch.scheduled, seconds)
                self.num_steps += 1
        if self._next is not None:
            self._next.spent = perf_counter() - self._next.began
        news, self._news = self._news, []
        return self.pins.take(news)

    def _plan(self) -> Plan:
        """The next step, with its guesses."""
        began, awaited = perf_counter(), self._awaits_guesses
        self._draft()
        scheduled = self._schedule()
        if restored := self.cache.moves.take_restored():
            self._record(Recorder.forget_writers, restored)
        return Plan(scheduled, began, awaited, self.runner.num_captured)

    def _launch_next(self, scheduled: Items[Scheduled]) -> None:
        """Hand over a step that hangs on what this one said, before this one is told of.

        Only where it holds the same sequences: who comes or ends meanwhile is no part of it.
        """
        ahead = self._ahead
        if ahead is None or ahead.has_begun:
            return
        is_apart = self._suspects or self._rejoining or self._piece_tokens is not None
        is_adapted = any(item.sequence.adapter >= 0 for item in scheduled)
        if is_apart or is_adapted or not ahead.keeps_company(len(scheduled)):
            return
        plan = self._plan()
        if not plan.scheduled:
            return
        self._next = plan
        try:
            ahead.launch(self._batch_of(plan.scheduled), self._answers)
        except (torch.AcceleratorError, EngineLostError):
            raise
        except Exception as fault:
            note("a step raised as it was launched; it is computed again.", fault)

    def _take_next(self) -> Plan | None:
        """The step that was launched, unless somebody has left it since: then it is forgotten."""
        plan, self._next = self._next, None
        if plan is None:
            return None
        staying = [item for item in plan.scheduled if self._stands(item)]
        if len(staying) == len(plan.scheduled):
            return plan
        for item in staying:
            self.scheduler.complete(item, 0)
        return None

    def _stands(self, item: Scheduled) -> bool:
        """Whether a sequence is still where its step was planned."""
        sequence = item.sequence
        is_there = sequence in self._answers and sequence.tables is not None
        return is_there and sequence.num_computed_tokens == item.start

    def _end_the_late(self, now: float) -> None:
        """End the requests whose deadline is over, wherever they stand."""
        if now < self._next_end:
            return
        late = [answer.sequence.request for answer in self._answers.values() if answer.ends <= now]
        for request in {request.request_id: request for request in late}.values():
            error = DeadlineError(
                f"the answer took longer than its deadline of {request.deadline:g} seconds. Ask "
                "for fewer tokens, or allow more time."
            )
            self.abort(request.request_id, error=error)
        self._next_end = min((a.ends for a in self._answers.values()), default=math.inf)

    def _schedule(self) -> list[Scheduled]:
        """What the step computes. A sequence in whose turn that raises ends."""
        if self._ahead is not None and (begun := self._ahead.plan()):
            return begun
        while True:
            try:
                return self.scheduler.schedule()
            except Exception as fault:
                if self.scheduler.turn is None:
                    raise
                self._break(self.scheduler.turn, fault)

    def _whole(self, scheduled: Items[Scheduled], began: float) -> Iterator[Computed]:
        """What a step gives; nothing where it was broken off, and all of it is planned again."""
        try:
            yield from self._computed(scheduled, began)
        except BrokenOffError:
            self.breaks.note()
            for item in scheduled:
                self.scheduler.complete(item, 0)

    def _computed(self, scheduled: Items[Scheduled], began: float) -> Iterator[Computed]:
        """What a step gives: in one part, unless that raises.

        Then its halves are computed apart, which asks for less memory too, down to a sequence
        that raises alone: it ends.
        """
        for item in scheduled:
            answer = self._answers[item.sequence]
            answer.started = answer.started or began
        is_over = self._is_over(scheduled)
        parts = self._apart(scheduled) if self._suspects else self._in_pieces(scheduled)
        while parts and (part := parts.pop()):
            try:
                computed = self._compute(part, began, is_over if part is scheduled else None)
            except (torch.AcceleratorError, BrokenOffError, EngineLostError):
                raise  # the device or a rank is lost for everybody; or nobody is at fault
            except Exception as fault:
                if len(part) == 1:
                    self._break(part[0].sequence, fault)
                elif self._can_roll_back:
                    note("a step raised; its halves are computed apart.", fault)
                    parts += part[len(part) // 2 :], part[: len(part) // 2]
                else:
                    self._take_back(part, fault)
            else:
                yield computed
            began = perf_counter()

    def _compute(
        self, scheduled: Items[Scheduled], began: float, is_over: Callable[[], bool] | None
    ) -> Computed:
        """The forward and the draws. Where this raises it may be done again, to the same bits."""
        launched = None if self._ahead is None else self._ahead.batch_launched(scheduled)
        batch = launched or self._batch_of(scheduled)
        if self._ahead is not None:
            # Guesses are made of what the host knows, so it does not run ahead of a step that may
            # have some. At a seam the token that was told follows, whatever the device draws.
            # Captured steps are those of the model alone.
            drafting = self.drafting
            self._awaits_guesses = (
                drafting is not None and drafting.is_asked and drafting.may_guess(scheduled)
            )
            is_adapted = any(sequence.adapter >= 0 for sequence in self._answers)
            self._ahead.is_held = self._awaits_guesses or is_adapted or bool(self._rejoining)
            return Computed(batch, *self._ahead.compute(batch, self._answers), began)
        logits = self.runner.run(batch, is_over)
        if self._streams is not None and self.drafting is not None:
            self.drafting.observe(scheduled, self._streams)
        computed = perf_counter()
        score_prompts(batch, logits, self._answers)
        return Computed(batch, draw(self.sampler, batch, logits, self._answers), computed, began)

    def _batch_of(self, scheduled: Items[Scheduled]) -> Batch:
        """What goes into the forward; where two ways part, the page is copied."""
        layers, device = self.runner.pool.layers, self.model.device
        runs_ahead = self._ahead is not None
        batch = build_batch(scheduled, layers, device=device, sink=self.sink, later=runs_ahead)
        for item in scheduled:
            if item.sequence.fork is not None and any(item.sequence.fork.copies):
                self.runner.copy(item.sequence.fork.copies)
        return batch

    def _is_over(self, scheduled: Items[Scheduled]) -> Callable[[], bool] | None:
        """What tells whether a step is to be broken off; None where it never is."""
        if not self._can_roll_back or self._suspects:
            return None
        may_break = self.breaks.may_break(scheduled, self.scheduler.crowds)
        return self.breaks.is_wanted if may_break else None

    def _take_back(self, part: Items[Scheduled], fault: Exception) -> None:
        """Begin again, each alone: states may have gone on in the step that raised."""
        note("a step raised; its sequences are computed again, each alone.", fault)
        for item in reversed(part):  # the oldest is preempted last, and so admitted first
            self.scheduler.preempt(item.sequence)
            self._suspects.add(item.sequence)

    def _apart(self, scheduled: Items[Scheduled]) -> list[Items[Scheduled]]:
        """The parts of a step in which each suspect is alone; what is no suspect comes first."""
        alone = [[item] for item in scheduled if item.sequence in self._suspects]
        others = [item for item in scheduled if item.sequence not in self._suspects]
        self._suspects -= {item.sequence for item in scheduled if item.samples}
        return [*alone, others] if others else [*alone]

    def _in_pieces(self, scheduled: Items[Scheduled]) -> list[Items[Scheduled]]:
        """A step as forwards of no more than piece_tokens, the last one first."""
        most = self._piece_tokens
        if most is None or sum(item.count + item.num_other for item in scheduled) <= most:
            return [scheduled]
        pieces: list[list[Scheduled]] = []
        left = 0
        for item in scheduled:
            count = item.count + item.num_other
            if count > left:
                pieces.append([])
                left = most
            pieces[-1].append(item)
            left -= count
        return [*reversed(pieces)]

    def _settle_all(
        self, scheduled: Items[Scheduled], drawn_for: Items[SequenceDraws]
    ) -> list[Settled | None]:
        """Take each sequence past what was computed for it. One whose turn raises ends: None."""
        settled: list[Settled | None] = []
        for item, drawn in zip(scheduled, drawn_for, strict=True):
            try:
                settled.append(self._settle(item, drawn))
            except EngineLostError:
                raise
            except Exception as fault:
                self._break(item.sequence, fault)
                settled.append(None)
        return settled

    def _tell_all(self, scheduled: Items[Scheduled], settled: Items[Settled | None]) -> None:
        """Do what is left of each sequence that has not ended. One whose turn raises ends."""
        answers = self._answers
        for item, each in zip(scheduled, settled, strict=True):
            if each is None or each.tell is None or item.sequence not in answers:
                continue
            try:
                each.tell()
            except EngineLostError:
                raise
            except Exception as fault:
                self._break(item.sequence, fault)

    def _settle(self, item: Scheduled, drawn: SequenceDraws) -> Settled:
        """Take one sequence past what was computed for it: all that the next step hangs on."""
        sequence = item.sequence
        answer = self._answers[sequence]
        if answer.is_spoilt:
            return Settled(partial(self._fail, answer))
        if not item.samples:
            self.scheduler.complete(item, item.count)
            return Settled()
        if answer.fault is not None:
            return Settled(partial(self._refuse, answer, answer.fault))
        emitted = take_until_fault(drawn.token_ids)
        if not emitted:
            return Settled(partial(self._fail, answer))
        if answer.told is not None:
            return Settled(partial(self._rejoin, item, answer, answer.told, drawn.rows[0]))
        if item.num_drafts:
            # A draft that leads to a bad row is no reason to fail before plain decoding would.
            emitted = accept(emitted, sequence.draft_token_ids[: len(emitted) - 1])
        if sequence.request.params.max_tokens == 0:
            emitted = []
        is_first = answer.first_token is None
        answer.first_token = answer.first_token or perf_counter()
        taken = answer.take(emitted)
        sequence.token_ids += taken.token_ids
        if item.num_drafts:
            num_right = max(0, len(emitted) - 1)
            num_tried = item.num_drafts * (1 + item.is_forked)
            self.num_drafted += num_tried
            self.num_accepted += num_right
            answer.num_drafted += num_tried
            answer.num_accepted += num_right
            if self.drafting is not None:
                self.drafting.learn(item, right=num_right)
        # The last emitted token was not computed, and rejected drafts are rolled back.
        num_kept = min(len(taken.token_ids), max(0, len(emitted) - 1))
        self.scheduler.complete(item, item.count - item.num_drafts + num_kept)
        tell = partial(self._tell, answer, taken, drawn, is_first=is_first)
        return Settled(tell, goes_on=taken.reason is None and not is_first)

    def _tell(
        self, answer: Running, taken: NewTokens, drawn: SequenceDraws, *, is_first: bool
    ) -> None:
        """Record and say what a step added to an answer."""
        sequence = answer.sequence
        is_read = self.recorder is not None or answer.tells_draws
        is_read = is_read or sequence.request.params.logprobs is not None
        rows = drawn.rows if is_read else ()
        self._record_tokens(sequence, taken.token_ids, rows)
        if is_first and self._prompt_stores and not sequence.load_id:  # drawn at each load
            self._keep_prompt(sequence)
        self._admission.release(sequence)
        delta = answer.delta(
            taken.token_ids, taken.text, rows, reason=taken.reason, stopped_by=taken.stopped_by
        )
        if taken.reason is None:
            self._news.append(delta)
            return
        self.scheduler.finish(sequence)
        self._close(answer, delta)

    def _keep_prompt(self, sequence: Sequence) -> None:
        """Hand the full pages of a prompt to the stores that want them. A fault ends that alone."""
        try:
            for group, found in self.scheduler.prompt_pages(sequence).items():
                for store in self._prompt_stores:
                    new = {key: page for key, page in found.items() if not store.has(group, key)}
                    if not new:
                        continue
                    contents = self.runner.pool.read(group, [*new.values()]).numpy()
                    for key, content in zip(new, contents, strict=True):
                        store.put(group, key, content)
        except Exception as fault:
            note("pages of a prompt could not be kept elsewhere; none are any more.", fault)
            self._prompt_stores = []

    def _rejoin(self, item: Scheduled, answer: Running, told: ToldChoice, drawn: Sampled) -> None:
        """Pass the seam behind what another engine told of an answer."""
        sequence = answer.sequence
        is_exact = answer.rejoin(told, drawn)
        answer.first_token = answer.first_token or perf_counter()
        sequence.token_ids.append(told.token_ids[-1])
        self._rejoining.discard(sequence)
        self._record(Recorder.add_told, self.num_steps, sequence, told, is_exact=is_exact)
        self.scheduler.complete(item, item.count - item.num_drafts)
        self._admission.release(sequence)
        if told.finish_reason is None:
            self._news.append(answer.delta(seam=is_exact))
            return
        self.scheduler.finish(sequence)
        self._close(answer, answer.delta(seam=is_exact, reason=told.finish_reason))

    def _fail(self, answer: Running) -> None:
        """End a sequence whose logits are not finite; what it stored is zeroed."""
        sequence = answer.sequence
        spoilt = self.scheduler.spoil(sequence)
        try:
            again(partial(self.runner.clear, spoilt))
        except Exception as fault:
            raise EngineLostError("pages with NaN cannot be zeroed") from fault
        error = NumericsError(
            f"the model gave NaN or infinity after {sequence.num_tokens} tokens; this answer "
            "ends here. Use dtype float32, or check the model's files."
        )
        self._refuse(answer, error)

    def _refuse(self, answer: Running, error: CutawayError) -> None:
        """End a sequence in an error, with the text that was held back."""
        self.scheduler.finish(answer.sequence)
        self._admission.release(answer.sequence)
        text = answer.stream.finish()
        self._close(answer, answer.delta(text=text, reason="error", error=error))

    def _break(self, sequence: Sequence, fault: Exception) -> None:
        """End a sequence whose work raised, wherever it stands, and trust nothing of its answer."""
        if not isinstance(fault, CutawayError):
            note("an answer raised; it ends alone.", fault)
        self._suspects.discard(sequence)
        self._admission.forget(sequence)
        again(partial(self.scheduler.finish, sequence))
        again(partial(self._admission.release, sequence))
        answer = self._answers.get(sequence)
        if answer is not None:
            self._close(answer, answer.end_with_fault(error_of(fault, _ENDS)))

    def _close(self, answer: Running, last: Delta) -> None:
        """Forget an answer, have it recorded, and say its last delta with the step."""
        self._record(Recorder.close_answer, answer.sequence, last)
        self._news.append(last)
        del self._answers[answer.sequence]
        self._rejoining.discard(answer.sequence)
        if self.model.adapters.has_ended:
            self.free_adapters()
        if self.drafting is not None:
            self.drafting.finish(answer.sequence)

    def _record(
        self,
        write: Callable[Concatenate[Recorder, P], None],
        *arguments: P.args,
        **named: P.kwargs,
    ) -> None:
        """Have something recorded. A fault there ends recording for good, and no answer."""
        if self.recorder is None:
            return
        try:
            write(self.recorder, *arguments, **named)
        except Exception as fault:
            self._end_recording(self.recorder, fault)

    def _record_tokens(
        self, sequence: Sequence, token_ids: list[int], drawn: Items[Sampled]
    ) -> None:
        """As _record, for what is recorded with every token: 0.4 us less."""
        recorder = self.recorder
        if recorder is not None:
            try:
                recorder.add_tokens(self.num_steps, sequence, token_ids, drawn)
            except Exception as fault:
                self._end_recording(recorder, fault)

    def _end_recording(self, recorder: Recorder, fault: Exception) -> None:
        note("recording raised; nothing is recorded any more. Start again for records.", fault)
        recorder.ledger.stop()
        self.recorder = None

    def _draft(self) -> None:
        """Give running answers their guesses. A fault of a drafter ends drafting, and no answer."""
        drafting = self.drafting
        if drafting is None or not drafting.is_asked or drafting.rests(self.scheduler.num_running):
            return
        if self._ahead is not None and self._ahead.has_begun:
            drafting.pass_over()
            return
        try:
            drafted = list(drafting.propose(self.scheduler.running, self._answers))
        except Exception as fault:
            note("drafting raised; nothing is drafted any more.", fault)
            drafting.stop()
            return
        for sequence, draft in drafted:
            try:
                grammar, drafts = self._answers[sequence].grammar, draft.token_ids
                sequence.draft_token_ids = grammar.longest_allowed(drafts) if grammar else drafts
                sequence.draft_chances = draft.chances
                other = draft.other_token_ids
                sequence.other_token_ids = grammar.longest_allowed(other) if grammar else other
                if not self._scores_drawn:  # else draws of one kind are compared
                    self._answers[sequence].proposals = draft.proposals
            except Exception as fault:
                self._break(sequence, fault)

    def _take_compiled(self, *, may_wait: bool) -> None:
        """Let those wait for their turn whose grammar is ready; end those whose grammar is not."""
        for choices, made in self._admission.take_compiled(
            seconds=_COMPILE_WAIT if may_wait else 0
        ):
            try:
                grammar = result_of(made)
                for choice in choices:
                    ignores = choice.request.params.ignore_eos
                    self._answers[choice].begin_grammar(GrammarState(grammar, may_end=not ignores))
                self.scheduler.add(choices[0])
            except Exception as fault:
                self._admission.discard(choices[0])
                for choice in choices:
                    self._break(choice, fault)

    def _answer(self, sequence: Sequence, arrived: float) -> Running:
        params = sequence.request.params
        stream, ending = self.model.text_stream(params), self.model.end_ids(params)
        deadline = sequence.request.deadline
        ends = math.inf if deadline is None else arrived + deadline
        return Running(
            *(sequence, stream, ending, arrived, ends),
            tells_draws=self.tells_draws,
            scores_drawn=self._scores_drawn,
        )


def _max_prompt_tokens(model: LoadedModel, piece_tokens: int | None) -> int | None:
    """Prompt tokens in a step; None sets no bound of its own."""
    most = _NATIVE_PROMPT_TOKENS if is_recorded(model) else None
    return most if piece_tokens is None else min(piece_tokens, most or piece_tokens)


def _take_other(sequence: Sequence) -> None:
    """Go on with the other guesses and their pages; the drafts' own go back with the step."""
    drafts, other = sequence.draft_token_ids, sequence.other_token_ids
    sequence.draft_token_ids, sequence.other_token_ids = other, drafts
    assert sequence.tables is not None and sequence.fork is not None, "both ways were computed"
    adopt(sequence.tables, sequence.fork)
