"""Weights drawn at random, for trying an architecture whose weights are not at hand.

The same seed and name give the same tensor, whatever else is drawn.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Mapping

import torch
from torch import Tensor

from cutaway.core.weight_targets import Target
from cutaway.quantize.scheme import Quantized


class RandomWeights:
    """One tensor per target: matrices of variance 1 / columns, norms at rest, biases near 0.

    With that variance a matrix keeps the size of what it multiplies, so that activations of an
    untrained model neither grow nor vanish with depth.
    """

    def __init__(self, targets: Mapping[str, Target], *, seed: int = 0) -> None:
        self._targets = targets
        self._seed = seed

    @property
    def file(self) -> str:
        """What messages call it: the seed."""
        return f"random weights of seed {self._seed}"

    def names(self) -> Collection[str]:
        """Every tensor's name."""
        return self._targets.keys()

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of the model's own tensor."""
        return self._targets[name].shape

    def check(self, name: str) -> None:
        """Assert that the model has a tensor of that name."""
        assert name in self._targets, f"{name} is no target"

    def tensor(self, name: str) -> Tensor:
        """The same numbers for a seed and a name, whatever else is asked for. Units: float32."""
        shape = self.shape(name)
        if len(shape) == 1 and not name.endswith("bias"):
            return torch.full(shape, self._targets[name].rest)
        digest = hashlib.sha256(f"{self._seed}:{name}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little"))
        # 0.02 is the spread from which GPT-2 and most models since start their biases or tables.
        spread = 0.02 if len(shape) == 1 else 1 / math.sqrt(shape[-1])
        return torch.randn(shape, generator=generator).mul_(spread)

    def get_quantized(self, name: str) -> Quantized | None:
        """None: random numbers have all their bits."""
        return None

    def release(self, name: str) -> None:
        """Nothing: no tensor is kept."""
        pass  # nothing is kept
