"""Repetition: worked examples, which the page's own count is held to as well."""

from __future__ import annotations

import pytest

from cutaway.views.parts.repetition import MAX_AGAIN, SIZES, count_repeated, repeats_of

# web/core/repetition.test.ts has the same rows: tokens, [num_again, num_all] by size, said again.
WORKED = (
    ([], [(0, 0)] * 4, 0),
    ([5], [(0, 1), (0, 0), (0, 0), (0, 0)], 0),
    ([1, 2, 3], [(0, 3), (0, 2), (0, 1), (0, 0)], 0),
    ([1, 2, 1, 2, 1], [(3, 5), (2, 4), (1, 3), (0, 2)], 3),
    ([7, 7, 7, 7, 7], [(4, 5), (3, 4), (2, 3), (1, 2)], 4),
    ([1, 2, 3, 9, 2, 3], [(2, 6), (1, 5), (0, 4), (0, 3)], 2),
)


@pytest.mark.parametrize(("tokens", "expected", "again"), WORKED)
def test_worked_examples(tokens: list[int], expected: list[tuple[int, int]], again: int) -> None:
    found = [repeats_of(tokens, size) for size in SIZES]
    assert [(each.num_again, each.num_all) for each in found] == expected
    assert count_repeated(tokens) == again


def test_a_share_is_of_all_and_a_loop_is_told_up_to_its_bound() -> None:
    assert repeats_of([1, 2, 1, 2], 1).share == 0.5
    assert repeats_of([], 3).share == 0.0
    assert count_repeated([1] * 500) == MAX_AGAIN
