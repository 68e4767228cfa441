"""The pipeline in one place: requests in, one step at a time, tokens and text out.

Start reading at step(). Each stage is called from here and knows nothing of the next.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from itertools import islice
from time import perf_counter

import torch
from torch import Tensor

from cutaway.cache.paged import CacheStats, PagedCache
from cutaway.cache.pool import Pool
from cutaway.cache.prefix import root_key
from cutaway.core.errors import CutawayError, DeadlineError, GrammarError, NumericsError
from cutaway.core.layout import group_layers
from cutaway.core.output import Delta, FinishReason, Timings, TokenLogprob, Usage
from cutaway.core.request import Request, SamplingParams
from cutaway.core.step import Sink
from cutaway.engine.batch import Batch, build_batch
from cutaway.engine.config import EngineConfig
from cutaway.engine.door import check_request, longest
from cutaway.engine.drafters import Drafter
from cutaway.engine.grammars import Pending
from cutaway.engine.memory import pages_of
from cutaway.engine.model import LoadedModel
from cutaway.engine.native import can_record
from cutaway.engine.recorder import Recorder
from cutaway.engine.replay import Replay, SinkOf
from cutaway.engine.replay_plan import Level, plan_replay
from cutaway.engine.runner import runner_of
from cutaway.engine.scheduler import Scheduled, Scheduler, SchedulerConfig
from cutaway.engine.sequence import Sequence
from cutaway.engine.verify import Present, Verdict, fingerprints, verify
from cutaway.sampling.accept import accept
from cutaway.sampling.candidates import Row
from cutaway.sampling.grammar import CompiledGrammar, GrammarState, Mask, allows_any
from cutaway.sampling.grammar_compiler import GrammarCompiler
from cutaway.sampling.logprobs import Score, prompt_logprobs
from cutaway.sampling.sampler import Sampled, Sampler
from cutaway.sampling.seed import resolve_seed
from cutaway.stream.text import TextStream, stop_token_ids
from cutaway.trace.ledger import Ledger
from cutaway.trace.records import AnswerRecord

# How long a step without other work waits for a grammar: no longer than a new request may wait.
_COMPILE_WAIT = 0.005


@dataclass(eq=False)
class _Answer:
    """What the engine keeps of one sequence beside its tokens."""

    sequence: Sequence
    stream: TextStream
    end_ids: frozenset[int]
    arrived: float
    ends: float  # the moment until which it may take
    started: float | None = None
    first_token: float | None = None
    detokenize: float = 0.0
    prompt_logprobs: list[TokenLogprob | None] = field(default_factory=lambda: [None])
    grammar: GrammarState | None = None
    fault: GrammarError | None = None  # the grammar cannot go on; the answer ends with this step


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
        self._answers: dict[Sequence, _Answer] = {}
        # Choices past the first wait for its prompt, which they then find in the prefix index.
        self._followers: dict[Sequence, list[Sequence]] = {}
        self._root_secret = os.urandom(16)
        self._ended: list[Delta] = []  # aborted between steps
        self._next_end = math.inf  # no deadline lies before
        self.num_steps = 0
        self.num_drafted = 0
        self.num_accepted = 0
        self._compiler: GrammarCompiler | None = None  # made for the first grammar
        self._compiling: Pending[Sequence, CompiledGrammar] = Pending()

    @property
    def has_work(self) -> bool:
        return self.scheduler.has_work or bool(self._ended) or bool(self._compiling)

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
        seed = resolve_seed(request.params)
        sequences = [self._sequence(request, choice, seed) for choice in range(request.params.n)]
        # All that may raise comes before the first change, so a bad request leaves no trace.
        answers = {sequence: self._answer(sequence, arrived) for sequence in sequences}
        if request.params.grammar is None:
            self.scheduler.add(sequences[0])
        else:
            self._compiling.add(sequences[0], self._grammars().compile(request.params.grammar))
        self._answers.update(answers)
        if self.recorder is not None:
            for sequence in sequences:
                self.recorder.opened(sequence)
        self._next_end = min(self._next_end, answers[sequences[0]].ends)
        if len(sequences) > 1:
            self._followers[sequences[0]] = sequences[1:]

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
            followers = self._followers.pop(sequence, None)
            assert choice is None or not followers, "others wait for the prompt of this choice"
            self._compiling.discard(sequence)
        self.scheduler.abort(request_id, choice=choice)
        for sequence in ended:
            self._ended.append(self._final(self._answers.pop(sequence), "abort", error=error))

    def replay(
        self,
        answer: AnswerRecord,
        *,
        level: Level = "shape-faithful",
        sink_of: SinkOf | None = None,
        intervenes: bool = False,
    ) -> Replay:
        """An answer of the ledger, ready to run again in pages of its own.

        Its plan tells the cost before it is spent; running it is up to the caller.
        Raises: ReplayError when the record of it is not whole.
        """
        assert self.ledger is not None, "an answer comes from the ledger"
        plan = plan_replay(
            self.ledger,
            answer,
            page_size=self.config.page_size,
            prefill_chunk=self.config.prefill_chunk,
            level=level,
        )
        return Replay(
            plan, model=self.model, config=self.config, sink_of=sink_of, intervenes=intervenes
        )

    def verify(self, answer: AnswerRecord, *, level: Level = "shape-faithful") -> Verdict:
        """Run an answer of the ledger again and say whether it is the one that was served.

        Raises: ReplayError when the record of it is not whole.
        """
        params = answer.request.params
        present = Present(self._fingerprints, self.model.transformer, self.cache, self.runner.pool)
        return verify(
            self.replay(answer, level=level),
            vocab_size=self.model.facts.vocab_size,
            end_ids=self.end_ids(params),
            state=self.grammar_state(params),
            present=present,
        )

    def end_ids(self, params: SamplingParams) -> frozenset[int]:
        """Ids that end an answer with these settings."""
        return frozenset(self._ending(params))

    def grammar_state(self, params: SamplingParams) -> GrammarState | None:
        """The grammar of an answer before its first token; compiled again where it is not kept."""
        if params.grammar is None:
            return None
        compiled = self._grammars().compile(params.grammar).result()
        return GrammarState(compiled, may_end=not params.ignore_eos)

    def text_stream(self, params: SamplingParams) -> TextStream:
        """What makes text of an answer's tokens, before the first of them."""
        tokenizer = self.model.tokenizer
        return TextStream(
            params,
            tokenizer.token_bytes,
            skipped=tokenizer.control_ids if params.skip_special_tokens else frozenset(),
            ending=self._ending(params),
        )

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
        logits = self.runner.forward(batch.step)
        computed = perf_counter()
        self._score_prompts(batch, logits)
        for item, drawn in zip(scheduled, self._sample(batch, logits), strict=True):
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

    def _sample(self, batch: Batch, logits: Tensor) -> list[list[Sampled]]:
        """What was drawn for each scheduled sequence; nothing in the middle of a prompt."""
        rows: list[Row] = []
        wanted: list[int] = []
        for index, item in enumerate(batch.scheduled):
            at = batch.sample_rows(index)
            wanted += at
            if at:
                masks = self._masks(item)
                rows += [self._row(item, offset, masks[offset]) for offset in range(len(at))]
        if len(wanted) < len(logits):
            logits = logits[torch.tensor(wanted, dtype=torch.int64, device=logits.device)]
        drawn = iter(self.sampler.sample(logits, rows))
        return [
            list(islice(drawn, len(batch.sample_rows(index))))
            for index in range(len(batch.scheduled))
        ]

    def _masks(self, item: Scheduled) -> list[Mask | None]:
        """What the item's grammar allows in each of its rows; None allows all."""
        num_rows = 1 + item.num_drafts
        answer = self._answers[item.sequence]
        if answer.grammar is None:
            return [None] * num_rows
        try:
            masks = answer.grammar.masks(item.sequence.draft_token_ids[: item.num_drafts])
        except GrammarError as fault:
            answer.fault = fault
            return [None] * num_rows
        # Rows that the grammar cannot reach give no token.
        return [*masks, *[bytes(len(masks[0]))] * (num_rows - len(masks))]

    def _row(self, item: Scheduled, offset: int, allowed: Mask | None) -> Row:
        """The row that draws the token after the item's known tokens and offset drafts."""
        sequence, params = item.sequence, item.sequence.request.params
        answer = self._answers[sequence]
        drafts = sequence.draft_token_ids[:offset]
        is_early = sequence.num_output_tokens + offset < params.min_tokens
        banned = answer.end_ids if is_early else frozenset[int]()
        if answer.grammar is not None and allowed is not None:
            if answer.grammar.only_ends(allowed):
                banned = frozenset[int]()  # a grammar that is complete outweighs min_tokens
            if offset == 0 and not allows_any(allowed, banned=banned):
                answer.fault = GrammarError(
                    f"no token is left after {sequence.num_output_tokens} tokens of the answer: "
                    "none fits the grammar, or all that fit are ends before min_tokens."
                )
        return Row(
            params=params,
            seed=sequence.seed,
            choice=sequence.choice,
            position=sequence.num_tokens + offset,
            prompt_token_ids=sequence.request.prompt_token_ids,
            output_token_ids=sequence.output_token_ids + drafts,
            banned_token_ids=banned,
            allowed=allowed,
            num_logprobs=params.logprobs,
        )

    def _advance(self, item: Scheduled, drawn: list[Sampled]) -> Delta | None:
        """Take one sequence past what was computed for it."""
        sequence = item.sequence
        answer = self._answers[sequence]
        if not item.samples:
            self.scheduler.complete(item, item.count)
            return None
        if answer.fault is not None:
            return self._refuse(answer, answer.fault)
        token_ids = list(_good(drawn))
        if not token_ids:
            return self._fail(answer)
        # A draft that leads to a bad row is no reason to fail before plain decoding would.
        emitted = accept(token_ids, sequence.draft_token_ids[: len(token_ids) - 1])
        if sequence.request.params.max_tokens == 0:
            emitted = []
        now = perf_counter()
        answer.first_token = answer.first_token or now
        text, taken, reason, stopped_by = self._take(answer, emitted)
        sequence.token_ids += taken
        if self.recorder is not None:
            self.recorder.took(self.num_steps, sequence, taken, drawn)
        self.num_drafted += item.num_drafts
        self.num_accepted += max(0, len(emitted) - 1)
        # The last emitted token was not computed, and rejected drafts are rolled back.
        num_kept = min(len(taken), max(0, len(emitted) - 1))
        self.scheduler.complete(item, item.count - item.num_drafts + num_kept)
        self._release_followers(sequence)
        logprobs = _logprobs(sequence.request, taken, drawn)
        if reason is not None:
            self.scheduler.finish(sequence)
            del self._answers[sequence]
            return self._final(
                answer, reason, token_ids=taken, text=text, logprobs=logprobs, by=stopped_by
            )
        is_first = sequence.num_output_tokens == len(taken)
        return Delta(
            request_id=sequence.request.request_id,
            choice=sequence.choice,
            token_ids=tuple(taken),
            text=text,
            logprobs=logprobs,
            prompt_logprobs=_scores(answer) if is_first else (),
        )

    def _take(
        self, answer: _Answer, emitted: Items[int]
    ) -> tuple[str, list[int], FinishReason | None, str | int | None]:
        """Push tokens through the stream until one ends the answer."""
        sequence = answer.sequence
        text = ""
        taken: list[int] = []
        began = perf_counter()
        reason: FinishReason | None = None
        stopped_by: str | int | None = None
        num_left = sequence.max_length - sequence.num_tokens
        for token_id in emitted[:num_left]:
            taken.append(token_id)
            piece = answer.stream.push(token_id)
            text += piece.text
            if piece.stopped_by is not None:
                reason, stopped_by = "stop", piece.stopped_by
                break
            if answer.grammar is not None and answer.grammar.completes(token_id):
                reason = "stop"
                break
        if reason is None and len(taken) >= num_left:
            reason = "length"
        if reason is not None:
            text += answer.stream.finish()
        answer.detokenize += perf_counter() - began
        return text, taken, reason, stopped_by

    def _fail(self, answer: _Answer) -> Delta:
        """End a sequence whose logits are not finite; what it stored is zeroed."""
        sequence = answer.sequence
        self.runner.clear(self.scheduler.fail(sequence))
        self._release_followers(sequence)
        del self._answers[sequence]
        error = NumericsError(
            f"the model gave NaN or infinity after {sequence.num_tokens} tokens; this answer "
            "ends here. Use dtype float32, or check the model's files."
        )
        return self._final(answer, "error", text=answer.stream.finish(), error=error)

    def _refuse(self, answer: _Answer, error: GrammarError) -> Delta:
        """End a sequence that its grammar does not let go on."""
        self.scheduler.finish(answer.sequence)
        self._release_followers(answer.sequence)
        del self._answers[answer.sequence]
        return self._final(answer, "error", text=answer.stream.finish(), error=error)

    def _final(
        self,
        answer: _Answer,
        reason: FinishReason,
        *,
        token_ids: Items[int] = (),
        text: str = "",
        logprobs: tuple[TokenLogprob, ...] = (),
        by: str | int | None = None,
        error: CutawayError | None = None,
    ) -> Delta:
        sequence = answer.sequence
        is_first = sequence.num_output_tokens == len(token_ids)
        usage = Usage(
            sequence.num_prompt_tokens, sequence.num_output_tokens, sequence.num_cached_tokens
        )
        timings = _timings(answer, perf_counter())
        if self.recorder is not None:
            self.recorder.closed(sequence, reason, usage, timings)
        return Delta(
            request_id=sequence.request.request_id,
            choice=sequence.choice,
            token_ids=tuple(token_ids),
            text=text,
            logprobs=logprobs,
            prompt_logprobs=_scores(answer) if is_first else (),
            finish_reason=reason,
            stopped_by=by,
            error=error,
            usage=usage,
            timings=timings,
        )

    def _score_prompts(self, batch: Batch, logits: Tensor) -> None:
        """Log-probabilities of the prompt tokens that this step's rows predict."""
        for item, rows in zip(batch.scheduled, batch.rows, strict=True):
            sequence = item.sequence
            answer = self._answers[sequence]
            num_wanted = sequence.request.params.prompt_logprobs
            if num_wanted is None:
                continue
            # Row i predicts token start + i + 1. After a preemption some rows come again.
            num_known = len(answer.prompt_logprobs) - item.start - 1
            new_rows = rows[num_known:]
            first = len(answer.prompt_logprobs)
            following = sequence.request.prompt_token_ids[first : first + len(new_rows)]
            if following:
                part = logits[new_rows.start : new_rows.start + len(following)]
                scores = prompt_logprobs(part, following, num_logprobs=num_wanted)
                answer.prompt_logprobs += map(_logprob, following, scores)

    def _draft(self) -> None:
        if self._drafter is None:
            return
        for sequence in self.scheduler.running:
            if sequence.num_tokens - sequence.num_computed_tokens == 1:
                drafts = self._drafter.propose(sequence.token_ids)
                grammar = self._answers[sequence].grammar
                sequence.draft_token_ids = grammar.fitting(drafts) if grammar else drafts

    def _grammars(self) -> GrammarCompiler:
        if self._compiler is None:
            self._compiler = GrammarCompiler(
                self.model.tokenizer,
                num_rows=self.model.facts.vocab_size,
                end_ids=self.model.end_token_ids,
            )
        return self._compiler

    def _take_compiled(self, *, may_wait: bool) -> list[Delta]:
        """Let those wait for their turn whose grammar is ready; end those whose grammar is not."""
        deltas: list[Delta] = []
        for sequence, made in self._compiling.done(seconds=_COMPILE_WAIT if may_wait else 0):
            choices = [sequence, *self._followers.get(sequence, ())]
            fault = made.exception()
            if fault is None:
                for choice in choices:
                    ignores = choice.request.params.ignore_eos
                    state = GrammarState(made.result(), may_end=not ignores)
                    self._answers[choice].grammar = state
                self.scheduler.add(sequence)
                continue
            assert isinstance(fault, GrammarError), "the compiler gives no other fault"
            self._followers.pop(sequence, None)
            for choice in choices:
                deltas.append(self._final(self._answers.pop(choice), "error", error=fault))
        return deltas

    def _release_followers(self, sequence: Sequence) -> None:
        for follower in self._followers.pop(sequence, ()):
            self.scheduler.add(follower)

    def _sequence(self, request: Request, choice: int, seed: int) -> Sequence:
        max_length = longest(request, self.max_length)
        position_key = self.model.transformer.position_key(max_length)
        return Sequence(
            request=request,
            choice=choice,
            seed=seed,
            max_length=max_length,
            cache_root=root_key(self._root_secret, request.cache_salt, position_key),
        )

    def _ending(self, params: SamplingParams) -> dict[int, str | int]:
        """Ids that end an answer with these settings, and what is said of each."""
        control = self.model.tokenizer.control_tokens
        return stop_token_ids(params, self.model.end_token_ids, control)

    def _answer(self, sequence: Sequence, arrived: float) -> _Answer:
        params = sequence.request.params
        stream, ending = self.text_stream(params), self.end_ids(params)
        deadline = sequence.request.deadline
        ends = math.inf if deadline is None else arrived + deadline
        return _Answer(sequence, stream, ending, arrived, ends)


def _good(drawn: Items[Sampled]) -> Iterator[int]:
    """The tokens drawn before the first row that gave none."""
    for each in drawn:
        if each.token_id is None:
            return
        yield each.token_id


def _logprobs(
    request: Request, token_ids: Items[int], drawn: Items[Sampled]
) -> tuple[TokenLogprob, ...]:
    if request.params.logprobs is None:
        return ()
    pairs = zip(token_ids, drawn, strict=False)  # more may have been drawn than were taken
    return tuple(_logprob(token_id, each.score) for token_id, each in pairs)


def _logprob(token_id: int, score: Score) -> TokenLogprob:
    assert score.rank is not None, "a rank is measured where log-probabilities are asked for"
    return TokenLogprob(token_id, score.logprob, score.rank, score.top)


def _scores(answer: _Answer) -> tuple[TokenLogprob | None, ...]:
    wanted = answer.sequence.request.params.prompt_logprobs is not None
    return tuple(answer.prompt_logprobs) if wanted else ()


def _timings(answer: _Answer, ended: float) -> Timings:
    started = answer.started or ended
    first = answer.first_token or ended
    return Timings(
        queue=started - answer.arrived,
        prefill=first - started,
        decode=ended - first,
        detokenize=answer.detokenize,
        first_token=first - answer.arrived,
    )
