"""Embeddings that multiply, and positions added to them: cases J01 and D11."""

from __future__ import annotations

import math

import torch

from cutaway.blocks.embedding import Embedding, LearnedPositions, SinusoidalPositions
from cutaway.core.step import Step


def test_j01_the_multiplier_is_rounded_to_the_dtype_of_the_rows() -> None:
    embedding = Embedding(4, 2, multiplier=math.sqrt(3072))
    embedding.table.weight = torch.nn.Parameter(torch.ones(4, 2))
    step = Step.without_cache([[1, 3]])
    assert torch.allclose(embedding(step), torch.tensor(55.4256), atol=1e-4)
    assert embedding.to(torch.bfloat16)(step).eq(55.5).all()


def test_d11_positions_are_added_by_their_place_and_not_by_the_row() -> None:
    embedding = Embedding(4, 3, positions=LearnedPositions(5, 3))
    generator = torch.Generator().manual_seed(1)
    for table in (embedding.table, embedding.positions.table):
        table.weight = torch.nn.Parameter(torch.randn(table.weight.shape, generator=generator))
    step = Step.without_cache([[1, 2], [2, 0, 3]])
    expected = (
        embedding.table.weight[[1, 2, 2, 0, 3]] + embedding.positions.table.weight[[0, 1, 0, 1, 2]]
    )
    assert torch.equal(embedding(step), expected)


def test_sinusoids_equal_the_formula_of_the_paper() -> None:
    table = SinusoidalPositions(8)(torch.arange(50))
    for position in (0, 1, 7, 49):
        for pair in range(4):
            angle = position / 10_000 ** (2 * pair / 8)
            assert math.isclose(table[position, pair], math.sin(angle), abs_tol=1e-12)
            assert math.isclose(table[position, 4 + pair], math.cos(angle), abs_tol=1e-12)
