"""How a model computes in training: products in bfloat16, blocks compiled or computed again.

Weights, moments and gradients stay float32 in every form; norms, rotation, softmax and losses too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import checkpoint

from cutaway.blocks.attention.grouped import GroupedAttention
from cutaway.blocks.attention.latent import LatentAttention
from cutaway.blocks.block import Block
from cutaway.blocks.linear import Linear
from cutaway.blocks.mlp import GatedMLP, PlainMLP
from cutaway.blocks.norm import RMSNorm
from cutaway.blocks.transformer import Transformer
from cutaway.core.layout import Window
from cutaway.core.step import Step
from cutaway.quantize.adapted import Adapted
from cutaway.quantize.dense import DenseWeight
from cutaway.quantize.dense_stack import DenseStack

Form = tuple[object, ...]

MOST_FIRST = 4096  # rows for which blocks are compiled: sums of fewer have too few parts for a GPU
# Norms' gradients as one pass over rows and columns are made for some numbers of rows alone.
_OPTIONS = {"triton.mix_order_reduction": False}


def multiply_in(transformer: nn.Module, dtype: torch.dtype) -> None:
    """Let every matrix multiply numbers of that type; what is kept of it stays as it is.

    Norms that matrices alone read give such numbers too: they would be rounded to them next.
    """
    for module in transformer.modules():
        if isinstance(module, DenseWeight | DenseStack):
            module.product_dtype = dtype
        if isinstance(module, Block) and _multiplies_norms(module):
            for norm in (module.attention_norm, module.mlp_norm):
                if isinstance(norm, RMSNorm):
                    norm.product_dtype = dtype


def _multiplies_norms(block: Block) -> bool:
    """Whether nothing but matrices that are kept as they are reads a block's norms."""
    attention, mlp = block.attention, block.mlp
    if not (isinstance(attention, GroupedAttention) and isinstance(mlp, GatedMLP | PlainMLP)):
        return False
    first = mlp.gate_up if isinstance(mlp, GatedMLP) else mlp.up
    return _is_dense(attention.qkv) and _is_dense(first)


def _is_dense(linear: Linear) -> bool:
    """Whether its matrices are kept as they are, with a pair that is trained beside them or not."""
    bases = [each.base if isinstance(each, Adapted) else each for each in linear.segments]
    return linear.pairs is None and all(isinstance(each, DenseWeight) for each in bases)


def can_capture(transformer: Transformer) -> bool:
    """Whether the kernels of a forward and backward follow from its sequences' lengths alone.

    For lengths that are all one. Experts ask who went where; other forms of attention go sequence
    by sequence.
    """
    return transformer.layer_inputs is None and all(
        isinstance(block, Block)
        and isinstance(block.mlp, GatedMLP | PlainMLP)
        and isinstance(block.attention, GroupedAttention)
        and block.attention.cap is None
        and block.attention.sinks is None
        and not (isinstance(block.attention.extent, Window) and block.attention.extent.sinks)
        for block in transformer.blocks
    )


def recompute_blocks(transformer: Transformer) -> None:
    """Keep of each block its input alone; the rest is computed again for its gradient."""
    for block in transformer.blocks:
        block.forward = partial(
            checkpoint.checkpoint, block.forward, use_reentrant=False, preserve_rng_state=False
        )


def compile_blocks(
    transformer: Transformer,
    *,
    rows: int = MOST_FIRST,
    backend: str | Callable[..., Any] = "inductor",
) -> None:
    """Compile each block by torch.compile, and forget what this process compiled before.

    Attention stays as it is between two compiled parts: it is fused already, and the lengths of the
    sequences would be compiled into it. The parts are compiled for any number of tokens before the
    first step: what they become hangs on the numbers that come first, and a run that goes on would
    have other bits than one that was never stopped.

    rows: of tokens, for which they are compiled; at least 3.
    """
    torch.compiler.reset()
    for module in transformer.modules():
        if isinstance(module, GroupedAttention | LatentAttention):
            eager: Any = torch.compiler.disable(_contiguous(module.over_own))
            module.over_own = eager
    for block in transformer.blocks:
        block.compile(backend=backend, options=_options(backend))
    transformer.__dict__["hidden"] = partial(_hidden, transformer.hidden, rows, set[Form]())


def _options(backend: str | Callable[..., Any]) -> dict[str, Any] | None:
    return _OPTIONS if backend == "inductor" else None


def _hidden(hidden: Callable[[Step], Tensor], rows: int, seen: set[Form], step: Step) -> Tensor:
    """hidden(step), after such steps where something else than the lengths is new."""
    form = (torch.is_grad_enabled(), step.trains, step.streams is None)
    if form not in seen:
        seen.add(form)
        longest = max(step.plan.query_lengths)  # which the model takes
        for number in (rows - 1, rows):
            lengths = [min(longest, number - start) for start in range(0, number, longest)]
            first = Step.without_cache(
                [[0] * length for length in lengths],
                device=step.token_ids.device,
                trains=step.trains,
            )
            hidden(replace(first, streams=step.streams))
    return hidden(step)


def _contiguous(over_own: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The same with a result that lies alike by whatever form: what follows is compiled for it."""

    def laid(*given: Any, **named: Any) -> Tensor:
        return over_own(*given, **named).contiguous()

    return laid
