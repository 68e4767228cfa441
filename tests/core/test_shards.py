"""Cuts of rows and heads: all of them once, in order, as even as blocks allow."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

import pytest
import torch

import tiny
from cutaway.core.rank_shares import rank_share, values_of_rank
from cutaway.core.shards import PANEL, balance, cuts, head_cuts, widths
from cutaway.core.work import cache_bytes_per_token
from cutaway.parallel.rank_group import ThreadGroup
from cutaway.quantize.dense import DenseWeight


@pytest.mark.parametrize("parts", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("rows", [0, 1, 3, 16, 48, 160, 576, 1536, 18432, 49152, 151_936])
def test_cuts_are_contiguous_and_even(rows: int, parts: int) -> None:
    found = cuts(rows, parts)
    assert list(itertools.chain(*found)) == list(range(rows))
    block = PANEL if rows >= PANEL * parts else 1
    assert max(widths(found)) - min(widths(found)) <= block
    assert list(widths(found)) == sorted(widths(found), reverse=True), "rank 0 has no less"
    if block == PANEL:
        assert all(part.start % PANEL == 0 for part in found), "no panel is in two ranks"


@pytest.mark.parametrize("parts", [1, 2, 3, 4, 6, 8, 9])
@pytest.mark.parametrize(("heads", "groups"), [(9, 3), (8, 8), (8, 1), (6, 2), (32, 8), (64, 4)])
def test_scale_s12_every_head_is_in_one_rank_beside_its_key(
    heads: int, groups: int, parts: int
) -> None:
    found = head_cuts(heads, groups, parts)
    if found is None:
        assert parts > groups, "whole groups can always be dealt out"
        return
    assert len(found) == parts
    assert list(itertools.chain(*(cut.heads for cut in found))) == list(range(heads))
    shared = heads // groups
    for cut in found:
        assert cut.heads and {head // shared for head in cut.heads} == set(cut.groups)
        assert len(cut.heads) % len(cut.groups) == 0, "attention shares keys evenly"


def test_more_ranks_than_heads_are_not_dealt_out() -> None:
    assert head_cuts(4, 2, 5) is None
    assert head_cuts(2, 1, 2) is not None


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("is_tied", [False, True])
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_a_ranks_share_is_what_a_divided_model_has(ranks: int, is_tied: bool, groups: int) -> None:
    architecture = tiny.llama(tiny.config(tie_word_embeddings=is_tied, num_key_value_heads=groups))
    with torch.device("meta"):
        model = architecture.build()
        if ranks > 1:
            model.divide(ThreadGroup.of(ranks)[0])
    shape = architecture.shape
    values = sum(each.numel() for each in model.parameters())
    assert values_of_rank(shape, ranks) == values
    share = rank_share(shape, tensor=ranks, weight_bytes=4 * 10**6, kv_dtype="float32")
    total = sum(matrix.values for matrix in shape.matrices) + shape.vectors()
    assert share.weight_bytes == -(-4 * 10**6 * values // total)
    assert share.kv_bytes_per_token == cache_bytes_per_token(model, "float32")


def test_a_rank_s_matrices_know_how_many_rows_the_whole_has() -> None:
    """An order of summation that follows from a weight's shape follows from the whole one's."""

    def rows(ranks: int) -> dict[str, int]:
        with torch.device("meta"):
            model = tiny.llama(tiny.config()).build()
            if ranks > 1:
                model.divide(ThreadGroup.of(ranks)[0])
            model.join_segments()
        return {
            name: each.whole_rows or each.num_rows
            for name, each in model.named_modules()
            if isinstance(each, DenseWeight)
        }

    assert rows(2) == rows(4) == rows(1)


def test_layers_are_divided_so_that_the_largest_part_is_least() -> None:
    assert balance([1] * 6, 3) == (range(2), range(2, 4), range(4, 6))
    assert balance([1] * 6, 3, first=2) == (range(1), range(1, 3), range(3, 6))
    for seed in range(30):
        chance = random.Random(seed)
        sizes = [chance.randrange(1, 20) for _ in range(chance.randrange(3, 9))]
        parts, first = chance.randrange(1, 4), chance.randrange(10)
        found = balance(sizes, parts, first=first)
        assert [i for part in found for i in part] == [*range(len(sizes))] and all(found)
        cut_at = itertools.combinations(range(1, len(sizes)), parts - 1)
        every = [[0, *cuts, len(sizes)] for cuts in cut_at]
        least = min(largest(sizes, [*map(range, e, e[1:])], first) for e in every)
        assert largest(sizes, found, first) == least


def largest(sizes: list[int], parts: Sequence[range], first: int) -> int:
    whole = [sum(sizes[i] for i in part) for part in parts]
    return max([whole[0] + first, *whole[1:]])
