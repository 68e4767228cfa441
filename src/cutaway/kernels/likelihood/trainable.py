"""Log-probabilities of given tokens from rows of the stream: head and softmax without a table.

The logits of a chunk of rows live for one pass forward, and are made again for one pass backward;
kept between the two are the rows, and one number for each. Where all logits take little of a GPU's
memory they are kept too: making them again is a quarter of the head's products, in the same bits.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from cutaway.kernels.likelihood import of_logits, scores
from cutaway.kernels.linear.trainable import wide_product

_MOST_KEPT = 16  # kept logits take at most one in so many bytes of a GPU


def log_probs(
    rows: Tensor,
    table: Tensor,
    targets: Tensor,
    *,
    temperature: float,
    rows_at_once: int,
    dtype: torch.dtype | None,
) -> tuple[Tensor, Tensor]:
    """Log-probability of each row's target, and the log of the sum of its exponentials.

    dtype: of products, where it is not that of the rows.
    Shapes: rows [R, D] after the last norm, table [V, D], targets [R] -> [R] each.
    """
    dtype = dtype or rows.dtype
    is_learned = torch.is_grad_enabled() and (rows.requires_grad or table.requires_grad)
    keeps = is_learned and len(rows) * len(table) * dtype.itemsize <= _room(rows.device)
    made = cast(Any, _LogProbs).apply(rows, table, targets, temperature, rows_at_once, dtype, keeps)
    return cast("tuple[Tensor, Tensor]", made)


def _room(device: torch.device) -> int:
    """Bytes that logits may take between the passes."""
    if device.type != "cuda":
        return 0
    found = cast(Any, torch.cuda.get_device_properties(device))
    return int(found.total_memory) // _MOST_KEPT


class _LogProbs(Function):
    @staticmethod
    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any,
        rows: Tensor,
        table: Tensor,
        targets: Tensor,
        temperature: float,
        rows_at_once: int,
        dtype: torch.dtype,
        keeps: bool,
    ) -> tuple[Tensor, Tensor]:
        narrow, matrix = rows.to(dtype), table.to(dtype)
        kept: list[Tensor] = []
        parts: list[tuple[Tensor, Tensor]] = []
        for first in range(0, len(rows), rows_at_once):
            own = slice(first, first + rows_at_once)
            logits = narrow[own] @ matrix.T
            parts.append(scores(logits, targets[own], temperature))
            if keeps:
                kept.append(logits)
        found, sums = (torch.cat(each) for each in zip(*parts, strict=True))
        ctx.save_for_backward(narrow, matrix, targets, sums, *kept)
        ctx.chosen, ctx.is_spent = (temperature, rows_at_once, rows.dtype, table.dtype), False
        return found, sums

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *grads: Tensor
    ) -> tuple[Tensor | None, ...]:
        (of_found, of_sums), (rows, matrix, targets, sums, *kept) = grads, ctx.saved_tensors
        temperature, size, rows_dtype, table_dtype = ctx.chosen
        # Gradients take the place of logits; whoever comes again has them made again.
        kept, ctx.is_spent = [] if ctx.is_spent else kept, True
        is_trained = ctx.needs_input_grad[1]
        of_rows = torch.empty_like(rows)
        of_table = torch.zeros_like(matrix, dtype=table_dtype) if is_trained else None
        for turn, first in enumerate(range(0, len(rows), size)):
            own = slice(first, first + size)
            pulled = of_logits(
                *(kept[turn] if kept else rows[own] @ matrix.T, targets[own], sums[own]),
                *(of_found[own], of_sums[own], temperature),
                in_place=True,
            )
            torch.mm(pulled, matrix, out=of_rows[own])
            if of_table is not None:
                of_table += wide_product(pulled.T, rows[own])
        return of_rows.to(rows_dtype), of_table, *(None,) * 5
