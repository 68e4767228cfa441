"""A recorded answer beside the same with one thing changed: run, measured, and told apart.

Both sides run in turn, several times, in pages that nobody else finds. Chances are compared with
the recorded tokens put in both mouths, so that step by step the same is asked of both. All of it
goes step by step, for whoever has other things to do between two steps.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from torch import nn

from cutaway.compare.allowance import Allowance, Tell
from cutaway.compare.comparison import Comparison, Divergence, Measured, Spread
from cutaway.compare.distributions import measure_divergence
from cutaway.compare.levers import Change
from cutaway.compare.side import Ran, Side
from cutaway.compare.sides import Pair, Source, pair_of
from cutaway.core.layout import CacheSpec, Window
from cutaway.engine.engine import Engine
from cutaway.text.chat_messages import Message
from cutaway.trace.records import AnswerRecord
from cutaway.views.parts.subject import visible

NUM_RUNS = 3


@dataclass(frozen=True)
class ComparisonProgress:
    """How far a comparison is.

    part:       what is at work: a run of one side, or the chances of both.
    num_done:   parts that are over, of num_parts.
    num_tokens: of this part so far; at most most_tokens.
    """

    part: Literal["recorded", "changed", "chances"]
    num_done: int
    num_parts: int
    num_tokens: int
    most_tokens: int


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
    source = Source(engine, answer, name, messages, Allowance(tell=tell))
    steps = compare_in_steps(source, change, num_runs=num_runs, price=price)
    while True:
        try:
            next(steps)
        except StopIteration as ended:
            return ended.value


def compare_in_steps(
    source: Source, change: Change, *, num_runs: int = NUM_RUNS, price: float | None = None
) -> Generator[ComparisonProgress, None, Comparison]:
    """The same step by step. Closing it before its end leaves nothing behind.

    Raises: as compare, and RequestError for what takes more than is allowed.
    """
    pair = pair_of(source, change)
    source.allowance.check_flops(_flops(source, pair, num_runs))
    sides = (pair.recorded, pair.changed)
    runs: tuple[list[Ran], list[Ran]] = ([], [])
    for number in range(num_runs):
        # In turn, and each first every other time: what drifts falls on both.
        for which in (0, 1) if number % 2 == 0 else (1, 0):
            side, running = sides[which], sides[which].run()
            told = _progress(pair, "changed" if which else "recorded", runs, num_runs, side)
            while True:
                try:
                    yield replace(told, num_tokens=next(running))
                except StopIteration as ended:
                    runs[which].append(ended.value)
                    break
    told = _progress(pair, "chances", runs, num_runs, pair.recorded)
    steps = measure_divergence(source, pair)
    while True:
        try:
            yield replace(told, num_tokens=next(steps))
        except StopIteration as ended:
            return _told(source, change, pair, runs, ended.value, price=price)


def _progress(
    pair: Pair,
    part: Literal["recorded", "changed", "chances"],
    runs: tuple[list[Ran], list[Ran]],
    num_runs: int,
    side: Side,
) -> ComparisonProgress:
    num_parts = 2 * num_runs + (pair.of is not None)
    return ComparisonProgress(
        part, len(runs[0]) + len(runs[1]), num_parts, 0, side.params.max_tokens or 0
    )


def _flops(source: Source, pair: Pair, num_runs: int) -> float:
    """At most, and without what attention takes: every token goes through every matrix."""
    facts, num_known = source.engine.model.facts, len(source.token_ids)
    total = 0
    for side in (pair.recorded, pair.changed):
        forced = 0 if pair.of is None else len(side.prompt) + num_known
        total += num_runs * side.most_computed + forced
    return 2 * facts.num_parameters * total


def _told(
    source: Source,
    change: Change,
    pair: Pair,
    runs: tuple[list[Ran], list[Ran]],
    divergence: Divergence | None,
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
        are_whole=_are_whole(pair, left, right),
        divergence=divergence,
        recorded=_measured(pair.recorded, runs[0], price),
        changed=_measured(pair.changed, runs[1], price),
        num_runs=len(runs[0]),
        notes=(*pair.notes, *_note_pieces(source, pair)),
    )


def _are_whole(pair: Pair, left: Ran, right: Ran) -> bool:
    """Whether both sides drew a token that ends an answer."""
    sides = ((pair.recorded, left), (pair.changed, right))
    return all(
        bool(ran.token_ids) and ran.token_ids[-1] in side.engine.model.tokenizer.eos_token_ids
        for side, ran in sides
    )


def _note_pieces(source: Source, pair: Pair) -> tuple[str, ...]:
    """What is to be said where steps were shorter than an engine alone would take."""
    most, sides = source.piece_tokens, (pair.recorded, pair.changed)
    if most is None or all(max(len(side.prompt), side.batch) <= most for side in sides):
        return ()
    return (
        f"no more than {most} tokens went through the model at once, so that others could go on; "
        "the command compare takes whole steps.",
    )


def _pieces(engine: Engine, token_ids: Sequence[int]) -> list[str]:
    return [visible(engine.model.tokenizer.token_bytes(each)) for each in token_ids]


def _first_difference(
    pair: Pair, left: Ran, right: Ran, pieces: Sequence[Sequence[str]]
) -> int | None:
    """By ids, or by the tokens' texts where two models have other ids."""
    both = (left.token_ids, right.token_ids)
    ours, others = (side.engine.model.tokenizer for side in (pair.recorded, pair.changed))
    # One and the same is told at once: what a fingerprint reads takes 0.1 s.
    is_same = ours is others or ours.fingerprint == others.fingerprint
    one, other = both if is_same else pieces
    for index, (mine, theirs) in enumerate(zip(one, other, strict=False)):
        if mine != theirs:
            return index
    return None if len(one) == len(other) else min(len(one), len(other))


def _equal_rows(left: Ran, right: Ran, first: int | None) -> tuple[int, int]:
    """Of the rows behind equal beginnings, how many there are and how many have the same bits."""
    past = len(left.token_ids) if first is None else first + 1
    both = [index for index in left.checksums if index < past and index in right.checksums]
    return len(both), sum(left.checksums[each] == right.checksums[each] for each in both)


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
        return sum(field.num_bytes for field in spec.list_fields(dtype))
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
