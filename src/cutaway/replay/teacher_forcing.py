"""Logits of an answer that was put in the model's mouth: which tokens it would have preferred."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from torch import Tensor

from cutaway.engine.engine import Engine
from cutaway.host.turns import breathe
from cutaway.replay.recorded_answers import replay_answer
from cutaway.replay.replay import SinkOf
from cutaway.trace.records import AnswerRecord, TokenRecord, TokenRecords


def force_tokens(
    engine: Engine,
    like: AnswerRecord,
    *,
    prompt: Sequence[int],
    output: Sequence[int],
    chunk: int | None = None,
    sink_of: SinkOf | None = None,
    intervenes: bool = False,
) -> Iterator[tuple[int, Tensor]]:
    """For each token of output its index and the row that it would have been drawn from.

    All go through the model at once, in chunks and with nobody beside; in the pages of a pool that
    lives as long as the iterator.

    like:   the answer whose settings and declared length it has.
    chunk:  tokens of a step; None takes the engine's own.
    sink_of, intervenes: as in replay/replay.py.
    Shapes: each row [V], valid until the next one.
    """
    record = forced_record(like, prompt=prompt, output=output)
    replay = replay_answer(
        engine,
        record,
        level="invariant",
        prefill_chunk=chunk,
        sink_of=sink_of,
        intervenes=intervenes,
    )
    for run, logits in replay.steps():
        breathe()
        for drawn in run.drawn:
            yield drawn.index, logits[drawn.row]


def forced_record(
    like: AnswerRecord, *, prompt: Sequence[int], output: Sequence[int]
) -> AnswerRecord:
    """A record of tokens that were never drawn: what they were drawn from is not in it."""
    tokens = TokenRecords(TokenRecord(each, -1, 0, None, 0.0, 0.0, 0) for each in output)
    return replace(
        like,
        request=replace(like.request, prompt_token_ids=tuple(prompt)),
        max_length=max(like.max_length, len(prompt) + len(output)),
        admissions=[],
        tokens=tokens,
    )
