"""A rank's layers, where layers are divided among ranks: hidden rows go from each to the next.

Rank 0 has both tables and the first layers, and the rows of the last layer come back to it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from cutaway.blocks.positions import Frequencies
from cutaway.core.errors import ConfigError
from cutaway.core.layout import CacheSpec
from cutaway.kernels.gather import Gatherer, receive_rows, send_rows


@dataclass(frozen=True)
class LayerShare:
    """Which layers each rank has, as one of them sees it.

    width, dtype: of hidden rows.
    """

    group: Gatherer
    parts: tuple[range, ...]
    width: int
    dtype: torch.dtype

    @property
    def layers(self) -> range:
        """This rank's own."""
        return self.parts[self.group.rank]

    @property
    def is_first(self) -> bool:
        """Whether this rank has the tables too."""
        return self.group.rank == 0

    def begin(self, like: Tensor) -> Tensor:
        """The rows behind the layer before this rank's first.

        like: anything of the step's length.   Shapes: [T, ...] -> [T, D].
        """
        before = self.group.rank - 1
        return receive_rows(like, self.group, before, self.width, self.dtype)

    def end(self, hidden: Tensor) -> Tensor:
        """Hand rows on to who has the next layer; the same rows. Shapes: [T, D]."""
        assert hidden.dtype == self.dtype, f"rows are {hidden.dtype} and not {self.dtype}"
        return send_rows(hidden, self.group, (self.group.rank + 1) % self.group.size)

    def close(self, handed_on: Tensor) -> Tensor:
        """The rows behind the last layer, in rank 0 again. Shapes: [T, D]."""
        last = self.group.size - 1
        return receive_rows(handed_on, self.group, last, self.width, self.dtype)


class _ElsewhereAttention(nn.Module):
    """What is known here of an attention that another rank has."""

    def __init__(self, cache_spec: CacheSpec, frequencies: Frequencies | None) -> None:
        super().__init__()
        self.cache_spec, self.frequencies = cache_spec, frequencies

    def __getattr__(self, name: str) -> nn.Module:
        raise _missing(name)


class ElsewhereBlock(nn.Module):
    """A layer that another rank has: what its pages are is known here, and nothing else."""

    def __init__(self, cache_spec: CacheSpec, frequencies: Frequencies | None) -> None:
        super().__init__()
        self.attention = _ElsewhereAttention(cache_spec, frequencies)

    def __getattr__(self, name: str) -> nn.Module:
        if name == "attention":
            return cast(nn.Module, self._modules["attention"])
        raise _missing(name)


class ElsewhereTable(nn.Module):
    """A table that rank 0 has."""

    def __getattr__(self, name: str) -> nn.Module:
        raise _missing(name)


def _missing(name: str) -> Exception:
    """Of what is not there: Python's own words where it asks by itself."""
    if name.startswith("_") or name == "num_bytes":
        return AttributeError(name)
    return ConfigError(
        f"this reads {name} of a layer that another rank has. Start with pipeline 1 for it."
    )
