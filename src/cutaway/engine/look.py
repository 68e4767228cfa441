"""An answer of the ledger, opened for views: told what they want, it runs the answer again.

A replay has pages of its own and stops where nothing more is wanted. What it costs is known
before it is spent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from cutaway.core.errors import ReplayError
from cutaway.core.facts import ModelFacts
from cutaway.core.step import Sink
from cutaway.engine.engine import Engine
from cutaway.engine.forced import forced
from cutaway.engine.replay_plan import ReplayPlan, Run
from cutaway.engine.verify import rows_of
from cutaway.sampling.candidates import Row
from cutaway.sampling.checksums import checksums
from cutaway.text.messages import Message
from cutaway.trace.records import AnswerRecord
from cutaway.views.query import Query
from cutaway.views.subject import Build, Subject
from cutaway.views.taken import Proof, Taken, Wanted
from cutaway.views.view import View

_MOST_TOGETHER = 512 * 2**20  # bytes; a chat with SmolLM2 takes some 20 MiB
# Numbers per position and layer that a tap has; names that are not here have the model's width.
_WIDTHS: Mapping[str, Callable[[ModelFacts], int]] = {
    "blocks.attention.query": lambda facts: facts.num_heads * facts.head_size,
    "blocks.attention.key": lambda facts: facts.num_groups * facts.head_size,
    "blocks.attention.value": lambda facts: facts.num_groups * facts.head_size,
    "blocks.attention.mixed": lambda facts: facts.num_heads * facts.head_size,
    "blocks.mlp.product": lambda facts: facts.inner,
}


@dataclass(frozen=True)
class Cost:
    """What taking inner values costs. Units: tokens that go through the model, FLOPs, bytes."""

    num_tokens: int
    flops: int
    num_bytes: int

    def __str__(self) -> str:
        return (
            f"{self.num_tokens} tokens again, {self.flops / 1e9:.1f} GFLOP, "
            f"{self.num_bytes / 2**20:.1f} MiB"
        )


class Look:
    """One answer of an engine, and what was taken of it so far.

    max_bytes, max_flops: bounds of one replay; None is none.
    """

    def __init__(
        self,
        engine: Engine,
        answer: AnswerRecord,
        *,
        messages: tuple[Message, ...] | None = None,
        encode_seconds: float | None = None,
        max_bytes: int | None = None,
        max_flops: int | None = None,
    ) -> None:
        self._engine, self._answer = engine, answer
        self._bounds = (max_bytes, max_flops)
        self._taken: Taken | None = None
        subject = _subject(engine, answer, self.take, messages)
        self.subject = replace(subject, encode_seconds=encode_seconds)

    def cost(self, wanted: Wanted) -> Cost:
        """Raises: ReplayError when the record of the answer is not whole."""
        if wanted.is_empty or (self._taken and self._taken.wanted.covers(wanted)):
            return Cost(0, 0, 0)
        plan = self._engine.replay(self._answer).plan
        runs = plan.runs[: _num_runs(plan, wanted, self._engine.config.page_size)]
        num_tokens = sum(run.num_tokens for run in runs)
        facts = self._engine.model.facts
        return Cost(num_tokens, 2 * facts.num_parameters * num_tokens, _bytes(wanted, facts))

    def take(self, wanted: Wanted) -> Taken:
        """Inner values, from a replay unless they are here already.

        Raises: ReplayError when the record is not whole, or the cost is over a bound.
        """
        if wanted.is_empty:
            return Taken(wanted, Proof("record", 0, 0), {}, {}, {})
        for _ in self.taking(wanted):
            pass
        assert self._taken is not None, "it was taken"
        return self._taken

    def taking(self, wanted: Wanted) -> Iterator[None]:
        """Take inner values step by step, for whoever has other things to do between two steps.

        Raises: ReplayError as take does, before the first step.
        """
        if wanted.is_empty or (self._taken and self._taken.wanted.covers(wanted)):
            return
        self._check(self.cost(wanted))
        yield from self._replaying(wanted)

    def prepare(self, views: Sequence[View], query: Query) -> None:
        """Take in one replay what several views want, so that they need no more.

        Nothing where all of it together would take much: each then runs the answer for itself.
        """
        wanted = Wanted()
        for view in views:
            wanted |= view.wants(self.subject, query)
        if self.cost(wanted).num_bytes <= _MOST_TOGETHER:
            self.take(wanted)

    def _check(self, cost: Cost) -> None:
        for value, bound, unit in (
            (cost.num_bytes, self._bounds[0], "bytes"),
            (cost.flops, self._bounds[1], "FLOPs"),
        ):
            if bound is not None and value > bound:
                raise ReplayError(
                    f"this look takes {value:,} {unit}; allowed are {bound:,}. Ask for fewer "
                    "layers or positions, or raise the bound."
                )

    def _replaying(self, wanted: Wanted) -> Iterator[None]:
        size = self._engine.config.page_size
        reader = _Reader(wanted, size)
        replay = self._engine.replay(self._answer, sink_of=reader.sink_of)
        reader.plan, plan = replay.plan, replay.plan
        rows: dict[int, Tensor] = {}
        compared: list[bool] = []
        for run, logits in replay.steps(_num_runs(plan, wanted, size)):
            told = checksums(logits)
            for drawn in run.drawn:
                compared.append(told[drawn.row] == self._answer.tokens[drawn.index].checksum)
                if drawn.index in wanted.rows:
                    rows[drawn.index] = logits[drawn.row].float().clone()
            yield
        stored = {layer: replay.stored(plan.final, layer, wanted.end) for layer in wanted.stored}
        cause = plan.cause or "what serving computed was computed otherwise"
        proof = Proof(plan.level, len(compared), sum(compared), None if all(compared) else cause)
        self._taken = Taken(wanted, proof, reader.values, stored, rows)


@dataclass(eq=False)
class _Reader:
    """Keeps what is wanted of what taps say; the last word on a position counts.

    A draft that was refused leaves nothing: the right token came to its place later.
    """

    wanted: Wanted
    page_size: int

    def __post_init__(self) -> None:
        self.plan: ReplayPlan | None = None
        self.values: dict[tuple[str, int | None], Tensor] = {}

    def sink_of(self, run: Run) -> Sink | None:
        assert self.plan is not None, "a replay has a plan"
        if not _touches(self.plan, run, self.wanted, self.page_size):
            return None
        first = sum(part.count for part in run.step.parts[: run.at])
        start, end = max(run.part.start, self.wanted.start), min(run.part.end, self.wanted.end)
        rows = slice(first + start - run.part.start, first + end - run.part.start)

        def read(name: str, value: Tensor, layer: int | None) -> None:
            if name in self.wanted.taps and (layer is None or layer in self.wanted.layers):
                place = self._place(name, layer, value)
                place[start - self.wanted.start : end - self.wanted.start] = value[rows]

        return read

    def _place(self, name: str, layer: int | None, value: Tensor) -> Tensor:
        key = (name, layer)
        if key not in self.values:
            count = self.wanted.end - self.wanted.start
            dtype = torch.promote_types(value.dtype, torch.float32)
            if not value.is_floating_point():
                dtype = value.dtype
            self.values[key] = value.new_zeros((count, *value.shape[1:]), dtype=dtype)
        return self.values[key]


def _touches(plan: ReplayPlan, run: Run, wanted: Wanted, page_size: int) -> bool:
    """Whether a run computes wanted positions of the answer: its own, or those of its prefix."""
    start, end = max(run.part.start, wanted.start), min(run.part.end, wanted.end)
    if start >= end:
        return False
    if run.writer.answer == plan.answer.number:
        return True
    ours, theirs = plan.tables[plan.final], plan.tables[run.writer]
    places = range(start // page_size, (end - 1) // page_size + 1)
    return any(p < len(ours) and p < len(theirs) and ours[p] == theirs[p] for p in places)


def _num_runs(plan: ReplayPlan, wanted: Wanted, page_size: int) -> int:
    """How many runs of the plan it takes, up to the first row behind that can be compared."""
    last = 0
    everything = replace(wanted, start=0) if wanted.stored else wanted
    for index, run in enumerate(plan.runs):
        is_row = any(drawn.index in wanted.rows for drawn in run.drawn)
        if is_row or _touches(plan, run, everything, page_size):
            last = index
    while not plan.runs[last].drawn and last + 1 < len(plan.runs):
        last += 1
    return last + 1


def _bytes(wanted: Wanted, facts: ModelFacts) -> int:
    widths = (_WIDTHS.get(name, lambda facts: facts.width)(facts) for name in wanted.taps)
    taps = sum(widths) * (wanted.end - wanted.start) * max(1, len(wanted.layers))
    stored = len(wanted.stored) * wanted.end * 2 * facts.num_groups * facts.head_size
    return 4 * (taps + stored + len(wanted.rows) * facts.vocab_size)


def _subject(
    engine: Engine,
    answer: AnswerRecord,
    take: Callable[[Wanted], Taken],
    messages: tuple[Message, ...] | None,
) -> Subject:
    model, config, params = engine.model, engine.config, answer.request.params
    assert engine.ledger is not None, "an answer comes from the ledger"
    build = Build(
        model=model.name,
        dtype=str(model.dtype).removeprefix("torch."),
        cache_dtype=str(model.cache_dtype).removeprefix("torch."),
        device=str(model.device),
        page_size=config.page_size,
        prefill_chunk=config.prefill_chunk,
        has_prefix_cache=config.prefix_cache,
    )
    return Subject(
        answer=answer,
        ledger=engine.ledger,
        transformer=model.transformer,
        facts=model.facts,
        tokenizer=model.tokenizer,
        build=build,
        take=take,
        grammar=lambda: engine.grammar_state(params),
        stream=lambda: engine.text_stream(params),
        kept=partial(_kept, engine, answer),
        row=partial(_row, engine, answer),
        branch=partial(_branch, engine, answer),
        messages=messages,
        prompt=model.template.render(messages) if messages else None,
    )


def _row(engine: Engine, answer: AnswerRecord, token: int) -> Row:
    params = answer.request.params
    state = engine.grammar_state(params)
    return rows_of(answer, end_ids=engine.end_ids(params), state=state)[token]


def _branch(engine: Engine, answer: AnswerRecord, token: int, token_ids: Sequence[int]) -> Tensor:
    known = answer.token_ids[: answer.num_prompt_tokens + token]
    rows = forced(engine, answer, prompt=known, output=token_ids)
    return torch.stack([row.float().clone() for _, row in rows])


def _kept(engine: Engine, answer: AnswerRecord) -> tuple[tuple[bool, ...], ...]:
    cache, token_ids = engine.cache, answer.token_ids[:-1]
    num_full = len(token_ids) // cache.page_size
    keys = cache.keys(answer.cache_root).between(0, num_full, token_ids)
    return tuple(tuple(a.index.find(key) is not None for key in keys) for a in cache.allocators)
