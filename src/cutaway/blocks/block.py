"""One transformer layer: norm, attention, add, norm, feed-forward, add."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from cutaway.blocks.layer_inputs import LayerInput
from cutaway.blocks.parts import (
    AddingNorm,
    Attention,
    Cosines,
    FeedForward,
    Norm,
    RecordedAttention,
    RecordedFeedForward,
    RecordedNorm,
    can_record,
)
from cutaway.core.step import LayerCache, Step
from cutaway.kernels import native
from cutaway.kernels.capture import Tape


class Block(nn.Module):
    """Pre-norm block: each part reads a normalized copy and adds to the residual stream.

    norms:       before attention and before the feed-forward.
    after_norms: of what attention and feed-forward add; such a block is called a sandwich.
    layer_input: adds what the token itself tells this layer, as in Gemma 4.
    has_gain:    the block's output is multiplied by a stored number, as in Gemma 4.

    Shapes: hidden, normed [T, D] -> [T, D] each.
    """

    def __init__(
        self,
        *,
        norms: tuple[Norm, Norm],
        attention: Attention,
        mlp: FeedForward,
        after_norms: tuple[Norm, Norm] | None = None,
        layer_input: LayerInput | None = None,
        has_gain: bool = False,
    ) -> None:
        super().__init__()
        self.attention_norm, self.mlp_norm = norms
        self.attention = attention
        self.mlp = mlp
        self.attention_after_norm, self.mlp_after_norm = after_norms or (None, None)
        self.layer_input = layer_input
        self.gain = nn.Parameter(torch.ones(1)) if has_gain else None

    def forward(
        self,
        hidden: Tensor,
        normed: Tensor,
        rotation: Cosines | None,
        step: Step,
        layer: int,
        *,
        told: Tensor | None = None,
        next_norm: Norm | None = None,
    ) -> tuple[Tensor, Tensor]:
        """The stream after this layer, and what the next layer's first norm makes of it.

        normed:    hidden after attention_norm, which whoever made hidden took at once.
        told:      what layer_input reads [T, P], where the block has one.
        next_norm: None after the last layer; the stream itself then comes twice.
        """
        update = self.attention(normed, rotation, step, layer)
        if self.attention_after_norm is not None:
            update = self.attention_after_norm(update)
        update = step.tap("blocks.attention.update", update, layer)
        hidden, normed = add_and_norm(hidden, update, self.mlp_norm)
        update = self.mlp(normed, step, layer)
        if self.mlp_after_norm is not None:
            update = self.mlp_after_norm(update)
        update = step.tap("blocks.mlp.update", update, layer)
        # A sink may replace the sum, so it sees it before the norm does.
        ends_here = self.layer_input is None and self.gain is None and step.sink is None
        if ends_here and next_norm is not None:
            return add_and_norm(hidden, update, next_norm)
        hidden = hidden + update
        if self.layer_input is not None:
            assert told is not None, "a block with a layer input is told one"
            update = self.layer_input(hidden, told)
            hidden = hidden + step.tap("blocks.input.update", update, layer)
        if self.gain is not None:
            hidden = hidden * self.gain
        hidden = step.tap("blocks.hidden", hidden, layer)
        return hidden, hidden if next_norm is None else next_norm(hidden)

    @property
    def can_record(self) -> bool:
        """Whether the layer can be said in native operations."""
        norms = [self.attention_norm, self.mlp_norm, *self._after_norms]
        has_norms = all(isinstance(norm, RecordedNorm) for norm in norms)
        is_plain = self.gain is None and self.layer_input is None
        return has_norms and is_plain and can_record(self.attention) and can_record(self.mlp)

    def record(
        self,
        tape: Tape,
        hidden: Tensor,
        rotation: native.Rotation,
        cache: LayerCache,
        layer: int,
    ) -> Tensor:
        """The same layer in native operations; returns the buffer that holds its output."""
        width = hidden.shape[1]
        middle = tape.tokens("attention.hidden", width, layer)
        out = tape.tokens("mlp.hidden", width, layer)
        update = tape.tokens("block.update", width, layer) if self._after_norms else None
        cast(RecordedAttention, self.attention).record(
            tape,
            hidden,
            middle if update is None else update,
            norm=cast(RecordedNorm, self.attention_norm).before,
            residual=hidden if update is None else None,
            rotation=rotation,
            cache=cache,
            layer=layer,
        )
        _record_after(tape, self.attention_after_norm, update, hidden, middle)
        cast(RecordedFeedForward, self.mlp).record(
            tape,
            middle,
            out if update is None else update,
            norm=cast(RecordedNorm, self.mlp_norm).before,
            residual=middle if update is None else None,
            layer=layer,
        )
        _record_after(tape, self.mlp_after_norm, update, middle, out)
        # Updates are added where they are computed: they are what the stream has more than before.
        _show_difference(tape, "blocks.attention.update", layer, before=hidden, after=middle)
        _show_difference(tape, "blocks.mlp.update", layer, before=middle, after=out)
        tape.show("blocks.hidden", layer, lambda step: out[: step.num_tokens])
        return out

    @property
    def _after_norms(self) -> tuple[Norm, ...]:
        pair = (self.attention_after_norm, self.mlp_after_norm)
        return tuple(norm for norm in pair if norm is not None)


def add_and_norm(hidden: Tensor, update: Tensor, norm: Norm) -> tuple[Tensor, Tensor]:
    """The sum of both and its norm, in one operation where the norm has one."""
    if isinstance(norm, AddingNorm):
        return norm.add(hidden, update)
    hidden = hidden + update
    return hidden, norm(hidden)


def _show_difference(tape: Tape, name: str, layer: int, *, before: Tensor, after: Tensor) -> None:
    tape.show(name, layer, lambda step: after[: step.num_tokens] - before[: step.num_tokens])


def _record_after(
    tape: Tape, norm: Norm | None, update: Tensor | None, residual: Tensor, out: Tensor
) -> None:
    """out = residual + norm(update), where a block is a sandwich."""
    if norm is None or update is None:
        return
    before = cast(RecordedNorm, norm).before
    operation = native.norm(update, before.weight, before.epsilon, residual=residual, out=out)
    tape.add(operation)
