"""Log-probabilities of entries of logits and their gradient in Triton: one pass over logits each.

Softmaxes are taken in float32, whatever the logits have.
"""

# pyright: basic
# pyright: reportMissingImports=false, reportMissingModuleSource=false
# pyright: reportAttributeAccessIssue=false, reportIndexIssue=false
# A kernel is no Python: its parameters have the types of the language that Triton compiles.

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 4096  # columns that a program takes at once


def scores(logits: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """See plain.scores. Shapes: logits [R, V], targets [R] -> [R] float32 each."""
    logits = logits.contiguous()
    num_rows, width = logits.shape
    found, sums = (
        torch.empty(num_rows, dtype=torch.float32, device=logits.device) for _ in range(2)
    )
    if num_rows:
        _scores[(num_rows,)](
            *(logits, targets.contiguous(), found, sums, 1.0 / temperature, width),
            BLOCK=min(_BLOCK, triton.next_power_of_2(width)),
            num_warps=8,
        )
    return found, sums


def of_logits(
    logits: Tensor,
    targets: Tensor,
    sums: Tensor,
    of_found: Tensor,
    of_sums: Tensor,
    temperature: float,
    *,
    in_place: bool = False,
) -> Tensor:
    """See plain.of_logits. Shapes: logits [R, V], all others [R] -> [R, V].

    in_place: the result lies where the logits lie, if their rows are whole in memory.
    """
    logits = logits.contiguous()
    num_rows, width = logits.shape
    out = logits if in_place else torch.empty_like(logits)
    if num_rows:
        block = min(_BLOCK, triton.next_power_of_2(width))
        # Rows' numbers may be views of one number, as a mean's gradient is.
        each = (one.contiguous() for one in (targets, sums, of_found, of_sums))
        _of_logits[(num_rows, triton.cdiv(width, block))](
            *(logits, *each, out, 1.0 / temperature, width),
            BLOCK=block,
            num_warps=8,
        )
    return out


@triton.jit
def _scores(logits_ptr, targets_ptr, found_ptr, sums_ptr, inverse, width, BLOCK: tl.constexpr):
    """One row: the largest so far, and the sum of exponentials below it."""
    row = tl.program_id(0).to(tl.int64)
    target = tl.load(targets_ptr + row)
    place = tl.arange(0, BLOCK)
    wide = tl.load(logits_ptr + row * width + place, mask=place < width, other=-float("inf"))
    wide = wide.to(tl.float32) * inverse
    peak = tl.max(wide, 0)
    total = tl.sum(tl.exp(wide - peak), 0)
    for first in range(BLOCK, width, BLOCK):
        at = first + place
        wide = tl.load(logits_ptr + row * width + at, mask=at < width, other=-float("inf"))
        wide = wide.to(tl.float32) * inverse
        higher = tl.maximum(peak, tl.max(wide, 0))
        total = total * tl.exp(peak - higher) + tl.sum(tl.exp(wide - higher), 0)
        peak = higher
    log_sum = peak + tl.log(total)
    chosen = tl.load(logits_ptr + row * width + target).to(tl.float32) * inverse
    tl.store(found_ptr + row, chosen - log_sum)
    tl.store(sums_ptr + row, log_sum)


@triton.jit
def _of_logits(
    logits_ptr,
    targets_ptr,
    sums_ptr,
    of_found_ptr,
    of_sums_ptr,
    out_ptr,
    inverse,
    width,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = place < width
    of_found = tl.load(of_found_ptr + row).to(tl.float32)
    of_rest = tl.load(of_sums_ptr + row).to(tl.float32) - of_found
    wide = tl.load(logits_ptr + row * width + place, mask=inside, other=0.0)
    shares = tl.exp(wide.to(tl.float32) * inverse - tl.load(sums_ptr + row))
    hit = tl.where(place == tl.load(targets_ptr + row), of_found, 0.0)
    tl.store(out_ptr + row * width + place, (hit + shares * of_rest) * inverse, mask=inside)
