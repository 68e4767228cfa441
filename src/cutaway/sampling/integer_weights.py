"""Logits to integer weights whose sums are exact in any order.

The exponential is one polynomial in float32, each operation rounded by itself (no fused
multiply-add), so C++, Triton and TypeScript give the same bits. Weights are whole numbers held
in float32, which holds them exactly; float64 sums of them are exact below 2^53. It knows no
tokens and no filters. Specification: docs/randomness.md.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

# 2^f for f in [-1/2, 1/2], highest power first; the constant term is exactly 1, so that the
# largest logit weighs exactly 2^30. Relative error 1.9e-7 in float32; one degree more gives
# 1.0e-7 for two more passes over memory.
POLYNOMIAL = (
    0.001326472731307149,
    0.009671512991189957,
    0.05550733581185341,
    0.24022242426872253,
    0.6931470036506653,
)
LOG2_E = 1.44269502162933349609375  # float32(log2(e))
LEAST_EXPONENT = -64.0  # far below both scales: such a token weighs 0

WEIGHT_SCALE = 2.0**30  # for the draw
# For logsumexp: fine enough that a long tail of tiny probabilities still counts (worst case
# 1.5e-5, when half a million tokens each round to 0), coarse enough that 2^19 of them stay
# below 2^53.
SUM_SCALE = 2.0**34
MAX_VOCAB_SIZE = 2**19


def exponential(logits: Tensor, peak: Tensor) -> Tensor:
    """e^(logit - peak), to float32 precision; a logit equal to peak gives exactly 1.

    Shapes: logits [R, V] float32, peak [R, 1] -> [R, V]. Never 0: -inf gives 2^-64.
    """
    result = torch.empty_like(logits)
    # Twenty passes over memory: a few rows at a time they stay in a CPU core's cache.
    num_rows, vocab_size = logits.shape
    height = max(1, 2**16 // vocab_size) if logits.device.type == "cpu" else num_rows
    for top in range(0, num_rows, height):
        rows = slice(top, top + height)
        _exponential(logits[rows], peak[rows], out=result[rows])
    return result


def _exponential(logits: Tensor, peak: Tensor, *, out: Tensor) -> None:
    exponent = (logits - peak).mul_(LOG2_E).clamp_(min=LEAST_EXPONENT)
    whole = exponent.round()  # half to even
    rest = exponent.sub_(whole)
    torch.mul(rest, POLYNOMIAL[0], out=out)
    for coefficient in POLYNOMIAL[1:]:
        out.add_(coefficient).mul_(rest)
    out.add_(1.0)
    # Times 2^whole, exactly: add to the exponent bits.
    out.view(torch.int32).add_(whole.to(torch.int32).bitwise_left_shift_(23))


def weigh(exponentials: Tensor) -> Tensor:
    """Whole weights in [0, 2^30], as float32; half rounds to even."""
    return (exponentials * WEIGHT_SCALE).round_()


def exact_sum(whole: Tensor) -> Tensor:
    """Sum over the last dimension of whole numbers in float32, exact in any order, as float64."""
    return whole.sum(dim=-1, dtype=torch.float64)


def total_exponential(exponentials: Tensor) -> Tensor:
    """Sum of the exponentials of each row in units of 2^-34: a whole number in float64."""
    return exact_sum((exponentials * SUM_SCALE).round_())


def log_of_total(total: float) -> float:
    """Natural logarithm of what total_exponential gave.

    On the host: a device's logarithm may differ in the last bit between one row and many.
    """
    return math.log(total) - _LOG_SUM_SCALE


_LOG_SUM_SCALE = math.log(SUM_SCALE)
