"""The gated delta rule: a state that each token decays, corrects and reads."""

from __future__ import annotations

from torch import Tensor

from cutaway.core.step import Step
from cutaway.kernels.delta import sequences
from cutaway.kernels.delta.plain import delta_rule, short_convolution, unit_rows
from cutaway.kernels.delta.sequences import DeltaWeights
from cutaway.kernels.recording import operation

__all__ = ["DeltaWeights", "delta_rule", "run_sequences", "short_convolution", "unit_rows"]


def _mixed(
    query: Tensor, key: Tensor, value: Tensor, rate: Tensor, speed: Tensor, **_: object
) -> Tensor:
    del query, key, speed
    num_heads = rate.shape[1] * rate.shape[2]
    return rate.new_empty((len(value), num_heads, value.shape[2] // rate.shape[2]))


@operation(shape_of=_mixed, has_effect=True)
def run_sequences(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    rate: Tensor,
    speed: Tensor,
    *,
    weights: DeltaWeights,
    step: Step,
    layer: int,
) -> Tensor:
    """See sequences.run_sequences."""
    return sequences.run_sequences(
        *(query, key, value, rate, speed), weights=weights, step=step, layer=layer
    )
