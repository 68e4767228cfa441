"""A gated short convolution in place of attention: it sees a sequence's last few tokens.

Each page of its cache group holds the last inputs up to the page's last token so far.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from cutaway.blocks.linear import Linear
from cutaway.blocks.positions import Frequencies
from cutaway.blocks.slots import Cosines
from cutaway.core.layout import CacheSpec
from cutaway.core.shapes import ConvolutionShape
from cutaway.core.step import Step
from cutaway.kernels.convolution import convolve_sequences


class ShortConvolution(nn.Module):
    """after * convolution(before * x), of which one matrix makes all three.

    Shapes: hidden [T, D] -> [T, D].
    Source: transformers' Lfm2ShortConv.
    """

    frequencies: Frequencies | None = None

    def __init__(self, width: int, sizes: ConvolutionShape) -> None:
        super().__init__()
        self.sizes, has_bias = sizes, sizes.has_bias
        self.reader = Linear(width, (3 * width,), has_bias=has_bias)
        self.convolution = nn.Parameter(torch.zeros(width, 1, sizes.kernel))
        self.bias = nn.Parameter(torch.zeros(width)) if has_bias else None
        self.output = Linear(width, (width,), has_bias=has_bias)

    @property
    def cache_spec(self) -> CacheSpec:
        """What the layer keeps of each sequence: a few inputs, whatever its length."""
        return self.sizes.state_spec

    def forward(self, hidden: Tensor, rotation: Cosines | None, step: Step, layer: int) -> Tensor:
        """Mix each sequence's last tokens, channel by channel. Shapes: hidden [T, D] -> [T, D]."""
        before, after, x = self.reader(hidden, step.adapters).chunk(3, dim=-1)
        mixed = convolve_sequences(
            before * x, self.convolution[:, 0], self.bias, step=step, layer=layer
        )
        # All channels are one head to those who look.
        heads = step.tap("blocks.attention.mixed", mixed.unsqueeze(1), layer)
        return self.output(after * heads.flatten(1), step.adapters)
