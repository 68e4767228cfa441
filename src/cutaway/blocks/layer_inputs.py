"""Per-layer inputs: small vectors by token, from a table of their own, one for every layer."""

from __future__ import annotations

import math

from torch import Tensor, nn

from cutaway.blocks.activations import Gate
from cutaway.blocks.embedding import round_factor
from cutaway.blocks.linear import Linear
from cutaway.blocks.slots import Norm
from cutaway.core.step import Step
from cutaway.kernels.linear import take_rows
from cutaway.quantize.dense import DenseWeight


class LayerInputs(nn.Module):
    """The per-layer inputs of all layers: rows of a table, and a map of the embedding, normed.

    Letters: P numbers per layer.
    Shapes: the embedding's hidden [T, D] -> [T, L, P].
    Source: transformers' Gemma4TextModel (project_per_layer_inputs).
    """

    def __init__(
        self, vocab_size: int, width: int, *, num_layers: int, inner: int, norm: Norm
    ) -> None:
        super().__init__()
        self.shape = (num_layers, inner)
        self.table = DenseWeight(vocab_size, num_layers * inner)
        self.projection = Linear(width, (num_layers * inner,))
        self.norm = norm
        self.width = width

    def forward(self, hidden: Tensor, step: Step) -> Tensor:
        """Every layer's input of the step's tokens; hidden is their embedding."""
        rows = take_rows(self.table, step.token_ids)
        rows = rows * round_factor(math.sqrt(self.shape[1]), rows.dtype)
        shape = (len(rows), *self.shape)
        context = self.norm((self.projection(hidden) * self.width**-0.5).view(shape))
        return (context + rows.view(shape)) * 2.0**-0.5


class LayerInput(nn.Module):
    """One layer's use of its per-layer input: gated by the stream, and mapped back into it.

    Shapes: hidden [T, D], per_layer_input [T, P] -> [T, D].
    """

    def __init__(self, width: int, inner: int, *, gate: Gate, norm: Norm) -> None:
        super().__init__()
        self.gate_rows = Linear(width, (inner,))
        self.projection = Linear(inner, (width,))
        self.gate, self.norm = gate, norm

    def forward(self, hidden: Tensor, per_layer_input: Tensor, adapters: Tensor | None) -> Tensor:
        """What the layer adds to the stream."""
        gated = self.gate(self.gate_rows(hidden, adapters), per_layer_input)
        return self.norm(self.projection(gated, adapters))
