"""A recorded answer beside the same with one thing changed: run, measured, and told apart.

Both sides run in turn, several times, in pages that nobody else finds. Chances are compared with
the recorded tokens put in both mouths, so that step by step the same is asked of both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from torch import Tensor, nn

from cutaway.core.layout import CacheSpec, Window
from cutaway.engine.comparison import Comparison, Divergence, Measured, Spread
from cutaway.engine.engine import Engine
from cutaway.engine.forced import forced_record
from cutaway.engine.levers import Change
from cutaway.engine.side import Ran, Side
from cutaway.engine.sides import Pair, Source, Tell, pair_of
from cutaway.engine.verify import rows_of
from cutaway.sampling.candidates import Row
from cutaway.sampling.effects import shares
from cutaway.text.messages import Message
from cutaway.trace.records import AnswerRecord
from cutaway.views.subject import visible

NUM_RUNS = 3

# Of two rows: chances on the recorded side, and on the changed one. [V] float64 each.
Chances = Callable[[int, Tensor, Tensor], tuple[Tensor, Tensor]]


def compare(
    engine: Engine,
    answer: AnswerRecord,
    change: Change,
    *,
    name: str,
    messages: tuple[Message, ...] | None = None,
    num_runs: int = NUM_RUNS,
    price: float | None = None,
    tell: Tell = lambda words: None,
) -> Comparison:
    """Change one thing of a recorded answer and say what that did.

    name:  under which the model was loaded.   messages: the conversation, where there is one.
    price: of this machine per hour.   tell: hears what memory is taken, before it is.
    Raises: RequestError for a value that does not fit, and what opening another model raises.
    """
    source = Source(engine, answer, name, messages, tell)
    pair = pair_of(source, change)
    sides = (pair.recorded, pair.changed)
    runs: tuple[list[Ran], list[Ran]] = ([], [])
    for number in range(num_runs):
        # In turn, and each first every other time: what drifts falls on both.
        for side in (0, 1) if number % 2 == 0 else (1, 0):
            runs[side].append(sides[side].run())
    return _told(source, change, pair, runs, price=price)


def _told(
    source: Source,
    change: Change,
    pair: Pair,
    runs: tuple[list[Ran], list[Ran]],
    *,
    price: float | None,
) -> Comparison:
    left, right = runs[0][0], runs[1][0]
    pieces = [
        tuple(_pieces(side.engine, ran.token_ids))
        for side, ran in ((pair.recorded, left), (pair.changed, right))
    ]
    first = _first_difference(pair, left, right, pieces)
    checked, equal = _equal_rows(left, right, first)
    return Comparison(
        change=str(change),
        first_difference=first,
        recorded_token_ids=left.token_ids,
        changed_token_ids=right.token_ids,
        recorded_pieces=pieces[0],
        changed_pieces=pieces[1],
        recorded_text=pair.recorded.engine.model.tokenizer.decode(left.token_ids),
        changed_text=pair.changed.engine.model.tokenizer.decode(right.token_ids),
        num_equal_rows=equal,
        num_rows=checked,
        is_as_served=left.token_ids == source.token_ids,
        is_repeatable=all(len({ran.token_ids for ran in each}) == 1 for each in runs),
        divergence=_divergence(source, pair),
        recorded=_measured(pair.recorded, runs[0], price),
        changed=_measured(pair.changed, runs[1], price),
        num_runs=len(runs[0]),
        notes=pair.notes,
    )


def _pieces(engine: Engine, token_ids: Sequence[int]) -> list[str]:
    return [visible(engine.model.tokenizer.token_bytes(each)) for each in token_ids]


def _first_difference(
    pair: Pair, left: Ran, right: Ran, pieces: Sequence[Sequence[str]]
) -> int | None:
    """By ids, or by the tokens' texts where two models have other ids."""
    both = (left.token_ids, right.token_ids)
    tokenizers = {side.engine.model.tokenizer.fingerprint for side in (pair.recorded, pair.changed)}
    one, other = both if len(tokenizers) == 1 else pieces
    for index, (mine, theirs) in enumerate(zip(one, other, strict=False)):
        if mine != theirs:
            return index
    return None if len(one) == len(other) else min(len(one), len(other))


def _equal_rows(left: Ran, right: Ran, first: int | None) -> tuple[int, int]:
    """Of the rows behind equal beginnings, how many there are and how many have the same bits."""
    past = len(left.token_ids) if first is None else first + 1
    both = [index for index in left.checksums if index < past and index in right.checksums]
    return len(both), sum(left.checksums[each] == right.checksums[each] for each in both)


def _divergence(source: Source, pair: Pair) -> Divergence | None:
    output = source.token_ids
    if pair.of == "draw":
        rows = [_rows(source, side) for side in (pair.recorded, pair.changed)]

        def drawn(index: int, one: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
            return shares(one, rows[0][index]), shares(other, rows[1][index])

        return _moved(source, pair, output, drawn)
    if pair.of is None or pair.forced is None:
        return None

    def said(index: int, one: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
        return one.double().softmax(-1), other.double().softmax(-1)

    return _moved(source, pair, pair.forced, said)


def _rows(source: Source, side: Side) -> list[Row]:
    """What decided each recorded token on a side, besides its logits."""
    record = forced_record(source.answer, prompt=side.prompt, output=source.token_ids)
    record.request = replace(record.request, params=side.params)
    record.seed = source.answer.seed if side.params.seed is None else side.params.seed
    state = side.engine.grammar_state(side.params)
    return rows_of(record, end_ids=side.engine.end_ids(side.params), state=state)


def _moved(source: Source, pair: Pair, output: Sequence[int], chances: Chances) -> Divergence:
    kl: list[float] = []
    distance: list[float] = []
    num_same_top = 0
    ours = pair.recorded.rows(source.answer, source.token_ids)
    theirs = pair.changed.rows(source.answer, output)
    for (index, one), (_, other) in zip(ours, theirs, strict=True):
        before, after = chances(index, one, other.to(one.device))
        had = before > 0
        kl.append(float((before[had] * (before[had].log() - after[had].log())).sum().clamp(min=0)))
        distance.append(float((before - after).abs().sum()) / 2)
        num_same_top += int(before.argmax()) == int(after.argmax())
    return Divergence(
        of="draw" if pair.of == "draw" else "model",
        kl=np.array(kl, np.float32),
        distance=np.array(distance, np.float32),
        num_same_top=num_same_top,
    )


def _measured(side: Side, runs: Sequence[Ran], price: float | None) -> Measured:
    ran, model = runs[0], side.engine.model
    seconds = Spread.of([each.seconds for each in runs])
    kept = str(model.cache_dtype).removeprefix("torch.")
    length = len(side.prompt) + len(ran.token_ids) - 1
    return Measured(
        first_text=Spread.of([each.first_text for each in runs]),
        per_token=Spread.of([each.per_token for each in runs]),
        seconds=seconds,
        rate=Spread.of([each.rate for each in runs]),
        num_computed=ran.num_computed,
        flops=ran.work.flops,
        num_bytes=ran.work.num_bytes,
        cache_bytes=sum(_kept_bytes(spec, length, kept) for spec in model.facts.cache_specs),
        weight_bytes=_weight_bytes(model.transformer),
        money=None if price is None else seconds.median * price / 3600,
    )


def _kept_bytes(spec: CacheSpec, length: int, dtype: str) -> int:
    if spec.is_state:
        return sum(field.num_bytes for field in spec.stored(dtype))
    extent = spec.extent
    seen = min(length, extent.width + extent.sinks) if isinstance(extent, Window) else length
    return seen * spec.bytes_per_token(dtype)


def _weight_bytes(transformer: nn.Module) -> int:
    """Of every matrix, one that is tied counted once."""
    total = 0
    for module in transformer.modules():  # each once, however many parts hold it
        told = getattr(module, "num_bytes", None)
        own = sum(parameter.nbytes for parameter in module.parameters(recurse=False))
        total += told if isinstance(told, int) else own
    return total
