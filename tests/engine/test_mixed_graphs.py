"""Steps with prompts whose tensors stay: one token each, chunks behind them, and padding."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from cutaway.core.step import GroupTables, Numbers, ShapePlan, Step
from cutaway.engine.captured.mixed_graphs import MixedShape, MixedSteps, mixed_shapes, shape_of
from engines import engine, loaded

SHAPES = (MixedShape(4, 16), MixedShape(4, 32), MixedShape(8, 32))


def step_of(lengths: list[tuple[int, int]], *, wanted: list[int], size: int) -> Numbers:
    """Sequences of (context, new tokens), each with pages of its own behind the scratch page."""
    pages: list[list[int]] = []
    first, slots = 1, []
    for context, new in lengths:
        own = list(range(first, first + -(-context // size)))
        first += len(own)
        pages.append(own)
        slots += [own[p // size] * size + p % size for p in range(context - new, context)]
    positions = [p for context, new in lengths for p in range(context - new, context)]
    return Numbers(
        token_ids=[(7 * p + 3) % 250 for p in range(len(positions))],
        positions=positions,
        declared_lengths=[60] * len(positions),
        logit_rows=wanted,
        plan=ShapePlan(tuple(n for _, n in lengths), tuple(c for c, _ in lengths)),
        pages=[pages],
        slots=[slots],
    )


def as_it_lies(step: Step) -> Step:
    """The step with a plan of what stands in its tensors: a CPU reads plans alone."""
    lengths = [b - a for a, b in pairwise(step.query_starts.tolist())]
    count = len(lengths)
    while not lengths[count - 1]:
        count -= 1
    assert sum(lengths) == step.num_tokens, "every row has a sequence, padding too"
    group = step.groups[0]
    return replace(
        step,
        plan=ShapePlan(tuple(lengths[:count]), tuple(step.context_lengths[:count].tolist())),
        groups=(GroupTables(group.page_table[:count], group.slots),),
        query_starts=step.query_starts[: count + 1],
        context_lengths=step.context_lengths[:count],
    )


def test_a_step_gives_the_same_rows_in_every_shape_that_holds_it() -> None:
    model = loaded()
    target = engine(model, num_pages=40)
    caches, size = target.runner.pool.layers, target.config.page_size
    room = MixedSteps(
        caches,
        alone=8,
        chunk_tokens=32,
        chunks=4,
        width=12,
        num_groups=1,
        device=torch.device("cpu"),
    )
    steps = [
        step_of([(9, 1), (17, 1), (12, 5), (8, 8)], wanted=[0, 1, 6, 14], size=size),
        step_of([(30, 1), (3, 1), (2, 1), (16, 16)], wanted=[0, 1, 2], size=size),  # amid a prompt
        step_of([(11, 11)], wanted=[10], size=size),
    ]
    with torch.inference_mode():
        for numbers in steps:
            expected = model.transformer(Step.of(numbers, caches, device=torch.device("cpu")))
            for shape in SHAPES:
                step = room.step(shape)
                room.fill(numbers, shape)
                found = model.transformer(as_it_lies(step))
                torch.testing.assert_close(found[: len(numbers.logit_rows)], expected)


@pytest.mark.parametrize(
    ("lengths", "wanted", "shape"),
    [
        ([(9, 1)] * 100 + [(256, 256)], [*range(100), 355], (128, 256)),
        ([(9, 1)] * 100 + [(256, 256)], [*range(100)], (128, 256)),
        ([(40, 40)] * 8, [39, 79], (16, 512)),
        ([(40, 40)] * 9, [39], None),  # more chunks than there is room for
        ([(9, 1)] * 100 + [(1500, 1500)], [0], None),
        ([(9000, 64)], [63], None),  # long contexts are attended in another form
        ([(20, 20), (9, 1)], [19, 20], None),  # the scheduler puts it in front
        ([(20, 20)], [*range(20)], None),  # a prompt that is scored
        ([(20, 20)], [3], None),
    ],
)
def test_steps_with_few_tokens_of_prompts_have_a_shape(lengths, wanted, shape) -> None:
    numbers = step_of(lengths, wanted=wanted, size=16)
    assert shape_of(numbers, mixed_shapes(256, 8192, longest=8192)) == shape


def test_shapes_go_no_further_than_steps_do() -> None:
    assert mixed_shapes(8, 96, longest=2048) == ((16, 64), (16, 256))
    assert mixed_shapes(256, 8192, longest=2048)[-1] == (256, 1024)


def test_padding_has_no_more_tokens_than_its_context() -> None:
    # Where a sequence has few pages a step of 1,024 padded tokens read in front of its table.
    pages = 16
    target = engine(loaded(), num_pages=pages)
    caches, size = target.runner.pool.layers, target.config.page_size
    shapes = mixed_shapes(8, 8192, longest=pages * size)
    assert shapes
    room = MixedSteps(
        caches,
        alone=16,
        chunk_tokens=max(shape.chunk_tokens for shape in shapes),
        chunks=9,
        width=pages,
        num_groups=1,
        device=torch.device("cpu"),
    )
    for shape in shapes:
        step = room.step(shape)
        queries = step.query_starts.diff()
        assert (step.context_lengths >= queries).all(), shape
    with pytest.raises(AssertionError, match="padding"):
        room.step(MixedShape(16, pages * size + 1))
