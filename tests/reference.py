"""A Llama forward in float64, written apart from the package: the truth that errors are taken from.

Reads a GGUF file through the public gguf package and works on interleaved rotary pairs, as the
file stores them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

ROWS = 100


@dataclass(frozen=True)
class Float64Llama:
    """Weights and sizes of a GGUF Llama file."""

    path: Path

    @cached_property
    def _reader(self) -> Any:
        from gguf import GGUFReader

        return GGUFReader(str(self.path))

    @cached_property
    def weights(self) -> dict[str, Tensor]:
        """Every tensor dequantized to float32, rows first."""
        from gguf.quants import dequantize

        return {
            tensor.name: torch.tensor(dequantize(tensor.data, tensor.tensor_type)).reshape(
                [int(size) for size in tensor.shape[::-1]]
            )
            for tensor in self._reader.tensors
        }

    def number(self, name: str) -> float:
        return self._reader.fields[f"llama.{name}"].contents()

    def logits(self, token_ids: list[int], rows: Sequence[int] | None = None) -> Tensor:
        """Logits of every position, or of some. Shapes: [R, V] float64."""
        weights = self.weights
        heads, groups = (
            int(self.number("attention.head_count")),
            int(self.number("attention.head_count_kv")),
        )
        epsilon = self.number("attention.layer_norm_rms_epsilon")
        base = self.number("rope.freq_base")
        hidden = weights["token_embd.weight"][token_ids].double()
        length, size = len(token_ids), hidden.shape[1] // heads
        pairs = torch.arange(0, size, 2, dtype=torch.float64) / size
        turns = torch.arange(length, dtype=torch.float64)[:, None] * base**-pairs
        cos, sin = turns.cos()[:, None], turns.sin()[:, None]

        def norm(x: Tensor, name: str) -> Tensor:
            scale = torch.rsqrt(x.square().mean(-1, keepdim=True) + epsilon)
            return x * scale * weights[name].double()

        def turn(x: Tensor) -> Tensor:
            even, odd = x[..., 0::2], x[..., 1::2]
            return torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(-2)

        future = torch.ones(length, length, dtype=torch.bool).triu(1)
        for layer in range(int(self.number("block_count"))):

            def times(x: Tensor, name: str, at: str = f"blk.{layer}.") -> Tensor:
                return x @ weights[at + name + ".weight"].double().T

            normed = norm(hidden, f"blk.{layer}.attn_norm.weight")
            query = turn(times(normed, "attn_q").view(length, heads, size))
            key = turn(times(normed, "attn_k").view(length, groups, size))
            value = times(normed, "attn_v").view(length, groups, size)
            mixed = torch.empty_like(query)
            # Rows by the hundred see half of what a square of scores would hold.
            for head, first in product(range(heads), range(0, length, ROWS)):
                group, last = head // (heads // groups), min(first + ROWS, length)
                scores = query[first:last, head] @ key[:last, group].T / math.sqrt(size)
                seen = scores.masked_fill(future[first:last, :last], -math.inf).softmax(-1)
                mixed[first:last, head] = seen @ value[:last, group]
            hidden = hidden + times(mixed.flatten(1), "attn_output")
            normed = norm(hidden, f"blk.{layer}.ffn_norm.weight")
            gate = times(normed, "ffn_gate")
            hidden = hidden + times(gate * gate.sigmoid() * times(normed, "ffn_up"), "ffn_down")
        chosen = hidden if rows is None else hidden[list(rows)]
        return norm(chosen, "output_norm.weight") @ weights["token_embd.weight"].double().T
