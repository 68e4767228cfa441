"""Bytes and operations computed from a model's facts, once for calculator, pool and views."""

from __future__ import annotations

from typing import Protocol

from cutaway.core.facts import ModelFacts
from cutaway.core.layout import CacheSpec


class Cached(Protocol):
    """Loaded facts or a shape read from a configuration."""

    @property
    def cache_specs(self) -> tuple[CacheSpec, ...]: ...


def cache_bytes_per_token(facts: Cached, dtype: str) -> int:
    """Bytes that one token takes in the cache, all layers."""
    return sum(spec.bytes_per_token(dtype) for spec in facts.cache_specs)


def weight_bytes(facts: ModelFacts, bytes_per_parameter: float) -> int:
    """Bytes of all parameters at a given width; quantized files report their own."""
    return round(facts.num_parameters * bytes_per_parameter)
