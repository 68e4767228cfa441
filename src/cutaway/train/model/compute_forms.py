"""How a model computes in training: products in bfloat16, blocks compiled or computed again.

Weights, moments and gradients stay float32 in every form; norms, rotation, softmax and losses too.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils import checkpoint

from cutaway.blocks.attention.grouped import GroupedAttention
from cutaway.blocks.attention.latent import LatentAttention
from cutaway.blocks.transformer import Transformer
from cutaway.quantize.dense import DenseWeight
from cutaway.quantize.dense_stack import DenseStack

_BACKEND = "compiled_by"


def multiply_in(transformer: nn.Module, dtype: torch.dtype) -> None:
    """Let every matrix multiply numbers of that type; what is kept of it stays as it is."""
    for module in transformer.modules():
        if isinstance(module, DenseWeight | DenseStack):
            module.product_dtype = dtype


def recompute_blocks(transformer: Transformer) -> None:
    """Keep of each block its input alone; the rest is computed again for its gradient."""
    for block in transformer.blocks:
        block.forward = partial(
            checkpoint.checkpoint, block.forward, use_reentrant=False, preserve_rng_state=False
        )


def compile_blocks(transformer: Transformer, *, backend: str = "inductor") -> None:
    """Compile each block by torch.compile.

    Attention stays as it is between two compiled parts: it is fused already, and the lengths of the
    sequences would be compiled into it. The first number of tokens is compiled as it is; when
    another comes the parts are compiled once more, for any.
    """
    for module in transformer.modules():
        if isinstance(module, GroupedAttention | LatentAttention):
            eager: Any = torch.compiler.disable(module.over_own)
            module.over_own = eager
    for block in transformer.blocks:
        block.compile(backend=backend)
    transformer.__dict__[_BACKEND] = backend


def backend_of(transformer: nn.Module) -> str | None:
    """By what a model's blocks were compiled; None where they were not."""
    return transformer.__dict__.get(_BACKEND)
