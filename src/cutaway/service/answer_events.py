"""What happened to an answer, event by event, from the ledger: while it grows, and afterwards.

docs/events.md is the contract. Events are made one at a time, by whoever wants the next; nothing
is kept but what the next one needs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict
from functools import cached_property
from itertools import groupby, islice

from cutaway.blocks.weighed import model_work
from cutaway.core.errors import ReplayError
from cutaway.core.layout import CacheGroup, Window, group_layers
from cutaway.core.limits import quote
from cutaway.core.work import ModelWork
from cutaway.engine.engine import Engine
from cutaway.stream.text import TextPiece
from cutaway.trace.cost import PLAIN, StageCost, StepCost, share_of
from cutaway.trace.events import (
    Event,
    cost_fields,
    pages_event,
    seam_event,
    step_event,
    token_event,
)
from cutaway.trace.records import AnswerRecord, StepRecord
from cutaway.views.parts.subject import visible

MAX_STRETCHES, MAX_CHARACTERS, MAX_TOKENS = 64, 2_000, 256  # of one event


class Teller:
    """Tells the events of an engine's answers."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @cached_property
    def work(self) -> ModelWork:
        """What the model's steps read and multiply; weighing a large model takes a moment."""
        model = self._engine.model
        return model_work(model.transformer, model.facts, _name(model.cache_dtype))

    @property
    def is_device(self) -> bool:
        """Whether the host goes ahead of the forward, so that its end is not known."""
        return self._engine.model.device.type != "cpu"

    def text(self, token_id: int) -> str:
        """A token as one short line."""
        return visible(self._engine.model.tokenizer.token_bytes(token_id))

    def events_of(self, answer: AnswerRecord) -> Iterator[Event | None]:
        """All events, each once and in order; None while nothing is new.

        Raises: ReplayError when the ledger has dropped what would be next.
        """
        yield self._start(answer)
        yield from self._template(answer)
        yield from self._prompt(answer)
        ending = _Ending(self._engine, answer)
        for admission, number in _growing(answer):
            if admission is None and self._is_stopped:
                raise ReplayError(
                    f"answer {quote(answer.request.request_id)} is not recorded to its end: "
                    "recording "
                    "raised and was switched off, for a fault of Cutaway itself."
                )
            if number is not None:
                yield from self._step(answer, number, ending)
            else:
                yield None if admission is None else pages_event(answer.admissions, admission)
        yield ending.cost()
        yield ending.end()

    @property
    def _is_stopped(self) -> bool:
        ledger = self._engine.ledger
        return ledger is not None and ledger.is_stopped

    def _start(self, answer: AnswerRecord) -> Event:
        engine, model, params = self._engine, self._engine.model, answer.request.params
        numbers = {n: v for n, v in vars(params).items() if isinstance(v, int | float | None)}
        return {
            "type": "start",
            "trace_id": answer.request.request_id,
            "choice": answer.choice,
            "answer": answer.number,
            "came": round(answer.arrived, 6),
            "model": model.name,
            "lora": answer.request.lora or None,
            "dtype": _name(model.dtype),
            "cache_dtype": _name(model.cache_dtype),
            "device": str(model.device),
            "page_size": engine.config.page_size,
            "num_layers": model.facts.num_layers,
            "vocab_size": model.facts.vocab_size,
            "num_prompt_tokens": answer.num_prompt_tokens,
            "max_length": answer.max_length,
            "seed": answer.seed,
            "sampling": {n: v for n, v in numbers.items() if n not in ("grammar", "seed")},
            "groups": groups_of(engine),
        }

    def _template(self, answer: AnswerRecord) -> Iterator[Event]:
        ids, tokenizer = answer.request.prompt_token_ids, self._engine.model.tokenizer
        spans = _spans(ids, tokenizer.control_ids)
        while some := list(islice(spans, MAX_STRETCHES)):
            stretches = [
                {
                    "writer": "control" if is_control else "prompt",
                    "start": start,
                    "count": past - start,
                    # A token has a byte at least, and a character four at most.
                    "text": tokenizer.decode_bytes(
                        ids[start : min(past, start + 4 * MAX_CHARACTERS)]
                    ).decode(errors="replace")[:MAX_CHARACTERS],
                }
                for is_control, start, past in some
            ]
            yield {"type": "template", "start": some[0][1], "stretches": stretches}

    def _prompt(self, answer: AnswerRecord) -> Iterator[Event]:
        ids = answer.request.prompt_token_ids
        for start in range(0, len(ids), MAX_TOKENS):
            some = ids[start : start + MAX_TOKENS]
            texts = [self.text(each) for each in some]
            yield {"type": "prompt", "start": start, "ids": some, "texts": texts}

    def _step(self, answer: AnswerRecord, number: int, ending: _Ending) -> Iterator[Event]:
        ledger = self._engine.ledger
        step = None if ledger is None else ledger.step(number)
        if step is None:
            raise ReplayError(
                f"step {number} of answer {quote(answer.request.request_id)} is not in the ledger "
                "any more. Raise ledger_bytes, or listen sooner."
            )
        cost = share_of(step, answer, self.work, PLAIN, is_device=self.is_device)
        size = self._engine.config.page_size
        event = step_event(step, answer.number, zero=answer.arrived, page_size=size)
        drafts = next(p.draft_token_ids for p in step.parts if p.answer == answer.number)
        yield event | {"draft_ids": drafts} | cost_fields(cost)
        at = step.ended - answer.arrived
        if answer.seam is not None and answer.tokens[0].step == number:
            yield seam_event(answer.seam, step=number, at=at)
        for index, piece in ending.after(step, cost):
            token = answer.tokens[index]
            logprob = token.logit - token.logsumexp
            yield token_event(token, index, at=at, text=self.text) | {
                "probability": float(f"{math.exp(logprob):.6g}"),
                "shows": piece.text,
                "held_bytes": piece.held_bytes.hex(),
                "held_text": piece.held_text,
            }


class _Ending:
    """What adds up until an answer's end: text that waits, and what its steps cost."""

    def __init__(self, engine: Engine, answer: AnswerRecord) -> None:
        self._answer = answer
        self._stream = engine.model.text_stream(answer.request.params)
        self._num_tokens = 0
        self._stages: dict[str, StageCost] = {}
        self._busy = 0.0
        self._last = 0.0

    def after(self, step: StepRecord, cost: StepCost) -> Iterator[tuple[int, TextPiece]]:
        """The tokens that a step gave, by index, and what each lets a reader see."""
        self._busy += step.ended - step.began
        self._last = step.ended - self._answer.arrived
        for stage in cost.stages:
            so_far = self._stages.get(stage.name, StageCost(stage.name, 0.0, 0.0, 0.0))
            self._stages[stage.name] = StageCost(
                stage.name,
                so_far.seconds + stage.seconds,
                so_far.num_bytes + stage.num_bytes,
                so_far.flops + stage.flops,
            )
        tokens = self._answer.tokens
        while self._num_tokens < len(tokens) and tokens[self._num_tokens].step == step.number:
            self._num_tokens += 1
            token_id = tokens[self._num_tokens - 1].token_id
            yield self._num_tokens - 1, self._stream.push(token_id)

    def cost(self) -> Event:
        """The answer's shares of its steps, summed. Units: seconds, bytes, FLOPs."""
        stages = tuple(self._stages.values())
        return {
            "type": "cost",
            "stages": [{"name": each.name} | cost_fields(StepCost(0, (each,))) for each in stages],
            "busy": round(self._busy, 8),
            **cost_fields(StepCost(0, stages)),
        }

    def end(self) -> Event:
        """The last event. Units: seconds."""
        answer = self._answer
        return {
            "type": "end",
            "at": round(self._last, 7),
            "reason": answer.finish_reason,
            "rest": self._stream.finish(),
            "usage": None if answer.usage is None else asdict(answer.usage),
            "timings": None if answer.timings is None else asdict(answer.timings),
        }


def groups_of(engine: Engine) -> list[Event]:
    """Layers that share page tables, and what a page of them takes."""
    groups = group_layers(engine.model.facts.cache_specs)
    return [_group(each, engine) for each in groups]


def _group(group: CacheGroup, engine: Engine) -> Event:
    spec, dtype = group.spec, _name(engine.model.cache_dtype)
    token_bytes = spec.bytes_per_token(dtype) * len(group.layers)
    state_bytes = sum(field.num_bytes for field in spec.list_fields(dtype)) * len(group.layers)
    window = spec.extent.width if isinstance(spec.extent, Window) and not spec.is_state else None
    return {
        "layers": group.layers,
        "window": window,
        "is_state": spec.is_state,
        "token_bytes": token_bytes,
        "page_bytes": state_bytes if spec.is_state else token_bytes * engine.config.page_size,
    }


def _growing(answer: AnswerRecord) -> Iterator[tuple[int | None, int | None]]:
    """(admission, None) and (admission, step) in order; (None, None) while nothing is new."""
    admission = step = 0
    is_told = False  # the admission itself
    while True:
        has_admission = admission < len(answer.admissions)
        if has_admission and not is_told:
            is_told = True
            yield admission, None
        elif has_admission and step < len(answer.admissions[admission].steps):
            step += 1
            yield admission, answer.admissions[admission].steps[step - 1]
        elif admission + 1 < len(answer.admissions):
            admission, step, is_told = admission + 1, 0, False
        elif answer.finish_reason is not None:
            return
        else:
            yield None, None


def _spans(ids: tuple[int, ...], control: frozenset[int]) -> Iterator[tuple[bool, int, int]]:
    """Each control token, and each run of other tokens: whether it is one, from where to where."""
    start = 0
    for is_control, alike in groupby(ids, control.__contains__):
        past = start + sum(1 for _ in alike)
        if is_control:
            yield from ((True, at, at + 1) for at in range(start, past))
        else:
            yield False, start, past
        start = past


def _name(dtype: object) -> str:
    return str(dtype).removeprefix("torch.")
