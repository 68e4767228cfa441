"""One layer that guesses a model's next tokens from the model's own streams, as EAGLE-3 has it.

It knows neither pages nor answers: whoever calls it gives what each token comes with.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from cutaway.blocks.attention.grouped import GroupedAttention
from cutaway.blocks.block import add_and_norm_later
from cutaway.blocks.embedding import Embedding
from cutaway.blocks.linear import Linear
from cutaway.blocks.mlp import GatedMLP
from cutaway.blocks.norm import RMSNorm
from cutaway.blocks.positions import angles
from cutaway.core.layout import CacheSpec
from cutaway.core.step import Step
from cutaway.kernels.given_rows import given_rows
from cutaway.kernels.linear import project, take_rows
from cutaway.kernels.norm.late import LateNorm
from cutaway.kernels.rotary import rotate
from cutaway.quantize.dense import DenseWeight
from cutaway.quantize.packed import Packed

STREAMS = 3  # of the target that are read


class TurnedHeads(NamedTuple):
    """Turned queries [T, H, C]; keys and values [T, H, C], each group's given to its heads."""

    query: Tensor
    key: Tensor
    value: Tensor


class Speculator(nn.Module):
    """A decoder layer over a token and what was known before it.

    The state at position t is made of the target's streams there, or is this layer's own result at
    t - 1 where the target has not come so far; the token is the one at t + 1; the result tells the
    one at t + 2.

    attention: its queries, keys and values read the token's vector and the state side by side.
    target_width: of the target's streams.   num_drafted: rows of the map to the vocabulary.
    keeps_normed: the residual is the state after its norm, not before.

    Shapes: states, tokens [T, D] -> [T, D].
    Source: Li et al. 2025, arXiv 2503.01840.
    """

    def __init__(
        self,
        width: int,
        *,
        target_width: int,
        num_drafted: int,
        epsilon: float,
        attention: GroupedAttention,
        mlp: GatedMLP,
        keeps_normed: bool = False,
    ) -> None:
        super().__init__()
        self.fuse = Linear(STREAMS * target_width, (width,))
        self.token_norm, self.state_norm = RMSNorm(width, epsilon), RMSNorm(width, epsilon)
        self.attention = attention
        self.mlp_norm, self.last_norm = RMSNorm(width, epsilon), RMSNorm(width, epsilon)
        self.mlp = mlp
        self.head: DenseWeight | Packed = DenseWeight(num_drafted, width)
        self.keeps_normed = keeps_normed

    @property
    def cache_spec(self) -> CacheSpec:
        """What it keeps of each token."""
        return self.attention.cache_spec

    def states_of(self, streams: Tensor) -> Tensor:
        """States by the target's streams side by side. Shapes: [T, 3 D, the target's] -> [T, D]."""
        return self.fuse(streams)

    def inputs(self, states: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """What attention reads [T, 2 D], and the residual it adds to [T, D]."""
        normed = self.state_norm(states)
        both = torch.cat((self.token_norm(tokens), normed), dim=-1)
        return both, normed if self.keeps_normed else states

    def heads(self, both: Tensor, step: Step) -> TurnedHeads:
        """What attention compares and mixes, for whoever keeps it otherwise than in pages.

        Shapes: both [T, 2 D], of inputs().
        """
        attention = self.attention
        size, groups = attention.head_size, attention.num_groups
        sizes = [attention.num_heads * size, groups * size, groups * size]
        parts = torch.split(attention.qkv(both), sizes, dim=-1)
        query, key, value = (part.view(len(both), -1, size) for part in parts)
        assert attention.frequencies is not None, "its heads turn"
        turn = angles(attention.frequencies, step.positions, step.declared_lengths, both.dtype)
        shared = attention.num_heads // groups
        return TurnedHeads(
            rotate(query, *turn),
            rotate(key, *turn).repeat_interleave(shared, dim=1),
            value.repeat_interleave(shared, dim=1),
        )

    def forward(self, states: Tensor, tokens: Tensor, step: Step) -> Tensor:
        """What follows each token, as a state. tokens: their vectors."""
        both, residual = self.inputs(states, tokens)
        frequencies = self.attention.frequencies
        assert frequencies is not None, "its heads turn"
        wide = torch.promote_types(both.dtype, torch.float32)
        rotation = angles(frequencies, step.positions, step.declared_lengths, wide)
        return self.finish(residual, self.attention(both, rotation, step, 0), step)

    def finish(self, residual: Tensor, update: Tensor, step: Step) -> Tensor:
        """The layer behind its attention. Shapes: [T, D] each -> [T, D]."""
        hidden, normed = add_and_norm_later(residual, update, self.mlp_norm)
        update = self.mlp(normed, step, 0)
        hidden = normed.total if isinstance(normed, LateNorm) else hidden  # there only now
        return hidden + update

    def read(self, states: Tensor) -> Tensor:
        """What states say, in the drafted vocabulary. Shapes: [R, D] -> [R, drafted]."""
        return project(self.last_norm(states), (self.head,), None)


class StatesOfStreams:
    """A speculator's states of streams that are given with each step: what can be recorded."""

    def __init__(self, module: Speculator) -> None:
        self._module = module

    def __call__(self, step: Step) -> Tensor:
        """Shapes: of streams [T, 3 D, the target's] -> [T, D]."""
        module = self._module
        return module.states_of(given_rows(step.token_ids, module.fuse.in_features))


class FromGivenStates:
    """A speculator's forward over states that are given with each step: what can be recorded.

    embedding: of the target, whose vectors of tokens it reads.
    """

    def __init__(self, module: Speculator, embedding: Embedding) -> None:
        self._module, self._embedding = module, embedding

    def __call__(self, step: Step) -> Tensor:
        """What the wanted rows say; step.streams is told the new states. Shapes: [R, drafted]."""
        module = self._module
        tokens = take_rows(self._embedding.table, step.token_ids)
        states = given_rows(step.token_ids, self._embedding.width)
        both, residual = module.inputs(states, tokens)
        frequencies = module.attention.frequencies
        assert frequencies is not None and step.streams is not None, "it is recorded so"
        rotation = angles(frequencies, step.positions, step.declared_lengths, torch.float32)
        made = module.finish(residual, module.attention(both, rotation, step, 0), step)
        step.streams(made, 0)
        return module.read(made[step.logit_rows])
