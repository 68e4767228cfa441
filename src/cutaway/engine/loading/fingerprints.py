"""A number for each stored matrix or vector of a model, which any changed bit changes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import numpy as np
import torch
from torch import Tensor

from cutaway.host.turns import breathe
from cutaway.quantize.packed import Packed
from cutaway.quantize.packed_stack import PackedStack

_PIECE_WORDS = 2**21  # 16 MiB: two milliseconds of sums


def fingerprints(model: torch.nn.Module) -> dict[str, int]:
    """A number per stored matrix or vector that any changed bit changes.

    The sum of its 64-bit words modulo 2^64: a bit counts 2^k, which is never 0 there.
    """
    tensors: dict[str, Tensor] = dict(model.named_parameters())
    modules = cast("Iterator[tuple[str, torch.nn.Module]]", model.named_modules())
    for name, module in modules:
        if isinstance(module, Packed):
            tensors[name] = module.packed.data
        if isinstance(module, PackedStack):
            tensors[name] = module.stack.data
    return {name: _sum_of_words(tensor.detach()) for name, tensor in tensors.items()}


def _sum_of_words(tensor: Tensor) -> int:
    data = as_bytes(tensor)
    end = data.numel() // 8 * 8
    words, rest = data[:end].view(torch.int64), int(data[end:].to(torch.int64).sum())
    starts = range(0, words.numel(), _PIECE_WORDS)
    return (sum(_sum(words[at : at + _PIECE_WORDS]) for at in starts) + rest) % 2**64


def _sum(words: Tensor) -> int:
    """The sum of 64-bit words modulo 2^64; between two, others may have a turn."""
    breathe()
    # numpy adds 8 GB/s here, torch 2.2: 0.1 s of a start.
    return int(np.add.reduce(words.numpy())) if words.device.type == "cpu" else int(words.sum())


def as_bytes(numbers: Tensor) -> Tensor:
    """All bytes of a tensor, in its order."""
    return numbers.contiguous().view(torch.uint8).flatten()
