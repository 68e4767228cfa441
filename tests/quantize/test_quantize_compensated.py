"""Rounding with calibration: the algorithm step by step, and how much nearer its products are."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from cutaway.quantize.compensated import compensate, inverse_root
from cutaway.quantize.integers import IntegerMatrix
from cutaway.quantize.rounding import round_matrix
from cutaway.quantize.schemes import scheme_of


def inputs(tokens: int, columns: int) -> torch.Tensor:
    """Inputs whose columns go together, as those of real models do."""
    generator = torch.Generator().manual_seed(1)
    mixed = torch.randn(tokens, columns // 4, generator=generator)
    spread = torch.randn(columns // 4, columns, generator=generator)
    return mixed @ spread + 0.1 * torch.randn(tokens, columns, generator=generator)


def matrix(rows: int, columns: int) -> torch.Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize("word", ["int4", "int4-sym", "int4-g64", "int8", "int8-asym-g64"])
def test_products_are_nearer_than_those_of_plain_rounding(word: str) -> None:
    x, weight = inputs(2000, 192), matrix(40, 192)
    found = compensate(weight, inverse_root(x.T @ x), scheme_of(word))
    plain = round_matrix(weight, scheme_of(word))
    assert isinstance(plain, IntegerMatrix)
    assert found.quant_scale.shape == plain.quant_scale.shape
    assert found.zero.shape == plain.zero.shape

    def error(made: IntegerMatrix) -> float:
        return float((x @ (made.dense() - weight).T).square().mean())

    assert error(found) < 0.5 * error(plain)


def test_inputs_that_do_not_go_together_leave_plain_rounding() -> None:
    weight = matrix(8, 64)
    found = compensate(weight, inverse_root(torch.eye(64) * 100), scheme_of("int4"))
    plain = round_matrix(weight, scheme_of("int4"))
    assert isinstance(plain, IntegerMatrix)
    assert torch.equal(found.quants, plain.quants)
    assert torch.equal(found.dense(), plain.dense())


def test_columns_that_are_never_used_are_rounded_by_themselves() -> None:
    x, weight = inputs(500, 64), matrix(8, 64)
    x[:, 10] = 0
    found = compensate(weight, inverse_root(x.T @ x), scheme_of("int8"))
    assert found.dense().isfinite().all()
    assert (found.dense() - weight)[:, 10].abs().max() < 0.05


def test_algorithm_one_column_at_a_time() -> None:
    # The same by explicit inverses in float64: settle a column, move the others by the error times
    # a row of the inverse of what is left. One block, one group, no lazy updates.
    x, weight = inputs(400, 32), matrix(5, 32)
    scheme = scheme_of("int4")
    products = (x.T @ x).double().numpy()
    products += np.eye(32) * 0.01 * products.diagonal().mean()
    found = compensate(weight, inverse_root(x.T @ x), scheme)
    scale, zero = found.quant_scale.double().numpy()[:, 0], found.zero.double().numpy()[:, 0]
    left = weight.double().numpy().copy()
    wanted = np.empty((5, 32))
    for column in range(32):
        inverse = np.linalg.inv(products[column:, column:])
        quants = np.clip(np.round(left[:, column] / scale) + zero, 0, 15)
        wanted[:, column] = quants
        error = (left[:, column] - scale * (quants - zero)) / inverse[0, 0]
        left[:, column:] -= error[:, None] * inverse[0]
    different = (found.quants.numpy() != wanted).mean()
    assert different < 0.02  # float32 may round a tie the other way
