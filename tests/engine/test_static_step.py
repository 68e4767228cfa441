"""Static tensors of captured steps: what a step finds there is its own, whatever ran before it."""

from __future__ import annotations

import random

import pytest
import torch

from cutaway.core.step import Numbers, ShapePlan
from cutaway.engine.captured.static_step import StaticStep

WIDTH, GROUPS, SIZE = 6, 2, 4


class NoEvent:
    def record(self) -> None: ...

    def synchronize(self) -> None: ...


@pytest.fixture(autouse=True)
def _without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor)
    monkeypatch.setattr(torch.cuda, "Event", NoEvent)


def a_step(chance: random.Random, count: int, longest: int) -> Numbers:
    """Of some sequences with 1 to longest tokens each, at random places."""
    counts = [chance.randint(1, longest) for _ in range(chance.randint(1, count))]
    contexts = [chance.randint(each, WIDTH * SIZE) for each in counts]
    tokens = sum(counts)

    def numbers() -> list[int]:
        return [chance.randrange(1, 1000) for _ in range(tokens)]

    pages = [
        [[chance.randrange(1, 99) for _ in range(-(-each // SIZE))] for each in contexts]
        for _ in range(GROUPS)
    ]
    plan = ShapePlan(tuple(counts), tuple(contexts))
    slots = [numbers() for _ in range(GROUPS)]
    return Numbers(numbers(), numbers(), numbers(), range(tokens), plan, pages, slots)


@pytest.mark.parametrize("tokens, longest", [(None, 1), (12, 4)])
def test_a_step_finds_what_it_would_find_in_new_tensors(tokens: int | None, longest: int) -> None:
    chance = random.Random(longest)

    def made() -> StaticStep:
        return StaticStep(
            (),
            count=3,
            width=WIDTH,
            num_groups=GROUPS,
            device=torch.device("cpu"),
            tokens=tokens,
            longest=longest,
        )

    used = made()
    for _ in range(60):
        numbers, new = a_step(chance, 3, longest), made()
        used.fill(numbers)
        new.fill(numbers)
        ours, fresh = used.step, new.step
        for name in ("token_ids", "positions", "declared_lengths", "query_starts"):
            assert torch.equal(getattr(ours, name), getattr(fresh, name)), name
        assert torch.equal(ours.context_lengths, fresh.context_lengths)
        width = max(len(row) for pages in numbers.pages for row in pages)
        for mine, other in zip(ours.groups, fresh.groups, strict=True):
            assert torch.equal(mine.slots, other.slots)
            real = mine.page_table[: len(numbers.plan.query_lengths), :width]
            assert torch.equal(real, other.page_table[: len(real), :width])
