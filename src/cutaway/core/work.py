"""Bytes and operations computed from a model's facts, once for calculator, pool and views."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from cutaway.core.facts import ModelFacts
from cutaway.core.layout import CacheSpec, Extent, Window
from cutaway.core.shapes import seen_pairs


class Cached(Protocol):
    """Loaded facts or a shape read from a configuration."""

    @property
    def cache_specs(self) -> tuple[CacheSpec, ...]:
        """What each layer that keeps something keeps of a token."""
        ...


def cache_bytes_per_token(facts: Cached, dtype: str) -> int:
    """Bytes that one token takes in the cache, all layers."""
    return sum(spec.bytes_per_token(dtype) for spec in facts.cache_specs)


def weight_bytes(facts: ModelFacts, bytes_per_parameter: float) -> int:
    """Bytes of all parameters at a given width; quantized files report their own."""
    return round(facts.num_parameters * bytes_per_parameter)


# What a part of a step costs, in the order in which data passes.
STAGES = ("embedding", "attention", "mlp", "unembedding")


@dataclass(frozen=True)
class Work:
    """Bytes and operations, apart by what they are spent on: each kind has a rate of its own.

    weight_bytes: of matrices, read once in a step and shared by its tokens.
    cache_bytes:  of keys and values read and written.
    matrix_flops: products of tokens with matrices.   pair_flops: of queries with keys and values.
    """

    weight_bytes: float = 0.0
    cache_bytes: float = 0.0
    matrix_flops: float = 0.0
    pair_flops: float = 0.0

    @property
    def num_bytes(self) -> float:
        """Bytes read and written, of both kinds."""
        return self.weight_bytes + self.cache_bytes

    @property
    def flops(self) -> float:
        """Operations of both kinds."""
        return self.matrix_flops + self.pair_flops

    @property
    def intensity(self) -> float:
        """Operations per byte; 0 where nothing is read."""
        return self.flops / self.num_bytes if self.num_bytes else 0.0

    def __add__(self, other: Work) -> Work:
        return Work(*(left + right for left, right in zip(self.kinds, other.kinds, strict=True)))

    @property
    def kinds(self) -> tuple[float, float, float, float]:
        """All four numbers, in the order of the fields."""
        return (self.weight_bytes, self.cache_bytes, self.matrix_flops, self.pair_flops)


@dataclass(frozen=True)
class Matrices:
    """Weights of one stage.

    num_bytes: read by every step.   values: multiplications per token.
    expert_bytes: of all experts, of which a token uses `used` of `every`.
    """

    num_bytes: int = 0
    values: int = 0
    expert_bytes: int = 0
    used: int = 1
    every: int = 1

    def read(self, num_tokens: int) -> float:
        """Bytes that a step reads, if its tokens choose as differently as can be."""
        chosen = min(self.every, num_tokens * self.used)
        return self.num_bytes + self.expert_bytes * chosen / self.every

    def work(self, count: int, num_tokens: int) -> Work:
        """For count of a step's tokens."""
        if not count:
            return Work()
        share = self.read(num_tokens) * count / num_tokens
        return Work(weight_bytes=share, matrix_flops=2.0 * self.values * count)


@dataclass(frozen=True)
class CacheReads:
    """What layers that are alike read of earlier tokens.

    bytes_per_token: kept of a token, in one layer.   state_bytes: of a layer with a state instead.
    pair_values:     multiplications of a query with one token's keys and values, all heads.
    """

    extent: Extent
    num_layers: int
    bytes_per_token: int
    pair_values: int
    state_bytes: int = 0

    def work(self, start: int, end: int) -> Work:
        """For tokens start to end of a sequence: all they see is read once, their own is written.

        Kernels that read keys again for every block of queries find them in a cache.
        """
        if self.state_bytes:
            return Work(cache_bytes=2.0 * self.state_bytes * self.num_layers)
        hidden = 0  # tokens that no query of the part sees
        if isinstance(self.extent, Window):
            hidden = max(0, start - self.extent.width + 1 - self.extent.sinks)
        moved = end - hidden + (end - start)
        pairs = seen_pairs(self.extent, end) - seen_pairs(self.extent, start)
        return Work(
            cache_bytes=float(moved * self.bytes_per_token * self.num_layers),
            pair_flops=2.0 * pairs * self.pair_values * self.num_layers,
        )


@dataclass(frozen=True)
class ModelWork:
    """A loaded model, as far as its steps' bytes and operations follow from it.

    row_bytes: of the embedding, per token.
    """

    row_bytes: float
    attention: Matrices
    mlp: Matrices
    unembedding: Matrices
    cache_reads: tuple[CacheReads, ...]

    def part(
        self, start: int, end: int, num_rows: int, *, num_tokens: int, all_rows: int
    ) -> tuple[Work, ...]:
        """What tokens start to end of a sequence cost in a step, by STAGES.

        num_rows: of them that give logits.   num_tokens, all_rows: of the whole step.
        """
        count = end - start
        attention = self.attention.work(count, num_tokens)
        for each in self.cache_reads:
            attention += each.work(start, end)
        return (
            Work(weight_bytes=self.row_bytes * count),
            attention,
            self.mlp.work(count, num_tokens),
            self.unembedding.work(num_rows, all_rows),
        )

    def alone(self, start: int, end: int, num_rows: int = 1) -> Work:
        """A step that computes nothing else."""
        parts = self.part(start, end, num_rows, num_tokens=end - start, all_rows=num_rows)
        return sum(parts, Work())
