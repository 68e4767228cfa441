"""Causal attention over a sequence's own tokens or over pages."""

from cutaway.kernels.attention.plain import (
    SEGMENT,
    attention,
    paged_attention,
    paged_latent_attention,
)

__all__ = ["SEGMENT", "attention", "paged_attention", "paged_latent_attention"]
