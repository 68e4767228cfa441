"""Matrix products with stored weights, whatever their bits, and with adapters beside them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from cutaway.kernels.dispatch import uses_triton
from cutaway.kernels.gate import Gate, fused_number
from cutaway.kernels.heads import HeadPlaces
from cutaway.kernels.linear import plain
from cutaway.kernels.linear.low_rank import LowRankPair, LowRankPairs
from cutaway.kernels.linear.trainable import (
    native_product,
    product_behind_norm,
    trainable_product,
)
from cutaway.kernels.norm.late import LateNorm
from cutaway.kernels.recording import operation

__all__ = [
    "LowRankPair",
    "LowRankPairs",
    "Matrix",
    "NormingMatrix",
    "can_follow",
    "invariant_linear",
    "linear",
    "native_product",
    "normed_linear",
    "number_gate",
    "product_behind_norm",
    "project",
    "project_heads",
    "take_rows",
    "trainable_product",
]

_MOST_TOKENS = 16  # that are multiplied together; from there on cuBLAS is as fast


class Matrix(Protocol):
    """A matrix of N rows and K columns that knows how it is stored."""

    @property
    def num_rows(self) -> int:
        """N."""
        ...

    def multiply(self, x: Tensor) -> Tensor:
        """x times the transposed matrix. Shapes: x [..., K] -> [..., N]."""
        ...

    def rows(self, token_ids: Tensor) -> Tensor:
        """Some rows. Shapes: token_ids [T] -> [T, K]."""
        ...


@runtime_checkable
class NormingMatrix(Protocol):
    """A matrix whose product of one token may have the norm before it and a gate behind it."""

    def multiply_normed(self, x: LateNorm, after: Gate | HeadPlaces | None) -> Tensor | None:
        """The product, in the bits that the parts have; None where it cannot.

        after: a gate of the first half of the rows and the second; or where the heads go that the
        rows are, of which the queries come back.
        Shapes: x [..., K] -> [..., N], with a gate [..., N / 2], with places [1, H, C].
        """
        ...


def _projected(
    x: Tensor,
    segments: Sequence[Matrix],
    biases: Sequence[Tensor] | None,
    pairs: LowRankPairs | None = None,
    adapters: Tensor | None = None,
) -> Tensor:
    del biases, pairs, adapters
    return x.new_empty((*x.shape[:-1], sum(segment.num_rows for segment in segments)))


def _taken(matrix: Matrix, ids: Tensor) -> Tensor:
    row = matrix.rows(torch.zeros(1, dtype=torch.int64))
    return torch.empty((*ids.shape, row.shape[-1]), dtype=row.dtype, device="meta")


@operation(shape_of=_projected)
def project(
    x: Tensor,
    segments: Sequence[Matrix],
    biases: Sequence[Tensor] | None,
    pairs: LowRankPairs | None = None,
    adapters: Tensor | None = None,
) -> Tensor:
    """The products with all segments side by side, plus their biases.

    pairs, adapters: what each row's adapter adds, and which it is [T]; None where no row has one.
    Shapes: x [..., K], segments [N_i, K], biases [N_i] -> [..., sum of N_i].
    """
    out = _products(x, segments, biases)
    return out if pairs is None or adapters is None else pairs.add_to(out, x, adapters)


def _products(x: Tensor, segments: Sequence[Matrix], biases: Sequence[Tensor] | None) -> Tensor:
    parts = [segment.multiply(x) for segment in segments]
    if biases is not None:
        if len(parts) < len(biases):  # segments were joined
            return parts[0] + torch.cat(list(biases))
        parts = [part + bias for part, bias in zip(parts, biases, strict=True)]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)


@operation(shape_of=_taken)
def take_rows(matrix: Matrix, ids: Tensor) -> Tensor:
    """Rows of a stored matrix by their numbers. Shapes: ids [T] -> [T, K]."""
    return matrix.rows(ids)


def _by_head(x: Tensor, matrices: Tensor) -> Tensor:
    return x.new_empty((*x.shape[:-1], matrices.shape[1]))


@operation(shape_of=_by_head)
def project_heads(x: Tensor, matrices: Tensor) -> Tensor:
    """See plain.project_heads."""
    return plain.project_heads(x, matrices)


@operation()
def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """See plain.linear. On a GPU Triton takes few tokens, and cuBLAS the rest."""
    num_tokens = x.numel() // x.shape[-1]
    most = _MOST_TOKENS if x.dtype in (torch.bfloat16, torch.float16) else 1
    is_plain = bias is None and x.dtype == weight.dtype and weight.is_contiguous()
    if is_plain and 0 < num_tokens <= most and uses_triton(x, weight):
        from cutaway.kernels.linear import triton

        return triton.linear(x, weight)
    return plain.linear(x, weight, bias)


def can_follow(after: Gate | HeadPlaces | None) -> bool:
    """Whether products in Triton can do it behind them."""
    return after is None or isinstance(after, HeadPlaces) or fused_number(after) is not None


def number_gate(after: Gate | HeadPlaces | None) -> int | HeadPlaces | None:
    """The same with a gate's number in its place."""
    return after if after is None or isinstance(after, HeadPlaces) else fused_number(after)


def normed_linear(x: LateNorm, weight: Tensor, after: Gate | HeadPlaces | None) -> Tensor | None:
    """linear of a norm that the product takes on the way, in the same bits; None: it cannot.

    after: see NormingMatrix.
    """
    is_plain = x.hidden.dtype == weight.dtype and weight.is_contiguous()
    if not can_follow(after) or not is_plain or not uses_triton(x.hidden, weight):
        return None
    from cutaway.kernels.linear import triton

    takes = triton.takes_norm(weight) if after is None else triton.takes_pairs(weight)
    if not takes:
        return None
    is_kept = isinstance(weight, torch.nn.Parameter)
    return triton.multiply_normed(x, weight, after=number_gate(after), is_kept=is_kept)


def invariant_linear(x: Tensor, weight: Tensor, *, whole_rows: int | None = None) -> Tensor:
    """See plain.linear. On a GPU a row of short floats has the same bits in any company.

    whole_rows: of the matrix of which these are some rows: they have the same bits in any cut.
    """
    if x.dtype == weight.dtype and weight.is_contiguous() and uses_triton(x, weight):
        from cutaway.kernels.linear import triton_shares

        return triton_shares.linear(x, weight, whole_rows=whole_rows)
    return plain.linear(x, weight)
