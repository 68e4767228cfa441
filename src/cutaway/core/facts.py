"""What an architecture says of itself, as numbers: the source for arithmetic, memory and views."""

from __future__ import annotations

from dataclasses import dataclass

from cutaway.core.layout import CacheSpec


@dataclass(frozen=True, kw_only=True)
class ModelFacts:
    """Sizes of one model. Letters of the house style in brackets."""

    architecture: str
    vocab_size: int  # V
    max_length: int  # tokens of prompt and answer together that the model was made for
    num_layers: int  # L
    width: int  # D
    num_heads: int  # H
    num_groups: int  # G
    head_size: int  # C
    inner: int  # F
    is_tied: bool  # whether the unembedding is the embedding
    num_parameters: int
    cache_specs: tuple[CacheSpec, ...]
