"""Log-probabilities of given tokens from rows of the stream: head and softmax without a table.

The logits of a chunk of rows live for one pass forward and one pass backward; kept between the two
are the rows, and one number for each. What stands around the products is one compiled pass over a
chunk's logits on a GPU.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from cutaway.train.model.compute_forms import Compiler


def log_probs(
    rows: Tensor,
    table: Tensor,
    targets: Tensor,
    *,
    temperature: float,
    rows_at_once: int,
    dtype: torch.dtype | None,
    compiler: Compiler | None,
) -> tuple[Tensor, Tensor]:
    """Log-probability of each row's target, and the log of the sum of its exponentials.

    dtype: of products, where it is not that of the rows.
    compiler: what compiles the passes over logits; None leaves them.
    Shapes: rows [R, D] after the last norm, table [V, D], targets [R] -> [R] each.
    """
    made = cast(Any, _LogProbs).apply(
        rows, table, targets, temperature, rows_at_once, dtype or rows.dtype, compiler
    )
    return cast("tuple[Tensor, Tensor]", made)


class _LogProbs(torch.autograd.Function):
    @staticmethod
    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any,
        rows: Tensor,
        table: Tensor,
        targets: Tensor,
        temperature: float,
        rows_at_once: int,
        dtype: torch.dtype,
        compiler: Compiler | None,
    ) -> tuple[Tensor, Tensor]:
        narrow, matrix = rows.to(dtype), table.to(dtype)
        score = _scores if compiler is None else compiler(_scores)
        parts = [
            score(part @ matrix.T, own, temperature)
            for part, own in zip(
                *(_cut(each, rows_at_once) for each in (narrow, targets)), strict=True
            )
        ]
        found, sums = (torch.cat(each) for each in zip(*parts, strict=True))
        ctx.save_for_backward(narrow, matrix, targets, sums)
        ctx.chosen = (temperature, rows_at_once, compiler, rows.dtype, table.dtype)
        return found, sums

    @staticmethod
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, of_found: Tensor, of_sums: Tensor
    ) -> tuple[Tensor | None, ...]:
        rows, matrix, targets, sums = ctx.saved_tensors
        temperature, size, compiler, rows_dtype, table_dtype = ctx.chosen
        pull = _gradient if compiler is None else compiler(_gradient)
        # Of a sum each is one number told often; what is compiled takes numbers side by side.
        of_found, of_sums = of_found.contiguous(), of_sums.contiguous()
        is_trained = ctx.needs_input_grad[1]
        of_rows = torch.empty_like(rows)
        of_table = torch.zeros_like(matrix, dtype=table_dtype) if is_trained else None
        for first in range(0, len(rows), size):
            own = slice(first, first + size)
            of_logits = pull(
                *(rows[own] @ matrix.T, targets[own], sums[own]),
                *(of_found[own], of_sums[own], temperature),
            )
            torch.mm(of_logits, matrix, out=of_rows[own])
            if of_table is not None:
                of_table += of_logits.T @ rows[own]
        return of_rows.to(rows_dtype), of_table, *(None,) * 5


def _scores(logits: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    wide = _wide(logits, temperature)
    sums = wide.logsumexp(dim=-1)
    return wide.gather(-1, targets[:, None])[:, 0] - sums, sums


def _gradient(
    logits: Tensor,
    targets: Tensor,
    sums: Tensor,
    of_found: Tensor,
    of_sums: Tensor,
    temperature: float,
) -> Tensor:
    """Of the loss by the logits, where it is known by what _scores gave."""
    shares = (_wide(logits, temperature) - sums[:, None]).exp()
    places = torch.arange(logits.shape[1], device=logits.device)
    is_target = (places == targets[:, None]).to(shares.dtype)
    pulled = is_target * of_found[:, None] + shares * (of_sums - of_found)[:, None]
    return (pulled / temperature if temperature != 1.0 else pulled).to(logits.dtype)


def _wide(logits: Tensor, temperature: float) -> Tensor:
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return wide if temperature == 1.0 else wide / temperature


def _cut(rows: Tensor, size: int) -> list[Tensor]:
    return [rows[first : first + size] for first in range(0, len(rows), size)]
