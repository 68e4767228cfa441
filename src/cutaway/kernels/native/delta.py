"""The native operation of gated delta layers: a short convolution, then a state for each head."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from cutaway.kernels.native import structs
from cutaway.kernels.native.operation import (
    Operation,
    require,
    require_float,
    require_heads,
    require_matrix,
    require_vector,
)
from cutaway.kernels.native.structs import Code, Rows


@dataclass(frozen=True, eq=False)
class DeltaInputs:
    """What a delta layer reads of its tokens; heads and tokens may lie apart.

    Letters: G key heads, S value heads for each, K and V numbers of a key and of a value.
    Shapes: query and key [T, G, K], value [T, G, S * V], rate and speed [T, G, S].
    """

    query: Tensor
    key: Tensor
    value: Tensor
    rate: Tensor
    speed: Tensor

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All of them."""
        return (self.query, self.key, self.value, self.rate, self.speed)


@dataclass(frozen=True, eq=False)
class NativeDeltaWeights:
    """What a delta layer has learned beside its matrices.

    Shapes: convolution [channels, width], queries' channels first, then keys', then values';
    decay_bias and decay_log [G * S].
    """

    convolution: Tensor
    decay_bias: Tensor
    decay_log: Tensor


@dataclass(frozen=True, eq=False)
class StatePages:
    """States [N, G * S, K, V] and the convolution's last inputs [N, width - 1, channels]."""

    states: Tensor
    inputs: Tensor
    group: int
    page_size: int


def delta(
    inputs: DeltaInputs, weights: NativeDeltaWeights, pages: StatePages, *, out: Tensor
) -> Operation:
    """Each sequence's tokens through its state: what the state says to each query.

    Shapes: out [T, G * S, V] or [T, G * S * V].
    """
    rows, num_heads, key_size = inputs.query.shape
    shared, value_size = inputs.rate.shape[2], pages.states.shape[3]
    channels, width = weights.convolution.shape
    for each, size in zip(
        inputs.tensors, (key_size, key_size, shared * value_size, shared, shared), strict=True
    ):
        require_heads(each, (rows, num_heads, size))
    require(channels == num_heads * (2 * key_size + shared * value_size), "each channel has a row")
    require_matrix(weights.convolution, width, channels)
    for each in (weights.decay_bias, weights.decay_log):
        require_vector(each, num_heads * shared)
    require_matrix(out.flatten(1), num_heads * shared * value_size, rows)
    states = (len(pages.states), num_heads * shared, key_size, value_size)
    kept = (len(pages.states), width - 1, channels)
    for each, shape in ((pages.states, states), (pages.inputs, kept)):
        require_float(each)
        is_sound = tuple(each.shape) == shape and each.is_contiguous()
        require(is_sound, f"states of shape {tuple(each.shape)} are not contiguous {shape}")
    arguments = structs.DeltaStruct(
        *(Rows.TOKENS, rows, *(_by_head(each) for each in inputs.tensors)),
        *(weights.convolution.data_ptr(), weights.decay_bias.data_ptr()),
        *(weights.decay_log.data_ptr(), num_heads, shared, key_size, value_size, width),
        *(pages.states.data_ptr(), pages.inputs.data_ptr(), pages.group, len(pages.states)),
        *(pages.page_size, out.data_ptr()),
    )
    tensors = (weights.convolution, weights.decay_bias, weights.decay_log, out)
    return Operation(Code.DELTA, arguments, (*inputs.tensors, *tensors, pages.states, pages.inputs))


def _by_head(x: Tensor) -> structs.ByHeadStruct:
    return structs.ByHeadStruct(x.data_ptr(), x.stride(0), x.stride(1))
