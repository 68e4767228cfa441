"""How a model computes in training: products in bfloat16, blocks compiled or computed again.

Weights, moments and gradients stay float32 in every form; norms, rotation, softmax and losses too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import checkpoint

from cutaway.blocks.attention.grouped import GroupedAttention
from cutaway.blocks.attention.latent import LatentAttention
from cutaway.blocks.transformer import Transformer
from cutaway.core.step import Step
from cutaway.quantize.dense import DenseWeight
from cutaway.quantize.dense_stack import DenseStack

Compiler = Callable[[Callable[..., Any]], Callable[..., Any]]
Form = tuple[object, ...]

_COMPILER = "compiled_by"
MOST_FIRST = 4096  # rows for which blocks are compiled: sums of fewer have too few parts for a GPU
# Norms' gradients as one pass over rows and columns are made for some numbers of rows alone.
_OPTIONS = {"triton.mix_order_reduction": False}


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
    transformer.__dict__[_COMPILER] = _compiler(rows, backend)


def compiler_of(transformer: nn.Module) -> Compiler | None:
    """What compiles as a model's blocks were compiled; None where they were not."""
    return transformer.__dict__.get(_COMPILER)


def _compiler(rows: int, backend: str | Callable[..., Any]) -> Compiler:
    """What compiles functions of tensors with the same number of rows, for any number of them."""

    @cache
    def made(function: Callable[..., Any]) -> Callable[..., Any]:
        compiled = torch.compile(function, backend=backend, options=_options(backend))
        return partial(_call, compiled, rows, set[Form]())

    return made


def _options(backend: str | Callable[..., Any]) -> dict[str, Any] | None:
    return _OPTIONS if backend == "inductor" else None


def _call(function: Callable[..., Any], rows: int, seen: set[Form], *given: Any) -> Any:
    """function(*given), after calls with zeros where something else than the rows is new.

    The first is compiled for its number of rows, the second for any. No gradient goes through.
    """
    given = tuple(each.detach() if isinstance(each, Tensor) else each for each in given)
    form = tuple(
        (each.dtype, each.device, each.shape[1:]) if isinstance(each, Tensor) else each
        for each in given
    )
    if form not in seen:
        seen.add(form)
        for number in (rows - 1, rows):
            function(
                *(
                    each.new_zeros(number, *each.shape[1:]) if isinstance(each, Tensor) else each
                    for each in given
                )
            )
    return function(*given)


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
