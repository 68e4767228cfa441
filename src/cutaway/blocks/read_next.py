"""Which matrices are read behind attention, so that a GPU may fetch them meanwhile."""

from __future__ import annotations

from typing import cast

from torch import nn

from cutaway.blocks.attention.grouped import GroupedAttention
from cutaway.blocks.block import Block
from cutaway.blocks.linear import Linear


def set_read_next(transformer: nn.Module) -> None:
    """Tell attention whose matrices are read behind it, so that they may be fetched meanwhile."""
    for block in transformer.modules():
        attention = getattr(block, "attention", None)
        if isinstance(block, Block) and isinstance(attention, GroupedAttention):
            parts = cast(nn.Module, block.mlp).modules()
            maps = [part for part in parts if isinstance(part, Linear)]
            attention.read_next = (attention.output, *maps[:1])
