"""The pipeline in one place: requests in, one step at a time, tokens and text out.

Start reading at step(). Each stage is called from here and knows nothing of the next.
"""

from __future__ import annotations

import math
from time import perf_counter

from cutaway.cache.paged import CacheStats, PagedCache
from cutaway.cache.pool import Pool
from cutaway.core.errors import CutawayError, DeadlineError, GrammarError, NumericsError
from cutaway.core.layout import group_layers
from cutaway.core.output import Delta
from cutaway.core.request import Request, SamplingParams
from cutaway.core.step import Sink
from cutaway.engine.admission import Admission
from cutaway.engine.batch import build_batch
from cutaway.engine.config import EngineConfig
from cutaway.engine.door import check_request
from cutaway.engine.drafters import Drafter
from cutaway.engine.draws import draw, good, score_prompts
from cutaway.engine.memory import pages_of
from cutaway.engine.model import LoadedModel
from cutaway.engine.native import can_record
from cutaway.engine.recorder import Recorder
from cutaway.engine.replay import Replay, SinkOf
from cutaway.engine.replay_plan import Level, ReplayPlan, plan_replay
from cutaway.engine.runner import runner_of
from cutaway.engine.running import Running
from cutaway.engine.scheduler import Scheduled, Scheduler, SchedulerConfig
from cutaway.engine.sequence import Sequence
from cutaway.engine.verify import Present, Verdict, fingerprints, verify
from cutaway.sampling.accept import accept
from cutaway.sampling.grammar import GrammarState
from cutaway.sampling.sampler import Sampled, Sampler
from cutaway.trace.ledger import Ledger
from cutaway.trace.records import AnswerRecord

# How long a step without other work waits for a grammar: no longer than a new request may wait.
_COMPILE_WAIT = 0.005


class Engine:
    """Runs any number of requests at once over one model.

    Not thread-safe: one caller adds, steps and aborts.
    """

    def __init__(
        self,
        model: LoadedModel,
        config: EngineConfig,
        *,
        num_pages: int,
        drafter: Drafter | None = None,
        sink: Sink | None = None,
    ) -> None:
        self.model = model
        self.config = config
        self.sink = sink
        groups = group_layers(model.transformer.cache_specs)
        counts = [pages_of(group.spec, num_pages, config) for group in groups]
        self.cache = PagedCache(
            groups,
            num_pages=counts,
            page_size=config.page_size,
            prefix_cache=config.prefix_cache,
        )
        pool = Pool(
            groups,
            num_pages=counts,
            page_size=config.page_size,
            dtype=model.cache_dtype,
            device=model.device,
            is_native=can_record(model),
        )
        self.max_length = min(model.facts.max_length, self.cache.capacity_tokens)
        self.runner = runner_of(model, pool, config=config, max_length=self.max_length)
        self.scheduler = Scheduler(
            SchedulerConfig(
                max_sequences=config.max_sequences,
                max_tokens_per_step=config.max_tokens_per_step,
                prefill_chunk=config.prefill_chunk,
            ),
            self.cache,
        )
        self.sampler = Sampler(model.facts.vocab_size)
        self.ledger = Ledger(config.ledger_bytes) if config.ledger_bytes else None
        self.recorder = (
            None if self.ledger is None else Recorder(self.ledger, page_size=config.page_size)
        )
        self._fingerprints = {} if self.ledger is None else fingerprints(model.transformer)
        can_roll_back = all(group.spec.can_roll_back for group in groups)
        self._drafter = drafter if can_roll_back else None
        self._answers: dict[Sequence, Running] = {}
        self._admission = Admission(model, self.scheduler, max_length=self.max_length)
        self._ended: list[Delta] = []  # aborted between steps
        self._next_end = math.inf  # no deadline lies before
        self.num_steps = 0
        self.num_drafted = 0
        self.num_accepted = 0

    @property
    def has_work(self) -> bool:
        return self.scheduler.has_work or bool(self._ended) or bool(self._admission)

    @property
    def cache_stats(self) -> CacheStats:
        return self.cache.stats

    def add(self, request: Request) -> None:
        """Queue a request.

        Raises: RequestError when a field does not fit the model; ContextLengthError when prompt
        and answer can never fit; GrammarError when the compiler of grammars is not installed.
        Nothing is queued then. A grammar that cannot be compiled ends the request with a delta.
        """
        arrived = perf_counter()
        check_request(request, self.model.facts.vocab_size, self.max_length)
        sequences = self._admission.open(request)
        # All that may raise comes before the first change, so a bad request leaves no trace.
        answers = {sequence: self._answer(sequence, arrived) for sequence in sequences}
        self._admission.add(sequences)
        self._answers.update(answers)
        if self.recorder is not None:
            for sequence in sequences:
                self.recorder.opened(sequence, arrived=arrived)
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
            has_followers = self._admission.discard(sequence)
            assert choice is None or not has_followers, "others wait for the prompt of this choice"
        self.scheduler.abort(request_id, choice=choice)
        for sequence in ended:
            answer = self._answers[sequence]
            self._ended.append(self._closed(answer, answer.delta(reason="abort", error=error)))

    def hold(self, request_id: str, *, is_held: bool) -> None:
        """Make no more of a request until told otherwise: its reader is slow. Nobody waits for it.

        May be said of one that has ended.
        """
        for sequence in self._answers:
            if sequence.request.request_id == request_id:
                self.scheduler.hold(sequence, is_held=is_held)

    def replay(
        self,
        answer: AnswerRecord,
        *,
        level: Level = "shape-faithful",
        prefill_chunk: int | None = None,
        sink_of: SinkOf | None = None,
        intervenes: bool = False,
    ) -> Replay:
        """An answer of the ledger, ready to run again in pages of its own.

        prefill_chunk: of steps that are not those of serving; None takes the engine's own.
        Its plan tells the cost before it is spent; running it is up to the caller.
        Raises: ReplayError when the record of it is not whole.
        """
        plan = self.replay_plan(answer, level=level, prefill_chunk=prefill_chunk)
        return Replay(
            plan, model=self.model, config=self.config, sink_of=sink_of, intervenes=intervenes
        )

    def replay_plan(
        self,
        answer: AnswerRecord,
        *,
        level: Level = "shape-faithful",
        prefill_chunk: int | None = None,
    ) -> ReplayPlan:
        """What it takes to run an answer of the ledger again; it holds no pages.

        level, prefill_chunk: as for replay.
        Raises: ReplayError when the record of it is not whole.
        """
        assert self.ledger is not None, "an answer comes from the ledger"
        return plan_replay(
            self.ledger,
            answer,
            page_size=self.config.page_size,
            prefill_chunk=prefill_chunk or self.config.prefill_chunk,
            level=level,
        )

    def verify(
        self,
        answer: AnswerRecord,
        *,
        level: Level = "shape-faithful",
        prefill_chunk: int | None = None,
    ) -> Verdict:
        """Run an answer of the ledger again and say whether it is the one that was served.

        level, prefill_chunk: as for replay.
        Raises: ReplayError when the record of it is not whole.
        """
        params = answer.request.params
        present = Present(self._fingerprints, self.model.transformer, self.cache, self.runner.pool)
        return verify(
            self.replay(answer, level=level, prefill_chunk=prefill_chunk),
            vocab_size=self.model.facts.vocab_size,
            end_ids=self.model.end_ids(params),
            state=self.grammar_state(params),
            present=present,
        )

    def grammar_state(self, params: SamplingParams) -> GrammarState | None:
        """The grammar of an answer before its first token; compiled again where it is not kept."""
        return self._admission.grammar_state(params)

    def step(self) -> list[Delta]:
        """Compute one step and say what is new. Empty when there is no work."""
        self._end_the_late(perf_counter())
        deltas, self._ended = self._ended, []
        deltas += self._take_compiled(may_wait=not deltas and not self.scheduler.has_work)
        now = perf_counter()  # a step's time is all of it, drafting and scheduling too
        self._draft()
        scheduled = self.scheduler.schedule()
        if not scheduled:
            return deltas
        for item in scheduled:
            answer = self._answers[item.sequence]
            answer.started = answer.started or now
        batch = build_batch(
            scheduled, self.runner.pool.layers, device=self.model.device, sink=self.sink
        )
        if self.recorder is not None:
            self.recorder.planned(self.num_steps, batch)
        logits = self.runner.run(batch)
        computed = perf_counter()
        score_prompts(batch, logits, self._answers)
        drawn_for = draw(self.sampler, batch, logits, self._answers)
        for item, drawn in zip(scheduled, drawn_for, strict=True):
            delta = self._advance(item, drawn)
            if delta is not None:
                deltas.append(delta)
        if self.recorder is not None:
            kernel = self.runner.kernel
            self.recorder.done(self.num_steps, kernel=kernel, began=now, computed=computed)
        self.num_steps += 1
        return deltas

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

    def _advance(self, item: Scheduled, drawn: list[Sampled]) -> Delta | None:
        """Take one sequence past what was computed for it."""
        sequence = item.sequence
        answer = self._answers[sequence]
        if not item.samples:
            self.scheduler.complete(item, item.count)
            return None
        if answer.fault is not None:
            return self._refuse(answer, answer.fault)
        token_ids = list(good(drawn))
        if not token_ids:
            return self._fail(answer)
        # A draft that leads to a bad row is no reason to fail before plain decoding would.
        emitted = accept(token_ids, sequence.draft_token_ids[: len(token_ids) - 1])
        if sequence.request.params.max_tokens == 0:
            emitted = []
        answer.first_token = answer.first_token or perf_counter()
        taken = answer.take(emitted)
        sequence.token_ids += taken.token_ids
        if self.recorder is not None:
            self.recorder.took(self.num_steps, sequence, taken.token_ids, drawn)
        self.num_drafted += item.num_drafts
        self.num_accepted += max(0, len(emitted) - 1)
        # The last emitted token was not computed, and rejected drafts are rolled back.
        num_kept = min(len(taken.token_ids), max(0, len(emitted) - 1))
        self.scheduler.complete(item, item.count - item.num_drafts + num_kept)
        self._admission.release(sequence)
        delta = answer.delta(
            taken.token_ids, taken.text, drawn, reason=taken.reason, stopped_by=taken.stopped_by
        )
        if taken.reason is None:
            return delta
        self.scheduler.finish(sequence)
        return self._closed(answer, delta)

    def _fail(self, answer: Running) -> Delta:
        """End a sequence whose logits are not finite; what it stored is zeroed."""
        sequence = answer.sequence
        self.runner.clear(self.scheduler.fail(sequence))
        self._admission.release(sequence)
        error = NumericsError(
            f"the model gave NaN or infinity after {sequence.num_tokens} tokens; this answer "
            "ends here. Use dtype float32, or check the model's files."
        )
        return self._failed(answer, error)

    def _refuse(self, answer: Running, error: GrammarError) -> Delta:
        """End a sequence that its grammar does not let go on."""
        self.scheduler.finish(answer.sequence)
        self._admission.release(answer.sequence)
        return self._failed(answer, error)

    def _failed(self, answer: Running, error: CutawayError) -> Delta:
        """The last delta of an answer that ends in an error, with the text that was held back."""
        delta = answer.delta(text=answer.stream.finish(), reason="error", error=error)
        return self._closed(answer, delta)

    def _closed(self, answer: Running, last: Delta) -> Delta:
        """Forget an answer and have it recorded. Returns its last delta."""
        del self._answers[answer.sequence]
        if self.recorder is not None:
            self.recorder.closed(answer.sequence, last)
        return last

    def _draft(self) -> None:
        if self._drafter is None:
            return
        for sequence in self.scheduler.running:
            if sequence.num_tokens - sequence.num_computed_tokens == 1:
                drafts = self._drafter.propose(sequence.token_ids)
                grammar = self._answers[sequence].grammar
                sequence.draft_token_ids = grammar.fitting(drafts) if grammar else drafts

    def _take_compiled(self, *, may_wait: bool) -> list[Delta]:
        """Let those wait for their turn whose grammar is ready; end those whose grammar is not."""
        deltas: list[Delta] = []
        for choices, made in self._admission.compiled(seconds=_COMPILE_WAIT if may_wait else 0):
            fault = made.exception()
            if fault is None:
                for choice in choices:
                    ignores = choice.request.params.ignore_eos
                    state = GrammarState(made.result(), may_end=not ignores)
                    self._answers[choice].grammar = state
                self.scheduler.add(choices[0])
                continue
            assert isinstance(fault, GrammarError), "the compiler gives no other fault"
            self._admission.discard(choices[0])
            for choice in choices:
                deltas.append(self._failed(self._answers[choice], fault))
        return deltas

    def _answer(self, sequence: Sequence, arrived: float) -> Running:
        params = sequence.request.params
        stream, ending = self.model.text_stream(params), self.model.end_ids(params)
        deadline = sequence.request.deadline
        ends = math.inf if deadline is None else arrived + deadline
        return Running(sequence, stream, ending, arrived, ends)
