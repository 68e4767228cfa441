"""Products of 129 to 192 tokens in Triton, in one order of summation: tokens in two parts.

A block of tokens has a power of two, and 160 take as long in a block of 256 as 256 do. So a program
multiplies its rows with 128 tokens and with 32 or 64 more, each a product of its own with a sum of
its own. The bits are those of any other block. A third part, of 193 to 224 tokens, was slower than
a block of 256 on an H200.
"""

# pyright: basic
# pyright: reportMissingImports=false, reportMissingModuleSource=false
# pyright: reportAttributeAccessIssue=false, reportIndexIssue=false
# A kernel is no Python: its parameters have the types of the language that Triton compiles.

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from cutaway.kernels.triton_launches import await_last, early, start_next

LEAST, MOST = 129, 192
_FIRST = 128  # tokens of the first part
_COLUMNS, _STAGES = 64, 4


def multiply(
    x: Tensor,
    weight: Tensor,
    out: Tensor,
    partial: Tensor | None,
    *,
    share: int,
    shares: int,
    rows: int,
) -> None:
    """x times the transposed weight: into out, or share by share into partial.

    share: columns of one.   rows: of the weight that a program takes, 64 or 128.
    Shapes: x [T, K], weight [N, K] -> out [T, N] or partial [shares, T, N] float32.
    """
    num_tokens, num_rows = len(x), len(weight)
    assert LEAST <= num_tokens <= MOST, "other numbers of tokens are one block"
    rest = 32 if num_tokens <= _FIRST + 32 else 64
    _multiply_parts[(triton.cdiv(num_rows, rows), shares)](
        *(TensorDescriptor.from_tensor(x, [size, _COLUMNS]) for size in (_FIRST, rest)),
        TensorDescriptor.from_tensor(weight, [rows, _COLUMNS]),
        *(out if partial is None else partial, num_tokens, num_rows),
        SHARE=share,
        FIRST=_FIRST,
        REST=rest,
        ROWS=rows,
        COLUMNS=_COLUMNS,
        **early(x),
        num_warps=8 if rows == 128 else 4,
        num_stages=_STAGES,
    )


@triton.jit(do_not_specialize=["num_tokens"])
def _multiply_parts(
    x,
    rest,
    weight,
    out_ptr,
    num_tokens,
    num_rows,
    SHARE: tl.constexpr,
    FIRST: tl.constexpr,
    REST: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Some rows times all tokens, over one share of the columns."""
    start_next(EARLY)
    await_last(EARLY)
    first_row, share = tl.program_id(0) * ROWS, tl.program_id(1)
    row = first_row + tl.arange(0, ROWS)
    total = tl.zeros([ROWS, FIRST], tl.float32)
    rest_total = tl.zeros([ROWS, REST], tl.float32)
    for first in range(0, SHARE, COLUMNS):
        column = share * SHARE + first
        left = weight.load([first_row, column])
        total = tl.dot(left, x.load([0, column]).T, total)
        rest_total = tl.dot(left, rest.load([FIRST, column]).T, rest_total)
    out_ptr += share.to(tl.int64) * num_tokens * num_rows
    _store(total, out_ptr, row, 0, num_tokens, num_rows, FIRST)
    _store(rest_total, out_ptr, row, FIRST, num_tokens, num_rows, REST)


@triton.jit
def _store(total, out_ptr, row, first, num_tokens, num_rows, TOKENS: tl.constexpr):
    """A part's results. Shapes: total [rows, tokens]."""
    token = first + tl.arange(0, TOKENS)
    place = token.to(tl.int64)[None, :] * num_rows + row[:, None]
    inside = (token < num_tokens)[None, :] & (row < num_rows)[:, None]
    tl.store(out_ptr + place, total.to(out_ptr.dtype.element_ty), mask=inside)
