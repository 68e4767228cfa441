"""The streams that a step left behind some layers, for a drafter that reads them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class Streams:
    """Keeps what the latest step left behind each of some layers."""

    def __init__(self, layers: Sequence[int]) -> None:
        self.layers = tuple(layers)
        self._values: dict[int, Tensor] = {}

    def __call__(self, stream: Tensor, layer: int) -> None:
        """Keep a stream if it is wanted. Shapes: [T, D]."""
        if layer in self.layers:
            self._values[layer] = stream.clone()

    def take(self) -> Tensor | None:
        """All of them side by side, once; None where no step left any. Shapes: [T, layers D]."""
        values, self._values = self._values, {}
        if len(values) < len(set(self.layers)):
            return None
        return torch.cat([values[layer] for layer in self.layers], dim=-1)
