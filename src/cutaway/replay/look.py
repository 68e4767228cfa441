"""An answer of the ledger, opened for views: told what they want, it runs the answer again.

A replay has pages of its own and stops where nothing more is wanted. What it costs is known
before it is spent.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import replace
from functools import cached_property, partial

import torch
from torch import Tensor

from cutaway.blocks.weighed import model_work
from cutaway.core.errors import CutawayError, ReplayError
from cutaway.core.work import ModelWork, Work
from cutaway.engine.engine import Engine
from cutaway.engine.native import is_recorded
from cutaway.replay.gathering import MOST_TOGETHER, Ask, Gathering
from cutaway.replay.inner_values import num_bytes, num_runs
from cutaway.replay.passes import Pass, levels_of
from cutaway.replay.plan import Level
from cutaway.replay.recorded_answers import plan_answer
from cutaway.replay.spare_runners import SpareRunners
from cutaway.replay.teacher_forcing import force_tokens
from cutaway.replay.verify import row_of, rows_of
from cutaway.replay.view_cost import ViewCost, pace_of, seconds_a_number
from cutaway.sampling.candidates import SamplerRow
from cutaway.text.chat_messages import Message
from cutaway.text.reach import render_whole
from cutaway.trace.cost import Rates, work_of
from cutaway.trace.records import AnswerRecord
from cutaway.views.parts.query import Query
from cutaway.views.parts.replay_values import Proof, ReplayValues, Wanted
from cutaway.views.parts.subject import Build, Subject
from cutaway.views.parts.view import View

PIECE_TOKENS = 32  # of a step of ours, for which the answers of others wait


class Look:
    """One answer of an engine, and what was taken of it so far.

    max_bytes, max_flops: bounds of one replay; None is none.
    spares: recordings that looks into other answers left.
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
        spares: SpareRunners | None = None,
    ) -> None:
        self._spares = SpareRunners() if spares is None else spares
        self._engine, self._answer = engine, answer
        self._bounds = (max_bytes, max_flops)
        self._taken: list[ReplayValues] = []
        self._together: list[list[Wanted]] = []
        subject = _subject(engine, answer, self.take, messages)
        self.subject = replace(subject, encode_seconds=encode_seconds)

    def cost(self, wanted: Wanted) -> ViewCost:
        """What it costs to take some inner values, before any is taken.

        Raises: ReplayError when the record of the answer is not whole.
        """
        if wanted.is_empty or self._found(wanted) is not None:
            return ViewCost(0, 0, 0)
        engine = self._engine
        level, *_ = self._levels
        plan = plan_answer(engine, self._answer, level=level, prefill_chunk=PIECE_TOKENS)
        runs = plan.runs[: num_runs(plan, wanted, engine.config.page_size)]
        works = [work_of(run.step, self._work) for run in runs]
        is_fresh = is_recorded(engine.model) and not self._spares.has(
            num_pages=plan.num_pages, max_tokens=plan.max_tokens, keeps=True
        )
        return ViewCost(
            sum(run.num_tokens for run in runs),
            flops=round(sum(work.flops for work in works)),
            num_bytes=num_bytes(wanted, engine.model.facts),
            seconds=sum(map(self._pace.predict_seconds, works)),
            is_fresh=is_fresh,
        )

    def predict_cost(self, view: View, query: Query) -> ViewCost:
        """What a view costs, with its own products. Raises: ReplayError as cost does."""
        cost = self.cost(view.wants(self.subject, query))
        own, work = view.flops(self.subject, query), view.work(self.subject, query)
        seconds = self._pace.predict_seconds(Work(matrix_flops=own)) if own else 0.0
        if walks := view.walks(self.subject, query):
            seconds += walks * seconds_a_number(self._engine.model.device)
        return replace(cost, flops=cost.flops + own, own_work=work, own_seconds=seconds)

    def take(self, wanted: Wanted) -> ReplayValues:
        """Inner values, from a replay unless they are here already.

        Raises: ReplayError when the record is not whole, or the cost is over a bound.
        """
        if wanted.is_empty:
            return ReplayValues(wanted, Proof("record", 0, 0), {}, {}, {})
        for _ in self.take_in_steps(wanted):
            pass
        found = self._found(wanted)
        assert found is not None, "it was taken"
        return found

    def take_in_steps(self, wanted: Wanted) -> Generator[None]:
        """Take inner values step by step, for whoever has other things to do between two steps.

        Raises: ReplayError as take does, before the first step.
        """
        if wanted.is_empty or self._found(wanted) is not None:
            return
        self._check(self.cost(wanted))
        alone = [wanted]
        yield from self._replaying(next((g for g in self._together if wanted in g), alone))

    def prepare(self, views: Sequence[View], query: Query) -> None:
        """Let one replay serve several of these views, as many as may be held together.

        Nothing is computed before the first of them is shown. A view that refuses the query, or
        for which the answer cannot be run again, says so then.
        """
        facts, left = self._engine.model.facts, 0
        for view in views:
            try:
                view.check(self.subject, query)
                wanted = view.wants(self.subject, query)
            except CutawayError:
                continue
            if wanted.is_empty or any(wanted in group for group in self._together):
                continue
            size = num_bytes(wanted, facts)
            if size > left:
                self._together.append([])
                left = MOST_TOGETHER
            self._together[-1].append(wanted)
            left -= size

    def gather(self, asks: Sequence[Ask], *, chunk: int | None = None) -> Gathering:
        """Many views at many places, to be run; nothing of it is kept here.

        chunk: tokens of a step of ours; None takes the engine's own.
        Raises: ReplayError when running the whole answer once is over a bound.
        """
        num_tokens = len(self._answer.token_ids)
        flops = 2 * self._engine.model.facts.num_parameters * num_tokens
        self._check(ViewCost(num_tokens, flops, 0))
        return Gathering(self._engine, self._answer, self.subject, asks, chunk=chunk)

    @cached_property
    def _work(self) -> ModelWork:
        model = self._engine.model
        return model_work(model.transformer, model.facts, self.subject.build.cache_dtype)

    @cached_property
    def _pace(self) -> Rates:
        is_device = self.subject.build.device != "cpu"
        runs = plan_answer(self._engine, self._answer).runs
        return pace_of(runs, self._work, is_device=is_device)

    def _found(self, wanted: Wanted) -> ReplayValues | None:
        return next((each for each in self._taken if each.wanted.covers(wanted)), None)

    def _check(self, cost: ViewCost) -> None:
        for value, bound, unit in (
            (cost.num_bytes, self._bounds[0], "bytes"),
            (cost.flops, self._bounds[1], "FLOPs"),
        ):
            if bound is not None and value > bound:
                raise ReplayError(
                    f"this look takes {value:,} {unit}; allowed are {bound:,}. Ask for fewer "
                    "layers or positions, or raise the bound."
                )

    def _replaying(self, group: Sequence[Wanted]) -> Iterator[None]:
        """Run the answer as far as any of the group wants, and keep what each wants of it."""
        first, *others = self._levels
        taking = self._pass(group, level=first, chunk=PIECE_TOKENS)
        yield from taking.run()
        for level in others if not taking.proof.is_exact else ():
            taking = self._pass(group, level=level)
            yield from taking.run()
        for taken in taking.takes():
            self._keep(taken)

    def _pass(self, group: Sequence[Wanted], *, level: Level, chunk: int | None = None) -> Pass:
        return Pass(
            self._engine, self._answer, group, level=level, chunk=chunk, spares=self._spares
        )

    @cached_property
    def _levels(self) -> tuple[Level, ...]:
        """In short steps where that gives the same bits, if those of serving were long."""
        runs = plan_answer(self._engine, self._answer).runs
        if max(run.num_tokens for run in runs) <= PIECE_TOKENS:
            return ("shape-faithful",)
        return levels_of(self._engine, self._answer)

    def _keep(self, taken: ReplayValues) -> None:
        """The latest first; the oldest go where all would be too much."""
        self._taken.insert(0, taken)
        facts, total = self._engine.model.facts, 0
        for index, each in enumerate(self._taken):
            total += num_bytes(each.wanted, facts)
            if index and total > MOST_TOGETHER:
                del self._taken[index:]
                return


def _subject(
    engine: Engine,
    answer: AnswerRecord,
    take: Callable[[Wanted], ReplayValues],
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
        settings=config.numeric_settings(),
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
        stream=lambda: engine.model.text_stream(params),
        kept=partial(_kept, engine, answer),
        row=_Rows(engine, answer).of,
        branch=partial(_branch, engine, answer),
        messages=messages,
        prompt=render_whole(model.template, messages) if messages else None,
    )


class _Rows:
    """What decided each token of an answer. Where a form held it, all of them come of one walk."""

    def __init__(self, engine: Engine, answer: AnswerRecord) -> None:
        self._engine, self._answer = engine, answer

    @cached_property
    def _held(self) -> list[SamplerRow] | None:
        params = self._answer.request.params
        state, end_ids = self._engine.grammar_state(params), self._engine.model.end_ids(params)
        return None if state is None else rows_of(self._answer, end_ids=end_ids, state=state)

    def of(self, token: int) -> SamplerRow:
        if self._held is not None:
            return self._held[token]
        output = [each.token_id for each in self._answer.tokens[:token]]
        end_ids = self._engine.model.end_ids(self._answer.request.params)
        return row_of(self._answer, output, end_ids=end_ids)


def _branch(engine: Engine, answer: AnswerRecord, token: int, token_ids: Sequence[int]) -> Tensor:
    known = answer.token_ids[: answer.num_prompt_tokens + token]
    rows = force_tokens(engine, answer, prompt=known, output=token_ids, chunk=PIECE_TOKENS)
    return torch.stack([row.float().clone() for _, row in rows])


def _kept(engine: Engine, answer: AnswerRecord) -> tuple[tuple[bool, ...], ...]:
    cache, token_ids = engine.cache, answer.token_ids[:-1]
    num_full = len(token_ids) // cache.page_size
    keys = cache.keys(answer.cache_root).between(0, num_full, token_ids)
    return tuple(tuple(a.index.find(key) is not None for key in keys) for a in cache.allocators)
