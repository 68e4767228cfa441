"""Small integers packed into words of 32 bits, as GPTQ, AWQ and compressed-tensors store them."""

from __future__ import annotations

import torch
from torch import Tensor

WORD_BITS = 32


def unpack_words(words: Tensor, bits: int, *, dim: int) -> Tensor:
    """Each word's integers in turn along dim, the lowest bits first.

    Shapes: int32, size n along dim -> uint8, size n * 32 / bits.
    """
    shifts = torch.arange(0, WORD_BITS, bits, dtype=torch.int32)
    spread = words.movedim(dim, -1)[..., None] >> shifts  # signed: the mask cuts what comes in
    return (spread & ((1 << bits) - 1)).to(torch.uint8).flatten(-2).movedim(-1, dim)


def pack_words(quants: Tensor, bits: int, *, dim: int) -> Tensor:
    """The way back; what is missing in the last word is zeros.

    Shapes: uint8, size n along dim -> int32, size ceil(n * bits / 32).
    """
    per_word = WORD_BITS // bits
    spread = quants.movedim(dim, -1).to(torch.int64)
    missing = -spread.shape[-1] % per_word
    spread = torch.nn.functional.pad(spread, (0, missing))
    spread = spread.reshape(*spread.shape[:-1], -1, per_word)
    words = (spread << torch.arange(0, WORD_BITS, bits)).sum(-1)
    return words.to(torch.int32).movedim(-1, dim).contiguous()
