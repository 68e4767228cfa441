"""Order without state, sequences cut without loss, updates under a budget."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from cutaway.train.data.order import permutation
from cutaway.train.data.packing import ScoredSequence, UpdatePlan, cut, micro_batches

LENGTHS = [3, 9, 4, 4, 7, 1, 2, 8, 5, 6]


def test_an_order_is_a_function_of_seed_and_epoch() -> None:
    first = permutation(7, 0, 100)
    assert sorted(first.tolist()) == list(range(100))
    assert np.array_equal(first, permutation(7, 0, 100))
    for other in (permutation(8, 0, 100), permutation(7, 1, 100), permutation(7 << 32, 0, 100)):
        assert not np.array_equal(first, other)


def test_an_example_that_is_added_leaves_the_order_of_the_others() -> None:
    more = [each for each in permutation(7, 0, 101).tolist() if each != 100]
    assert more == permutation(7, 0, 100).tolist()


def test_orders_are_spread_evenly() -> None:
    """Each place is taken by each of four examples about as often."""
    places = np.stack([permutation(seed, 0, 4) for seed in range(2000)])
    for place, example in itertools.product(range(4), range(4)):
        assert 420 < int((places[:, place] == example).sum()) < 580


@pytest.mark.parametrize("start", range(12))
def test_t12_updates_are_the_same_wherever_one_begins(start: int) -> None:
    """Each example once an epoch, and no update hangs on what was asked before it."""
    whole = UpdatePlan(LENGTHS, seed=3, budget=12)
    seen = [whole.members(update) for update in range(30)]
    resumed = UpdatePlan(LENGTHS, seed=3, budget=12)
    assert [resumed.members(update) for update in range(start, 30)] == seen[start:]
    for epoch in range(whole.epoch(29)):
        own = [seen[u] for u in range(30) if whole.epoch(u) == epoch]
        assert sorted(itertools.chain(*own)) == list(range(len(LENGTHS)))
    assert all(sum(LENGTHS[index] for index in members) <= 12 for members in seen)


def test_a_sequence_above_the_budget_is_refused() -> None:
    with pytest.raises(ValueError, match="the longest sequence has 9 tokens, an update 8"):
        UpdatePlan(LENGTHS, seed=3, budget=8)


@pytest.mark.parametrize("length", range(1, 14))
@pytest.mark.parametrize("context", [2, 3, 5, 13])
def test_a_cut_sequence_scores_each_token_once(length: int, context: int) -> None:
    marks = (False, *(place % 3 > 0 for place in range(length - 1)))
    whole = ScoredSequence(tuple(range(length)), marks)
    parts = cut(whole, context)
    assert all(len(part.token_ids) <= context for part in parts)
    scored = [
        token_id
        for part in parts
        for token_id, is_scored in zip(part.token_ids, part.is_scored, strict=True)
        if is_scored
    ]
    assert scored == [n for n in range(length) if marks[n]]
    assert sorted({i for part in parts for i in part.token_ids}) == list(range(length))
    for before, after in itertools.pairwise(parts):
        assert after.token_ids[0] == before.token_ids[-1]


def test_micro_batches_keep_all_sequences_in_order() -> None:
    sequences = [ScoredSequence.whole(list(range(length))) for length in LENGTHS]
    batches = micro_batches(sequences, 10)
    assert [each for batch in batches for each in batch.sequences] == sequences
    assert all(batch.num_tokens <= 10 for batch in batches)
    assert sum(batch.count for batch in batches) == sum(length - 1 for length in LENGTHS)
