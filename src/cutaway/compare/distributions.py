"""How far a change moves the chances of each step, with the recorded tokens in both mouths."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
from torch import Tensor

from cutaway.compare.comparison import Divergence
from cutaway.compare.side import Side, Steps
from cutaway.compare.sides import Pair, Source
from cutaway.replay.teacher_forcing import forced_record
from cutaway.replay.verify import bytes_of_rows, rows_of
from cutaway.sampling.candidates import SamplerRow
from cutaway.sampling.effects import shares

# Of two rows: chances on the recorded side, and on the changed one. [V] float64 each.
Chances = Callable[[int, Tensor, Tensor], tuple[Tensor, Tensor]]


def measure_divergence(source: Source, pair: Pair) -> Steps[Divergence | None]:
    """How far a change moved the chances, row by row; None where there is nothing to set apart."""
    output = source.token_ids
    if pair.of == "draw":
        rows = [_rows(source, side) for side in (pair.recorded, pair.changed)]

        def drawn(index: int, one: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
            return shares(one, rows[0][index]), shares(other, rows[1][index])

        return (yield from _moved(source, pair, output, drawn))
    if pair.of is None or pair.forced is None:
        return None

    def said(index: int, one: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
        return one.double().softmax(-1), other.double().softmax(-1)

    return (yield from _moved(source, pair, pair.forced, said))


def _rows(source: Source, side: Side) -> list[SamplerRow]:
    """What decided each recorded token on a side, besides its logits."""
    record = forced_record(source.answer, prompt=side.prompt, output=source.token_ids)
    record.request = replace(record.request, params=side.params)
    record.seed = source.answer.seed if side.params.seed is None else side.params.seed
    state = side.engine.grammar_state(side.params)
    vocab_size = side.engine.model.facts.vocab_size
    num_bytes = bytes_of_rows(
        len(source.token_ids), vocab_size=vocab_size, has_grammar=state is not None
    )
    words = f"what decided each token of a side: {num_bytes / 2**20:,.1f} MiB"
    source.allowance.take(num_bytes, words)
    return rows_of(record, end_ids=side.engine.model.end_ids(side.params), state=state)


def _moved(
    source: Source, pair: Pair, output: Sequence[int], chances: Chances
) -> Steps[Divergence]:
    kl: list[float] = []
    distance: list[float] = []
    num_same_top = 0
    ours = pair.recorded.rows(source.answer, source.token_ids)
    theirs = pair.changed.rows(source.answer, output)
    while True:
        mine = yield from _next_row(ours, len(kl))
        their = yield from _next_row(theirs, len(kl))
        if mine is None or their is None:
            assert mine is their, "as many rows are asked of both"
            break
        (index, one), (_, other) = mine, their
        before, after = chances(index, one, other.to(one.device))
        had = before > 0
        kl.append(float((before[had] * (before[had].log() - after[had].log())).sum().clamp(min=0)))
        distance.append(float((before - after).abs().sum()) / 2)
        num_same_top += int(before.argmax()) == int(after.argmax())
        yield len(kl)
    return Divergence(
        of="draw" if pair.of == "draw" else "model",
        kl=np.array(kl, np.float32),
        distance=np.array(distance, np.float32),
        num_same_top=num_same_top,
    )


def _next_row(
    rows: Iterator[tuple[int, Tensor] | None], num_known: int
) -> Steps[tuple[int, Tensor] | None]:
    """The next one, behind steps that give none; None at the end."""
    for row in rows:
        yield num_known
        if row is not None:
            return row
    return None
