"""Products with matrices that learn, several of them as one, and a gate or a norm before them.

A matrix is narrowed once for both passes, its gradient comes out of the product in float32, and
what a gate or a norm gives is made again for it instead of kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from cutaway.kernels import native
from cutaway.kernels.norm.late import LateLearnedNorm

_HALVES = (torch.bfloat16, torch.float16)


def trainable_product(
    x: Tensor, weights: Sequence[Tensor], *, dtype: torch.dtype, gate: int | None = None
) -> Tensor:
    """x times all matrices, transposed, side by side.

    dtype: of the product; x has it.
    gate: a gate's number in gate/triton.py: its product is multiplied, and x are its two sides.
    Shapes: x [T, K], with a gate [T, 2 K], weights [N, K] each -> [T, sum of N].
    """
    assert x.dtype == dtype, "a gradient comes back in the dtype of x"
    return cast(Tensor, _Product.apply(x, dtype, gate, *weights))


class _Product(Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, dtype: torch.dtype, gate: int | None, *weights: Tensor
    ) -> Tensor:
        matrix = _joined(weights, dtype)
        ctx.save_for_backward(x, matrix)
        ctx.gate, ctx.rows, ctx.kept = gate, [len(each) for each in weights], weights[0].dtype
        if gate is not None:
            from cutaway.kernels.gate import triton

            x = triton.gate(*x.chunk(2, dim=-1), kind=gate)
        return x @ matrix.T

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *grads: Tensor
    ) -> tuple[Tensor | None, ...]:
        x, matrix = ctx.saved_tensors
        wants_x, _, _, *wanted = ctx.needs_input_grad
        of_x = grads[0] @ matrix if wants_x or ctx.gate is not None else None
        if ctx.gate is not None:
            from cutaway.kernels.gate import triton_learned

            of_x, x = triton_learned.gradients(x, cast(Tensor, of_x), kind=ctx.gate)
        if not any(wanted):
            return of_x, None, None, *[None] * len(wanted)
        found = wide_product(grads[0].T, x).to(ctx.kept)
        return of_x, None, None, *_cut(found, ctx.rows)


def product_behind_norm(x: LateLearnedNorm, weights: Sequence[Tensor]) -> Tensor:
    """A norm times all matrices, transposed, side by side; the sum that it is of is there then.

    Shapes: x [T, K], weights [N, K] each -> [T, sum of N].
    """
    given: tuple[Any, ...] = (x.hidden, x.update, x.weight, x.epsilon, x.number, x.dtype)
    found = cast(Any, _NormedProduct).apply(*given, *weights)
    x.total, product = cast("tuple[Tensor, Tensor]", found)
    return product


class _NormedProduct(Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        update: Tensor,
        scale: Tensor,
        epsilon: float,
        kind: int,
        dtype: torch.dtype,
        *weights: Tensor,
    ) -> tuple[Tensor, Tensor]:
        from cutaway.kernels.norm import triton

        matrix = _joined(weights, dtype)
        total, normed = triton.add_norm(x, update, scale, epsilon, kind=kind, dtype=dtype)
        ctx.save_for_backward(total, scale, matrix)
        ctx.told, ctx.update_dtype = (epsilon, kind), update.dtype
        ctx.rows, ctx.kept = [len(each) for each in weights], weights[0].dtype
        return total, normed @ matrix.T

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *grads: Tensor
    ) -> tuple[Tensor | None, ...]:
        from cutaway.kernels.norm import triton_learned

        (of_total, pull), (total, scale, matrix) = grads, ctx.saved_tensors
        is_learned = any(ctx.needs_input_grad[6:])
        epsilon, kind = ctx.told
        *of_given, normed = triton_learned.gradients(
            *(total, scale, epsilon, kind, pull @ matrix),
            of_total=of_total,
            narrow=ctx.update_dtype,
            makes_norm=is_learned,
        )
        of_norm = (*of_given, None, None, None)
        if normed is None:
            return *of_norm, *[None] * len(ctx.rows)
        return *of_norm, *_cut(wide_product(pull.T, normed).to(ctx.kept), ctx.rows)


def native_product(
    x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor] | None
) -> Tensor | None:
    """The same with biases by native kernels, of float32 on a CPU; None where they take it not.

    Of biases the gradients are sums that the product of the matrices' gradients takes on its way.
    Shapes: x [T, K], weights [N, K] each, biases [N] each -> [T, sum of N].
    """
    parameters = [*weights, *(biases or ())]
    wants = torch.is_grad_enabled() and any(each.requires_grad for each in (x, *parameters))
    if not wants or not native.takes_products(x, *parameters):
        return None
    return cast(Tensor, _NativeProduct.apply(x, len(weights), *parameters))


class _NativeProduct(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, num_weights: int, *parameters: Tensor) -> Tensor:
        weights, biases = parameters[:num_weights], parameters[num_weights:]
        x = x.contiguous()
        matrix = weights[0].contiguous() if len(weights) == 1 else torch.cat(weights)
        bias = None if not biases else biases[0] if len(biases) == 1 else torch.cat(biases)
        ctx.save_for_backward(x, matrix)
        ctx.rows, ctx.has_bias = [each.shape[0] for each in weights], bool(biases)
        return native.multiply_rows(x, matrix, bias, is_turned=True)

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *grads: Tensor
    ) -> tuple[Tensor | None, ...]:
        (x, matrix), grad = ctx.saved_tensors, grads[0].contiguous()
        wants_x, _, *wanted = ctx.needs_input_grad
        of_x = native.multiply_rows(grad, matrix, is_turned=False) if wants_x else None
        if not any(wanted):
            return of_x, None, *[None] * len(wanted)
        found, sums = native.multiply_columns(grad, x, sums=ctx.has_bias)
        of_biases = () if sums is None else _cut(sums, ctx.rows)
        return of_x, None, *_cut(found, ctx.rows), *of_biases


def wide_product(a: Tensor, b: Tensor) -> Tensor:
    """The product of two matrices of 16 bits in float32, not rounded on the way on a GPU."""
    if a.dtype not in _HALVES:
        return a @ b
    return torch.mm(a, b, out_dtype=torch.float32) if a.is_cuda else (a @ b).float()


def _joined(weights: tuple[Tensor, ...], dtype: torch.dtype) -> Tensor:
    """One matrix of several in another dtype, without a copy in their own."""
    if len(weights) == 1:
        return weights[0].to(dtype)
    rows = [len(each) for each in weights]
    joined = weights[0].new_empty((sum(rows), weights[0].shape[1]), dtype=dtype)
    torch._foreach_copy_(_cut(joined, rows), weights)  # pyright: ignore[reportPrivateUsage]
    return joined


def _cut(matrix: Tensor, rows: list[int]) -> tuple[Tensor, ...]:
    return (matrix,) if len(rows) == 1 else cast("tuple[Tensor, ...]", matrix.split(rows))
