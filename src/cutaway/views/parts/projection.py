"""How a row of the stream becomes a query: the row times a head's matrix, one number of it in full.

It does not know what becomes of the query.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from cutaway.blocks.attention.grouped import GroupedAttention
from cutaway.views.parts.head_layers import block_of
from cutaway.views.parts.payload import Array
from cutaway.views.parts.replay_values import ReplayValues
from cutaway.views.parts.subject import Subject

EMBEDDING, HIDDEN = "embedding.hidden", "blocks.hidden"
NUM_BINS = 96
NUM_TERMS = 6


@dataclass(frozen=True)
class Projection:
    """x W = q for one head at one position, before the query is normed or turned.

    input:  [up to 96], means of bins of x, the stream after attention's norm; width numbers in all.
    output: [C], what the matrix makes of it, in float64.
    entry:  the number of output that is worked out, its largest; value: what it is, bias: of which.
    places, inputs, weights: [M] each, the products that count most; rest: sum of the others.
    """

    width: int
    input: Array
    output: Array
    entry: int
    value: float
    bias: float
    places: Array
    inputs: Array
    weights: Array
    rest: float


def tap_below(layer: int) -> tuple[str, int | None]:
    """The tap that gave the stream which a layer reads."""
    return (EMBEDDING, None) if layer == 0 else (HIDDEN, layer - 1)


def projection_of(
    subject: Subject, taken: ReplayValues, *, layer: int, head: int, position: int
) -> Projection | None:
    """The product that made a query; None where a layer makes its queries in another way."""
    block = block_of(subject, layer)
    if not isinstance(block.attention, GroupedAttention):
        return None
    stream = taken.value(*tap_below(layer), start=position, end=position + 1)
    dtype = cast(torch.dtype, getattr(torch, subject.build.dtype))
    normed = block.attention_norm(stream.to(dtype))[0].double()
    matrix, bias = block.attention.query_rows(head)
    added = torch.zeros(len(matrix)) if bias is None else bias.detach()
    output = matrix.double() @ normed + added.double().to(normed.device)
    entry = int(output.abs().argmax())
    terms = matrix[entry].double() * normed
    places = terms.abs().topk(min(NUM_TERMS, len(terms))).indices
    return Projection(
        width=len(normed),
        input=_array(
            torch.stack([b.mean() for b in normed.tensor_split(min(NUM_BINS, len(normed)))])
        ),
        output=_array(output),
        entry=entry,
        value=float(output[entry]),
        bias=float(added[entry]),
        places=places.cpu().numpy(),
        inputs=_array(normed[places]),
        weights=_array(matrix[entry][places]),
        rest=float(terms.sum() - terms[places].sum()),
    )


def _array(values: Tensor) -> Array:
    return values.detach().float().cpu().numpy()
