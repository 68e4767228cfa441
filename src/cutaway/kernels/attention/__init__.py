"""Causal attention over a sequence's own tokens or over pages."""

from cutaway.kernels.attention.naive import naive_paged_attention
from cutaway.kernels.attention.plain import (
    SEGMENT,
    Scoring,
    attention,
    paged_attention,
    paged_latent_attention,
)

__all__ = [
    "SEGMENT",
    "Scoring",
    "attention",
    "naive_paged_attention",
    "paged_attention",
    "paged_latent_attention",
]
