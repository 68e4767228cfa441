"""A decoder around an architecture's blocks: embedding, final norm and unembedding."""

from __future__ import annotations

from collections.abc import Iterable

from cutaway.blocks.block import Block
from cutaway.blocks.embedding import Embedding, PositionTable
from cutaway.blocks.layer_inputs import LayerInputs
from cutaway.blocks.slots import Norm
from cutaway.blocks.transformer import Transformer
from cutaway.blocks.unembed import Unembedding
from cutaway.models.parts.sizes import Sizes
from cutaway.quantize.dense import DenseWeight


def decoder(
    sizes: Sizes,
    blocks: Iterable[Block],
    *,
    norm: Norm,
    multiplier: float | None = None,
    logits_multiplier: float | None = None,
    first_norm: Norm | None = None,
    positions: PositionTable | None = None,
    cap: float | None = None,
    layer_inputs: LayerInputs | None = None,
) -> Transformer:
    """The model with unset weights.

    norm: after the last block. multiplier, first_norm, positions: of the embedding.
    cap: of the logits.
    """
    embedding = Embedding(
        *(sizes.vocab_size, sizes.width),
        multiplier=multiplier,
        norm=first_norm,
        positions=positions,
    )
    table = embedding.table if sizes.is_tied else DenseWeight(sizes.vocab_size, sizes.width)
    unembedding = Unembedding(norm, table, multiplier=logits_multiplier, cap=cap)
    return Transformer(
        embedding=embedding, blocks=blocks, unembedding=unembedding, layer_inputs=layer_inputs
    )
