"""One way of giving an answer: an engine, a prompt, settings, and what is done to the model.

A comparison has two of them, and runs each several times. Whoever runs one may do other things
between two of its steps: the clock counts the steps alone.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, field, replace
from itertools import count
from typing import TypeAlias, TypeVar

from torch import Tensor

from cutaway.blocks.weighed import model_work
from cutaway.compare.allowance import Allowance
from cutaway.core.output import Delta
from cutaway.core.request import Request, SamplingParams
from cutaway.core.step import Sink
from cutaway.core.work import Work
from cutaway.engine.engine import Engine
from cutaway.engine.memory import free_bytes
from cutaway.host.turns import read_own_clock
from cutaway.quantize.packed import unpack_once
from cutaway.replay.look import PIECE_TOKENS
from cutaway.replay.teacher_forcing import force_tokens
from cutaway.trace.ledger import part_of
from cutaway.trace.records import AnswerRecord

_numbers = count()

T = TypeVar("T")

# Says after each step how many tokens of the answer there are, and in the end what it all gave.
Steps: TypeAlias = Generator[int, None, T]


@dataclass(frozen=True)
class Ran:
    """One answer and what it took. Units: seconds; tokens that went through the model.

    first_text: until a reader saw something.   seconds: of all steps, others' between them apart.
    rate:       tokens a second, of all copies together.
    checksums:  of the rows of logits, by the index of the token that each gave.
    """

    token_ids: tuple[int, ...]
    first_text: float
    seconds: float
    per_token: float
    rate: float
    num_computed: int
    work: Work
    checksums: Mapping[int, int]


@dataclass
class _Answered:
    """What came of requests that ran together. Units: seconds of steps alone.

    first, ended: until the first of them had a token, and was done.   num_drawn: tokens of all.
    """

    token_ids: list[int] = field(default_factory=list[int])
    first: float = 0.0
    ended: float = 0.0
    seconds: float = 0.0
    num_drawn: int = 0

    def take(self, delta: Delta) -> None:
        """News of the first request, from the step that has ended."""
        if delta.token_ids and not self.token_ids:
            self.first = self.seconds
        self.token_ids += delta.token_ids
        if delta.finish_reason is not None:
            self.ended = self.seconds


@dataclass(frozen=True)
class Side:
    """How to answer. The seed is in params, so that only what is changed differs.

    lead:      tokens of the answer that are not drawn but given.
    sink_of:   makes what changes values on their way, anew for each run; None for nobody.
    batch:     copies that are answered at once, with other seeds.
    is_warm:   whether the prompt was answered before, so that its pages may be found.
    has_cache: without it every token computes all before it again.
    is_streamed: whether words are seen as they come.
    lora:      the adapter that answers, where the side's engine has it.
    """

    engine: Engine
    prompt: tuple[int, ...]
    params: SamplingParams
    allowance: Allowance
    lead: tuple[int, ...] = ()
    sink_of: Callable[[], Sink] | None = None
    batch: int = 1
    is_warm: bool = False
    has_cache: bool = True
    is_streamed: bool = True
    lora: str = ""

    @property
    def most_computed(self) -> int:
        """Tokens that go through the model in one run, at most."""
        given, most = len(self.prompt), self.params.max_tokens or 0
        if not self.has_cache:
            return most * given + most * (most - 1) // 2
        return (self.batch + self.is_warm) * (given + most)

    def run(self) -> Steps[Ran]:
        """Answer once. Pages of earlier runs are not found, unless it is to be warm."""
        salt = os.urandom(8)
        if self.is_warm:
            yield from self._answer(self._requests(salt, self.lead)[:1])
        if self.sink_of is None:
            return (yield from self._once(salt))
        before, self.engine.sink = self.engine.sink, self.sink_of()
        try:
            with self._by_modules() as unpacking:
                for _ in unpacking:
                    yield 0
                return (yield from self._once(salt))
        finally:
            self.engine.sink = before

    def _once(self, salt: bytes) -> Steps[Ran]:
        return self._cached(salt) if self.has_cache else self._recomputed()

    def _by_modules(self) -> AbstractContextManager[Iterator[None]]:
        """Sinks that change values see modules; those over packed weights unpack them once."""
        model = self.engine.model
        free = free_bytes(model.device) // 2
        most = free if self.allowance.left is None else min(free, self.allowance.left)
        return unpack_once(model.transformer, most_bytes=most)

    def rows(
        self, like: AnswerRecord, output: Sequence[int]
    ) -> Iterator[tuple[int, Tensor] | None]:
        """The rows from which given tokens would have been drawn; see replay/teacher_forcing.py.

        In short steps: one of 512 rows is a product with all of the vocabulary that takes 0.3 s.
        None is a step that gave no row: a matrix was unpacked.
        """
        if self.sink_of is None:
            yield from force_tokens(
                self.engine, like, prompt=self.prompt, output=output, chunk=PIECE_TOKENS
            )
            return
        sink = self.sink_of()
        with self._by_modules() as unpacking:
            yield from unpacking
            yield from force_tokens(
                self.engine,
                like,
                prompt=self.prompt,
                output=output,
                chunk=PIECE_TOKENS,
                sink_of=lambda run: sink,
                intervenes=True,
            )

    def _cached(self, salt: bytes) -> Steps[Ran]:
        requests = self._requests(salt, self.lead)
        done = yield from self._answer(requests)
        record = self._record(requests[0])
        return Ran(
            token_ids=(*self.lead, *done.token_ids),
            first_text=done.first if self.is_streamed else done.ended,
            seconds=done.ended,
            per_token=(done.ended - done.first) / max(1, len(done.token_ids) - 1),
            rate=done.num_drawn / done.seconds,
            num_computed=_num_computed(self.engine, record),
            work=work_of(self.engine, record),
            checksums={
                len(self.lead) + index: token.checksum for index, token in enumerate(record.tokens)
            },
        )

    def _recomputed(self) -> Steps[Ran]:
        """Each token as the first of an answer to everything before it."""
        stream = self.engine.model.text_stream(self.params)
        known: list[int] = []
        records: list[AnswerRecord] = []
        seconds: list[float] = []
        is_stopped = False
        while not is_stopped and len(known) < (self.params.max_tokens or 1):
            (request,) = self._requests(os.urandom(8), known)[:1]
            is_early = len(known) < self.params.min_tokens
            params = replace(request.params, max_tokens=1, min_tokens=int(is_early))
            request = replace(request, params=params)
            done = yield from self._answer([request], len(known))
            seconds.append(done.ended)
            records.append(self._record(request))
            for token_id in done.token_ids:
                known.append(token_id)
                is_stopped = stream.push(token_id).stopped_by is not None
        work = Work()
        for record in records:
            work += work_of(self.engine, record)
        return Ran(
            token_ids=tuple(known),
            first_text=seconds[0],
            seconds=sum(seconds),
            per_token=sum(seconds[1:]) / max(1, len(known) - 1),
            rate=len(known) / sum(seconds),
            num_computed=sum(_num_computed(self.engine, record) for record in records),
            work=work,
            checksums={index: each.tokens[0].checksum for index, each in enumerate(records)},
        )

    def _requests(self, salt: bytes, known: Sequence[int]) -> list[Request]:
        """Ours first, then its copies; known tokens of the answer stand behind the prompt."""
        seed, max_tokens = self.params.seed, self.params.max_tokens
        assert seed is not None and max_tokens is not None, "a comparison fixes both"
        params = replace(
            self.params,
            max_tokens=max(1, max_tokens - len(known)),
            min_tokens=max(0, self.params.min_tokens - len(known)),
        )
        return [
            Request(
                request_id=f"side-{next(_numbers)}",
                prompt_token_ids=(*self.prompt, *known),
                params=params if copy == 0 else replace(params, seed=(seed + copy) % 2**62),
                cache_salt=salt,
                lora=self.lora,
            )
            for copy in range(self.batch)
        ]

    def _answer(self, requests: Sequence[Request], num_known: int = 0) -> Steps[_Answered]:
        """Run requests together; what is told is of the first of them.

        num_known: tokens of the answer that stand in the prompt.
        """
        ours = requests[0].request_id
        done, began = _Answered(), read_own_clock()
        with closing(self.engine.follower.follow(requests)) as steps:
            for news in steps:
                done.seconds += read_own_clock() - began
                for delta in news:
                    if delta.error is not None:
                        raise delta.error
                    done.num_drawn += len(delta.token_ids)
                    if delta.request_id == ours:
                        done.take(delta)
                yield num_known + len(done.token_ids)
                began = read_own_clock()
        return done

    def _record(self, request: Request) -> AnswerRecord:
        ledger = self.engine.ledger
        record = None if ledger is None else ledger.find(request.request_id)
        assert record is not None, "an engine that is compared records its answers"
        return record


def work_of(engine: Engine, record: AnswerRecord) -> Work:
    """An answer's share of what its steps read and multiplied."""
    model, ledger = engine.model, engine.ledger
    assert ledger is not None, "a record comes from a ledger"
    kept = str(model.cache_dtype).removeprefix("torch.")
    whole, total = model_work(model.transformer, model.facts, kept), Work()
    for number in record.steps:
        step = ledger.step(number)
        assert step is not None, "an answer that ended a moment ago has its steps"
        part = part_of(step, record.number)
        stages = whole.part(
            part.start,
            part.end,
            part.num_rows,
            num_tokens=sum(each.count for each in step.parts),
            all_rows=sum(each.num_rows for each in step.parts),
        )
        for stage in stages:
            total += stage
    return total


def _num_computed(engine: Engine, record: AnswerRecord) -> int:
    assert engine.ledger is not None, "a record comes from a ledger"
    steps = (engine.ledger.step(number) for number in record.steps)
    return sum(part_of(step, record.number).count for step in steps if step is not None)
