"""Whether a model's rows are summed in one order on a GPU, whatever is computed beside them.

Native kernels of a CPU always do that. On a GPU the quickest products and sums over keys follow
the step's shape; a model is asked here to take the others.
"""

from __future__ import annotations

import torch
from torch import nn

from cutaway.blocks.attention.convolution import ShortConvolution
from cutaway.blocks.attention.delta import DeltaLayer
from cutaway.blocks.attention.grouped import GroupedAttention
from cutaway.blocks.attention.latent import LatentAttention
from cutaway.blocks.moe import Experts
from cutaway.kernels.attention import invariant_paged_attention, paged_attention
from cutaway.kernels.dispatch import MOST_HEAD_SIZE
from cutaway.quantize.dense import DenseWeight

DTYPES = (torch.bfloat16, torch.float16)
_OTHERS = (ShortConvolution, DeltaLayer, LatentAttention, Experts)  # of one order none is written


def set_invariant(transformer: nn.Module, *, is_on: bool) -> None:
    """Take forms with one order of summation from now on, or the quickest ones again."""
    for part in transformer.modules():
        if isinstance(part, DenseWeight):
            part.is_invariant = is_on
        elif isinstance(part, GroupedAttention):
            part.over_pages = invariant_paged_attention if is_on else paged_attention


def parts_without(transformer: nn.Module) -> list[str]:
    """Kinds of parts that have no form with one order of summation on a GPU, by name."""
    found: set[str] = set()
    for part in transformer.modules():
        is_weight = hasattr(part, "multiply") and not isinstance(part, DenseWeight)
        is_wide = isinstance(part, GroupedAttention) and part.head_size > MOST_HEAD_SIZE
        if is_weight or is_wide or isinstance(part, _OTHERS):
            found.add(type(part).__name__)
    return sorted(found)
