"""Native operations of latent attention: maps by head, rows that all heads share, and attention."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from cutaway.kernels.native import structs
from cutaway.kernels.native.attention import NativeScoring, scoring_struct
from cutaway.kernels.native.operation import (
    Operation,
    address,
    require,
    require_heads,
    require_matrix,
    require_spaced,
)
from cutaway.kernels.native.pages import PAGE_KINDS
from cutaway.kernels.native.structs import Code, Rows
from cutaway.kernels.native.weight_stack import WeightStack


@dataclass(frozen=True, eq=False)
class LatentPages:
    """A latent [N, P, R] and a turned key [N, P, C'] of each token, and their cache group.

    int8 and float8 come with scales [N, P] in float32.
    """

    latent: Tensor
    rotary: Tensor
    group: int = 0
    latent_scales: Tensor | None = None
    rotary_scales: Tensor | None = None

    @property
    def tensors(self) -> tuple[Tensor | None, ...]:
        """All that must stay in memory."""
        return (self.latent, self.rotary, self.latent_scales, self.rotary_scales)

    def struct(self) -> structs.LatentPagesStruct:
        """Checked pointers and sizes."""
        places = self.latent.shape[:2]
        for each in (self.latent, self.rotary):
            is_sound = each.dim() == 3 and each.shape[:2] == places and each.is_contiguous()
            require(is_sound and each.device.type == "cpu", "rows are contiguous [N, P, R] on cpu")
            is_sound = each.dtype == self.latent.dtype and each.dtype in PAGE_KINDS
            require(is_sound, "rows are of one of the dtypes of PAGE_DTYPES")
        for scales in (self.latent_scales, self.rotary_scales):
            has_none = self.latent.dtype.is_floating_point and self.latent.dtype.itemsize > 1
            require((scales is None) == has_none, "eight bits come with scales")
            if scales is not None:
                is_sound = scales.shape == places and scales.dtype == torch.float32
                require(is_sound and scales.is_contiguous(), "scales are float32 [N, P]")
        require(0 <= self.group < structs.MAX_GROUPS, "a step has up to four cache groups")
        return structs.LatentPagesStruct(
            *(address(each) for each in self.tensors),
            *(PAGE_KINDS[self.latent.dtype], self.group, *places),
            *(self.latent.shape[2], self.rotary.shape[2]),
        )


def heads_linear(x: Tensor, stack: WeightStack, *, out: Tensor) -> Operation:
    """out[t, h] = matrix h times x[t, h]. Heads and tokens may lie apart.

    Shapes: x [T, H, K], stack [H, N, K], out [T, H, N].
    """
    rows, num_heads = len(x), stack.num_matrices
    require_heads(x, (rows, num_heads, stack.num_columns))
    require_heads(out, (rows, num_heads, stack.num_rows))
    arguments = structs.HeadsStruct(
        *(Rows.TOKENS, rows, x.data_ptr(), x.stride(0), x.stride(1), stack.struct()),
        *(out.data_ptr(), out.stride(0), out.stride(1)),
    )
    return Operation(Code.HEADS, arguments, (x, stack.data, out))


def store_latent(latent: Tensor, rotary: Tensor, pages: LatentPages) -> Operation:
    """Write the step's rows to their slots. Shapes: latent [T, R], rotary [T, C']."""
    rows = len(latent)
    require_spaced(latent, (rows, pages.latent.shape[2]))
    require_spaced(rotary, (rows, pages.rotary.shape[2]))
    arguments = structs.StoreLatentStruct(
        *(Rows.TOKENS, rows, latent.data_ptr(), rotary.data_ptr()),
        *(latent.stride(0), rotary.stride(0), pages.struct()),
    )
    return Operation(Code.STORE_LATENT, arguments, (latent, rotary, *pages.tensors))


def attend_latent(
    query: Tensor, pages: LatentPages, *, out: Tensor, scoring: NativeScoring
) -> Operation:
    """Causal attention of each sequence's last tokens over rows that all heads share.

    Shapes: query [T, H, R + C'], out [T, H, R] or [T, H * R].
    """
    rows, num_heads, _ = query.shape
    rank, rotary_size = pages.latent.shape[2], pages.rotary.shape[2]
    require_spaced(query, (rows, num_heads, rank + rotary_size))
    require_matrix(out.flatten(1), num_heads * rank, rows)
    arguments = structs.AttendLatentStruct(
        *(Rows.TOKENS, rows, query.data_ptr(), query.stride(0), num_heads),
        *(scoring_struct(scoring, num_heads), pages.struct(), out.data_ptr()),
    )
    return Operation(Code.ATTEND_LATENT, arguments, (query, out, scoring.sinks, *pages.tensors))
