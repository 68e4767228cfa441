"""The short convolution in plain PyTorch, in an order of sums that is each token's own.

Each page of the layer's cache group holds the last inputs up to the page's last token so far. To go
on the page of the token before is read; a full page's inputs are the snapshot for prefix hits.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cutaway.core.step import Step


def convolve_sequences(
    x: Tensor, weight: Tensor, bias: Tensor | None, *, step: Step, layer: int
) -> Tensor:
    """Each channel alone: a weighted sum of its last tokens, of which kernel - 1 may lie before.

    Computed in float32 or wider.
    Shapes: x [T, D], weight [D, kernel], bias [D] -> [T, D] in the dtype of x.
    Source: transformers' Lfm2ShortConv.
    """
    wide = torch.promote_types(x.dtype, torch.float32)
    spans = torch.split(x.to(wide), list(step.plan.query_lengths))
    given = None if bias is None else bias.to(wide)
    made = [
        _sequence(row, inputs, weight.to(wide), given, step=step, layer=layer)
        for row, inputs in enumerate(spans)
    ]
    return torch.cat(made).to(x.dtype)


def _sequence(
    row: int, inputs: Tensor, weight: Tensor, bias: Tensor | None, *, step: Step, layer: int
) -> Tensor:
    """One sequence's new tokens. Shapes: inputs [t, D] -> [t, D]."""
    count, before = len(inputs), weight.shape[1] - 1
    start = step.plan.context_lengths[row] - count
    earlier = inputs.new_zeros(before, inputs.shape[1])
    if step.caches:
        cache = step.caches[layer]
        kept, size = cache.fields["inputs"], cache.page_size
        pages = step.groups[cache.group].page_table[row]
        if start:
            earlier = kept[pages[(start - 1) // size]].to(inputs.dtype)
        seen = torch.cat((earlier, inputs))
        ends = {*range((start // size + 1) * size, start + count, size), start + count}
        for end in ends:
            done = end - start
            kept[pages[(end - 1) // size]] = seen[done : done + before].to(kept.dtype)
    else:
        seen = torch.cat((earlier, inputs))
    mixed = seen[:count] * weight[:, 0]  # oldest first
    for tap in range(1, before + 1):
        mixed = mixed + seen[tap : tap + count] * weight[:, tap]
    return mixed if bias is None else mixed + bias
