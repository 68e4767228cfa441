"""Rotary position embedding in plain PyTorch, for pairs in halves or side by side."""

from __future__ import annotations

import torch
from torch import Tensor


def cosines(
    positions: Tensor, inverse: Tensor, factor: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Cosine and sine of each position's angles, times a factor.

    Shapes: positions [T]; inverse, radians per position, [1, C'/2] or [T, C'/2] float64
            -> two of [T, C'/2] in dtype.
    """
    turned = positions.double()[:, None] * inverse
    return (turned.cos() * factor).to(dtype), (turned.sin() * factor).to(dtype)


def rotate(x_THC: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the pairs (i, i + C'/2) of each head; entries past C' pass unchanged.

    Shapes: x [T, H, C]; cos, sin [T, C'/2] with C' <= C -> [T, H, C].
    Source: Su et al. 2021, arXiv 2104.09864; half-split pairs as in Hugging Face Llama.
    """
    half = cos.shape[-1]
    cos, sin = cos[:, None, :].to(x_THC.dtype), sin[:, None, :].to(x_THC.dtype)
    first, second, rest = x_THC.tensor_split((half, 2 * half), dim=-1)
    turned = (first * cos - second * sin, second * cos + first * sin, rest)
    return torch.cat(turned, dim=-1)


def rotate_neighbours(x_THC: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the pairs (2i, 2i + 1) of each head; the first entries of all pairs come out first.

    The order is the same for queries and keys, so their products do not see it.

    Shapes: x [T, H, C']; cos, sin [T, C'/2] -> [T, H, C'].
    Source: DeepSeek-AI 2024, arXiv 2405.04434; Hugging Face apply_rotary_pos_emb_interleave.
    """
    halves = torch.cat((x_THC[..., 0::2], x_THC[..., 1::2]), dim=-1)
    return rotate(halves, cos, sin)
