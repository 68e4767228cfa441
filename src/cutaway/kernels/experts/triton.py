"""Products of rows with the experts that they chose, in Triton, without a count on the host.

Pairs of token and expert are put in the order of experts on the device, and shared out in blocks
of one expert. Few tokens are bound by reading the experts: a block has 16 pairs, and weights stand
where the matrix units take rows from; prompts have blocks of 64 or 128 pairs. One token needs no
order. A pair is summed over columns in their order whatever its place and its block's other pairs.
"""

# pyright: basic
# pyright: reportMissingImports=false, reportMissingModuleSource=false
# pyright: reportAttributeAccessIssue=false, reportIndexIssue=false
# A kernel is no Python: its parameters have the types of the language that Triton compiles.

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from cutaway.kernels.triton_launches import await_last, early, start_next

NO_GATE = 0
KINDS = {"silu": 1, "gelu_tanh": 2, "gelu": 3, "relu": 4, "clamped": 5}
_CHUNK = 1024  # pairs that are put in order at once


@dataclass(frozen=True)
class GateForm:
    """What makes one number of a gate and a value. alpha, limit: of the clamped one."""

    kind: int
    alpha: float = 0.0
    limit: float = 0.0


@dataclass(frozen=True)
class _ExpertTile:
    """Pairs of a block, rows and columns of the matrix that a program takes at once."""

    pairs: int
    rows: int
    columns: int
    warps: int
    stages: int


@dataclass(frozen=True)
class ExpertBlocks:
    """The step's pairs by expert. order: pairs [T K]; blocks: expert, begin and end in order."""

    order: Tensor
    blocks: Tensor
    pairs: int  # of a block at most


def arrange(expert_ids: Tensor, num_experts: int) -> ExpertBlocks:
    """Put pairs in the order of their experts, and of tokens where the expert is the same.

    Shapes: expert_ids [T, K].
    """
    num_pairs = expert_ids.numel()
    size = _pairs_of_a_block(num_pairs, num_experts)
    most = min(num_experts, num_pairs) + num_pairs // size
    order = torch.empty(num_pairs, dtype=torch.int32, device=expert_ids.device)
    blocks = torch.empty(most, 3, dtype=torch.int32, device=expert_ids.device)
    _arrange[(num_experts,)](
        *(expert_ids.contiguous(), order, blocks, num_pairs, most),
        NUM_EXPERTS=num_experts,
        EXPERTS=triton.next_power_of_2(num_experts + 1),
        SIZE=size,
        CHUNK=min(_CHUNK, max(16, triton.next_power_of_2(num_pairs))),
        **early(expert_ids),
        num_warps=4,
    )
    return ExpertBlocks(order, blocks, size)


def multiply_units(
    x: Tensor,
    expert_ids: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    activation: GateForm,
    *,
    is_interleaved: bool,
    blocks: ExpertBlocks | None,
) -> Tensor:
    """What the gates of each row's experts give.

    blocks: of more tokens than one.
    Shapes: x [T, D], expert_ids [T, K], weight [E, 2 F, D], bias [E, 2 F] -> [T K, F].
    """
    units = weight.shape[1] // 2
    out = torch.empty(expert_ids.numel(), units, dtype=x.dtype, device=x.device)
    named = {"KIND": activation.kind, "INTERLEAVED": is_interleaved}
    numbers = (activation.alpha, activation.limit)
    chosen = expert_ids.shape[1]
    if blocks is not None:
        _multiply_blocks(x, weight, bias, out, blocks, numbers, share=chosen, **named)
        return out
    rows, columns, warps = _row_tile(x.shape[1])
    _multiply_one[(triton.cdiv(units, rows), chosen)](
        *(x.contiguous(), weight, weight if bias is None else bias, out, expert_ids, *numbers),
        **named,
        HAS_BIAS=bias is not None,
        NUM_ROWS=units,
        WIDTH=x.shape[1],
        ROWS=rows,
        COLUMNS=columns,
        **early(x),
        num_warps=warps,
        num_stages=2,
    )
    return out


def add_results(
    products: Tensor,
    expert_ids: Tensor,
    weights: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    *,
    blocks: ExpertBlocks | None,
) -> Tensor:
    """The weighted sum of what down makes of products, from the best expert to the last.

    Shapes: products [T K, F], expert_ids, weights [T, K], weight [E, D, F], bias [E, D] -> [T, D].
    """
    tokens, chosen = expert_ids.shape
    outputs, width = weight.shape[1:]
    out = torch.empty(tokens, outputs, dtype=products.dtype, device=products.device)
    if blocks is None:
        rows, columns, warps = _row_tile(width)
        _add_one[(triton.cdiv(outputs, rows),)](
            *(products, weight, weight if bias is None else bias, weights, out, expert_ids),
            HAS_BIAS=bias is not None,
            CHOSEN=chosen,
            NUM_ROWS=outputs,
            WIDTH=width,
            ROWS=rows,
            COLUMNS=columns,
            **early(products),
            num_warps=warps,
            num_stages=3,
        )
        return out
    results = torch.empty(tokens * chosen, outputs, dtype=products.dtype, device=products.device)
    named = {"KIND": NO_GATE, "INTERLEAVED": False}
    _multiply_blocks(products, weight, bias, results, blocks, (0.0, 0.0), share=1, **named)
    block = min(1024, triton.next_power_of_2(outputs))
    _add_up[(tokens, triton.cdiv(outputs, block))](
        *(results, weights, out, outputs), CHOSEN=chosen, BLOCK=block, **early(results), num_warps=4
    )
    return out


def _multiply_blocks(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    out: Tensor,
    blocks: ExpertBlocks,
    numbers: tuple[float, float],
    *,
    share: int,
    KIND: int,
    INTERLEAVED: bool,
) -> None:
    """share: pairs that read the same row of x."""
    units = out.shape[1]
    tile = _tile(x.dtype, blocks.pairs, is_gated=KIND != NO_GATE)
    _multiply_pairs[(triton.cdiv(units, tile.rows), len(blocks.blocks))](
        *(x.contiguous(), weight, weight if bias is None else bias, out),
        *(blocks.order, blocks.blocks, *numbers),
        KIND=KIND,
        INTERLEAVED=INTERLEAVED,
        HAS_BIAS=bias is not None,
        SHARE=share,
        NUM_ROWS=units,
        WIDTH=x.shape[1],
        PAIRS=tile.pairs,
        ROWS=tile.rows,
        COLUMNS=tile.columns,
        **early(x),
        num_warps=tile.warps,
        num_stages=tile.stages,
    )


def _pairs_of_a_block(num_pairs: int, num_experts: int) -> int:
    """By the mean of an expert: by the shape of a step, never by what its tokens chose."""
    mean = num_pairs / num_experts
    return 16 if mean <= 24 else 64 if mean <= 96 else 128


def _tile(dtype: torch.dtype, pairs: int, *, is_gated: bool) -> _ExpertTile:
    """As an H200 likes it; 32-bit numbers take what fits in shared memory."""
    if dtype == torch.float32:
        return _ExpertTile(pairs, 32, 32, 4, 2)
    if pairs == 16:
        return _ExpertTile(pairs, 64, 128, 4, 3)
    return _ExpertTile(pairs, 64 if is_gated else 128, 64, 8 if pairs == 128 else 4, 3)


def _row_tile(width: int) -> tuple[int, int, int]:
    """Rows, columns and warps of the products of one token."""
    return 2, min(1024, triton.next_power_of_2(width)), 4


@triton.jit
def _arrange(
    ids_ptr,
    order_ptr,
    blocks_ptr,
    num_pairs,
    most,
    NUM_EXPERTS: tl.constexpr,
    EXPERTS: tl.constexpr,
    SIZE: tl.constexpr,
    CHUNK: tl.constexpr,
    EARLY: tl.constexpr,
):
    """One expert's pairs and blocks; each program counts all experts' for itself."""
    start_next(EARLY)
    await_last(EARLY)
    expert = tl.program_id(0)
    each = tl.arange(0, EXPERTS)
    counts = tl.zeros([EXPERTS], tl.int32)
    for first in range(0, num_pairs, CHUNK):
        pair = first + tl.arange(0, CHUNK)
        ids = tl.load(ids_ptr + pair, mask=pair < num_pairs, other=NUM_EXPERTS).to(tl.int32)
        counts += tl.histogram(ids, EXPERTS)
    begin = tl.sum(tl.where(each < expert, counts, 0), 0)
    count = tl.sum(tl.where(each == expert, counts, 0), 0)
    tiles = (counts + (SIZE - 1)) // SIZE
    block = tl.sum(tl.where(each < expert, tiles, 0), 0)
    place = begin
    for first in range(0, num_pairs, CHUNK):
        pair = first + tl.arange(0, CHUNK)
        ids = tl.load(ids_ptr + pair, mask=pair < num_pairs, other=NUM_EXPERTS).to(tl.int32)
        is_own = (ids == expert).to(tl.int32)
        rank = tl.cumsum(is_own, 0) - is_own
        tl.store(order_ptr + place + rank, pair, mask=is_own > 0)
        place += tl.sum(is_own, 0)
    for number in range(0, tl.cdiv(count, SIZE)):
        entry = blocks_ptr + (block + number) * 3
        tl.store(entry, expert)
        tl.store(entry + 1, begin + number * SIZE)
        tl.store(entry + 2, begin + count)
    if expert == NUM_EXPERTS - 1:
        used = block + tl.cdiv(count, SIZE)
        for empty in range(used, most):
            tl.store(blocks_ptr + empty * 3, -1)


@triton.jit
def _activate(gate, value, alpha, limit, KIND: tl.constexpr):
    """The activated product in float32; kinds as named above."""
    if KIND == 1:
        return gate / (1.0 + tl.exp(-gate)) * value
    elif KIND == 2:
        inner = 0.7978845608028654 * (gate + 0.044715 * gate * gate * gate)
        return gate / (1.0 + tl.exp(-2.0 * inner)) * value
    elif KIND == 3:
        return 0.5 * gate * (1.0 + tl.erf(gate * 0.7071067811865476)) * value
    elif KIND == 4:
        return tl.maximum(gate, 0.0) * value
    else:
        gate = tl.minimum(gate, limit)
        value = tl.minimum(tl.maximum(value, -limit), limit)
        return gate / (1.0 + tl.exp(-alpha * gate)) * (value + 1.0)


@triton.jit
def _multiply_pairs(
    x_ptr,
    weight_ptr,
    bias_ptr,
    out_ptr,
    order_ptr,
    blocks_ptr,
    alpha,
    limit,
    KIND: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    SHARE: tl.constexpr,
    NUM_ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
    PAIRS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Some rows of one expert times the pairs of one block."""
    start_next(EARLY)
    await_last(EARLY)
    entry = blocks_ptr + tl.program_id(1) * 3
    expert = tl.load(entry)
    if expert >= 0:
        HALVES: tl.constexpr = 1 if KIND == 0 else 2
        STEP: tl.constexpr = 2 if INTERLEAVED else 1
        OTHER: tl.constexpr = 1 if INTERLEAVED else NUM_ROWS
        place = tl.load(entry + 1) + tl.arange(0, PAIRS)
        is_pair = place < tl.load(entry + 2)
        pair = tl.load(order_ptr + place, mask=is_pair, other=0)
        row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
        is_row = row < NUM_ROWS
        matrix_row = expert.to(tl.int64) * (NUM_ROWS * HALVES) + row * STEP
        x_at = x_ptr + (pair // SHARE).to(tl.int64)[:, None] * WIDTH
        weight_at = weight_ptr + matrix_row[:, None] * WIDTH
        IS_FEW: tl.constexpr = PAIRS < 64
        if IS_FEW:
            gate = tl.zeros([ROWS, PAIRS], tl.float32)
            value = tl.zeros([ROWS, PAIRS], tl.float32)
        else:
            gate = tl.zeros([PAIRS, ROWS], tl.float32)
            value = tl.zeros([PAIRS, ROWS], tl.float32)
        for first in range(0, WIDTH, COLUMNS):
            column = first + tl.arange(0, COLUMNS)
            if WIDTH % COLUMNS == 0 and NUM_ROWS % ROWS == 0:
                held = tl.full([1, 1], True, tl.int1)
            else:
                held = is_row[:, None] & (column < WIDTH)[None, :]
            present = is_pair[:, None] & (column < WIDTH)[None, :]
            x = tl.load(x_at + column[None, :], mask=present, other=0.0)
            weight = tl.load(weight_at + column[None, :], mask=held, other=0.0)
            if IS_FEW:
                gate = tl.dot(weight, tl.trans(x), acc=gate, input_precision="ieee")
            else:
                gate = tl.dot(x, tl.trans(weight), acc=gate, input_precision="ieee")
            if KIND > 0:
                at = weight_at + OTHER * WIDTH + column[None, :]
                weight = tl.load(at, mask=held, other=0.0)
                if IS_FEW:
                    value = tl.dot(weight, tl.trans(x), acc=value, input_precision="ieee")
                else:
                    value = tl.dot(x, tl.trans(weight), acc=value, input_precision="ieee")
        if IS_FEW:
            gate = tl.trans(gate)
            value = tl.trans(value)
        if HAS_BIAS:
            gate += tl.load(bias_ptr + matrix_row, mask=is_row, other=0.0).to(tl.float32)[None, :]
        if KIND > 0:
            if HAS_BIAS:
                other = tl.load(bias_ptr + matrix_row + OTHER, mask=is_row, other=0.0)
                value += other.to(tl.float32)[None, :]
            gate = _activate(gate, value, alpha, limit, KIND)
        out = out_ptr + pair.to(tl.int64)[:, None] * NUM_ROWS + row[None, :]
        inside = is_pair[:, None] & is_row[None, :]
        tl.store(out, gate.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _multiply_one(
    x_ptr,
    weight_ptr,
    bias_ptr,
    out_ptr,
    ids_ptr,
    alpha,
    limit,
    KIND: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    NUM_ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Some units of one of a single token's experts."""
    start_next(EARLY)
    await_last(EARLY)
    STEP: tl.constexpr = 2 if INTERLEAVED else 1
    OTHER: tl.constexpr = 1 if INTERLEAVED else NUM_ROWS
    choice = tl.program_id(1)
    expert = tl.load(ids_ptr + choice)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    is_row = row < NUM_ROWS
    matrix_row = expert * (NUM_ROWS * 2) + row * STEP
    at = weight_ptr + matrix_row[:, None] * WIDTH
    gate = tl.zeros([ROWS, COLUMNS], tl.float32)
    value = tl.zeros([ROWS, COLUMNS], tl.float32)
    for first in range(0, WIDTH, COLUMNS):
        column = first + tl.arange(0, COLUMNS)
        inside = column < WIDTH
        held = is_row[:, None] & inside[None, :]
        x = tl.load(x_ptr + column, mask=inside, other=0.0).to(tl.float32)[None, :]
        weight = tl.load(at + column[None, :], mask=held, other=0.0)
        gate += weight.to(tl.float32) * x
        weight = tl.load(at + OTHER * WIDTH + column[None, :], mask=held, other=0.0)
        value += weight.to(tl.float32) * x
    gate = tl.sum(gate, 1)
    value = tl.sum(value, 1)
    if HAS_BIAS:
        gate += tl.load(bias_ptr + matrix_row, mask=is_row, other=0.0).to(tl.float32)
        value += tl.load(bias_ptr + matrix_row + OTHER, mask=is_row, other=0.0).to(tl.float32)
    out = _activate(gate, value, alpha, limit, KIND)
    tl.store(out_ptr + choice * NUM_ROWS + row, out.to(out_ptr.dtype.element_ty), mask=is_row)


@triton.jit
def _add_one(
    products_ptr,
    weight_ptr,
    bias_ptr,
    share_ptr,
    out_ptr,
    ids_ptr,
    HAS_BIAS: tl.constexpr,
    CHOSEN: tl.constexpr,
    NUM_ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Some results of a single token, over all of its experts."""
    start_next(EARLY)
    await_last(EARLY)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    is_row = row < NUM_ROWS
    PARTS: tl.constexpr = (WIDTH + COLUMNS - 1) // COLUMNS
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    offset = tl.zeros([ROWS], tl.float32)
    for part in range(0, CHOSEN * PARTS):
        choice = part // PARTS
        expert = tl.load(ids_ptr + choice)
        share = tl.load(share_ptr + choice).to(tl.float32)
        column = part % PARTS * COLUMNS + tl.arange(0, COLUMNS)
        inside = column < WIDTH
        x = tl.load(products_ptr + choice * WIDTH + column, mask=inside, other=0.0)
        matrix_row = expert * NUM_ROWS + row
        weight = tl.load(
            weight_ptr + matrix_row[:, None] * WIDTH + column[None, :],
            mask=is_row[:, None] & inside[None, :],
            other=0.0,
        )
        total += weight.to(tl.float32) * x.to(tl.float32)[None, :] * share
        if HAS_BIAS:
            bias = tl.load(bias_ptr + matrix_row, mask=is_row, other=0.0).to(tl.float32)
            offset += tl.where(part % PARTS == 0, share, 0.0) * bias
    out = tl.sum(total, 1) + offset
    tl.store(out_ptr + row, out.to(out_ptr.dtype.element_ty), mask=is_row)


@triton.jit
def _add_up(
    results_ptr,
    weights_ptr,
    out_ptr,
    width,
    CHOSEN: tl.constexpr,
    BLOCK: tl.constexpr,
    EARLY: tl.constexpr,
):
    """One token's results, weighed, from the best expert to the last."""
    start_next(EARLY)
    await_last(EARLY)
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    total = tl.zeros([BLOCK], tl.float32)
    for choice in range(0, CHOSEN):
        pair = token * CHOSEN + choice
        share = tl.load(weights_ptr + pair).to(tl.float32)
        result = tl.load(results_ptr + pair * width + column, mask=inside, other=0.0)
        total += share * result.to(tl.float32)
    tl.store(out_ptr + token * width + column, total.to(out_ptr.dtype.element_ty), mask=inside)
