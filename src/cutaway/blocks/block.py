"""One transformer layer: norm, attention, add, norm, feed-forward, add; or parts side by side."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from cutaway.blocks.layer_inputs import LayerInput
from cutaway.blocks.slots import AddingNorm, Attention, Cosines, FeedForward, Norm, given_to
from cutaway.core.step import Step
from cutaway.kernels.norm.late import LateNorm


class Block(nn.Module):
    """Pre-norm block: each part reads a normalized copy and adds to the residual stream.

    norms:       before attention and before the feed-forward; None in place of the second where
                 both read the first one's, side by side, as in Command R.
    after_norms: of what attention and feed-forward add; such a block is called a sandwich.
    multiplier:  of what attention and feed-forward add, as in Granite.
    layer_input: adds what the token itself tells this layer, as in Gemma 4.
    has_gain:    the block's output is multiplied by a stored number, as in Gemma 4.

    Shapes: hidden, normed [T, D] -> [T, D] each.
    """

    def __init__(
        self,
        *,
        norms: tuple[Norm, Norm | None],
        attention: Attention,
        mlp: FeedForward,
        after_norms: tuple[Norm, Norm] | None = None,
        multiplier: float | None = None,
        layer_input: LayerInput | None = None,
        has_gain: bool = False,
    ) -> None:
        super().__init__()
        self.attention_norm, self.mlp_norm = norms
        self.attention = attention
        self.mlp = mlp
        self.attention_after_norm, self.mlp_after_norm = after_norms or (None, None)
        self.multiplier = multiplier
        self.layer_input = layer_input
        self.gain = nn.Parameter(torch.ones(1)) if has_gain else None

    def forward(
        self,
        hidden: Tensor,
        normed: Tensor | LateNorm,
        rotation: Cosines | None,
        step: Step,
        layer: int,
        *,
        layer_input: Tensor | None = None,
        next_norm: Norm | None = None,
        rows: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | LateNorm]:
        """The stream after this layer, and what the next layer's first norm makes of it.

        normed:      hidden after attention_norm, which whoever made hidden took at once; or that
                     norm yet to be taken, and hidden is then the room for its sum.
        layer_input: what its LayerInput reads [T, P], where the block has one.
        next_norm:   None after the last layer; the stream itself then comes twice.
        rows:        the tokens of which more than keys and values is wanted [R]; None for all.
        """
        if self.mlp_norm is None and isinstance(normed, LateNorm):
            normed = normed.take()  # for both parts
        update = self.attention(given_to(self.attention, normed), rotation, step, layer)
        update = self._prepare_update(update, self.attention_after_norm)
        update = step.tap("blocks.attention.update", update, layer)
        if rows is not None:
            assert self.layer_input is None, "inputs beside the stream are of all tokens"
            hidden, update = hidden[rows], update[rows]
            normed = normed[rows] if isinstance(normed, Tensor) else normed
            if not len(rows):
                return hidden, hidden
        if self.mlp_norm is None:
            hidden = hidden + update
        else:
            hidden, normed = add_and_norm_later(hidden, update, self.mlp_norm)
        update = self.mlp(given_to(self.mlp, normed), step, layer)
        hidden = normed.total if isinstance(normed, LateNorm) else hidden
        update = self._prepare_update(update, self.mlp_after_norm)
        update = step.tap("blocks.mlp.update", update, layer)
        # A sink may replace the sum, so it sees it before the norm does.
        ends_here = self.layer_input is None and self.gain is None and step.sink is None
        if ends_here and next_norm is not None:
            # Who reads the stream reads it before the next layer begins; so does what cuts training
            # between layers.
            is_read = step.streams is not None and layer in step.streams.layers
            add = add_and_norm if is_read or step.trains else add_and_norm_later
            return add(hidden, update, next_norm)
        hidden = hidden + update
        if self.layer_input is not None:
            assert layer_input is not None, "a block with a layer input is given one"
            update = self.layer_input(hidden, layer_input, step.adapters)
            hidden = hidden + step.tap("blocks.input.update", update, layer)
        if self.gain is not None:
            hidden = hidden * self.gain
        hidden = step.tap("blocks.hidden", hidden, layer)
        return hidden, hidden if next_norm is None else next_norm(hidden)

    def _prepare_update(self, update: Tensor, norm: Norm | None) -> Tensor:
        """What is added to the stream of what a part gives."""
        update = update if norm is None else norm(update)
        return update if self.multiplier is None else update * self.multiplier

    def read_by_mlp(self, hidden: Tensor, update: Tensor) -> Tensor:
        """What the feed-forward reads, by the stream before the layer and attention's update."""
        if self.mlp_norm is None:
            return self.attention_norm(hidden)
        return self.mlp_norm(hidden + update)


def _adding(norm: Norm) -> AddingNorm | None:
    """The norm, if it has an operation for sums."""
    # isinstance asks a protocol for every name in turn: on a CPU that is felt in training.
    return cast(AddingNorm, norm) if hasattr(norm, "add_later") else None


def add_and_norm(hidden: Tensor, update: Tensor, norm: Norm) -> tuple[Tensor, Tensor]:
    """The sum of both and its norm, in one operation where the norm has one."""
    adding = _adding(norm)
    if adding is not None:
        return adding.add(hidden, update)
    hidden = hidden + update
    return hidden, norm(hidden)


def add_and_norm_later(
    hidden: Tensor, update: Tensor, norm: Norm
) -> tuple[Tensor, Tensor | LateNorm]:
    """The same, or a norm left to whoever reads it, and what has its sum from then on: its total.

    In serving the total is a room that is filled; in training it is another tensor then.
    """
    adding = _adding(norm)
    late = None if adding is None else adding.add_later(hidden, update)
    return add_and_norm(hidden, update, norm) if late is None else (late.total, late)
