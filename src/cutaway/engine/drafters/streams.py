"""The streams that a step left behind some layers, for a drafter that reads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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

    def leave(self, streams: Mapping[int, Tensor], num_tokens: int) -> None:
        """Where a step has left its streams until the next one. Shapes: [room, D] each."""
        self._values = {layer: streams[layer][:num_tokens] for layer in set(self.layers)}

    def take(self) -> Tensor | None:
        """All of them side by side, once; None where no step left any. Shapes: [T, layers D]."""
        values, self._values = self._values, {}
        if len(values) < len(set(self.layers)):
            return None
        return torch.cat([values[layer] for layer in self.layers], dim=-1)

    def drop(self) -> None:
        """Forget them: nobody reads this step's."""
        self._values = {}
