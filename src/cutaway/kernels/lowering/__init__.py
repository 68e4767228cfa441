"""What a forward did, in native operations where there are such; the rest stays calls of torch.

Calls are gone through from the last to the first: one that has a native form takes calls before it
along, where their results go nowhere else. So a norm becomes the first part of a product, a sum its
last, and norm, rotation, store and attention one operation. Where a tap reads a value in between,
that value is made, and the parts run one by one: the same bits.

A new native operation is a form here, in the table below, by the function that it stands for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor

from cutaway.host.turns import breathe
from cutaway.kernels.attention import paged_attention, paged_latent_attention
from cutaway.kernels.convolution import convolve_sequences
from cutaway.kernels.delta import run_sequences
from cutaway.kernels.experts import (
    add_results,
    choose_experts,
    mix_experts,
    multiply_units,
    score_experts,
)
from cutaway.kernels.given_rows import given_rows
from cutaway.kernels.linear import project, project_heads, take_rows
from cutaway.kernels.lowering import convolution, delta, experts, heads, latent, products
from cutaway.kernels.lowering.forms import NORMS, Forms, NativeCall
from cutaway.kernels.recording import Call, Recorded, Recording, tell_stream
from cutaway.kernels.rotary import rotate, rotate_neighbours

__all__ = ["Lowered", "NativeCall", "lower"]

Lowered = NativeCall | Call
# Given the call and its own arguments; None where they are not those of the native operation.
_Form = Callable[..., NativeCall | None]
_FORMS: Final[Mapping[Any, _Form]] = {
    take_rows: products.gather,
    Tensor.mul: products.multiply,
    Tensor.add: products.add,
    Tensor.__getitem__: products.take,
    project: products.product,
    **dict.fromkeys(products.GATES, products.gate),
    **dict.fromkeys(products.ACTIVATIONS, products.activate),
    **dict.fromkeys(NORMS, products.norm),
    score_experts: experts.score,
    choose_experts: experts.choose,
    mix_experts: experts.mix,
    multiply_units: experts.multiply_units,
    add_results: experts.add_results,
    rotate: heads.turn,
    rotate_neighbours: heads.turn,
    paged_attention: heads.attend,
    project_heads: latent.project,
    torch.cat: latent.join,
    paged_latent_attention: latent.attend,
    run_sequences: delta.run_sequences,
    convolve_sequences: convolution.convolve,
    given_rows: products.bring,
    tell_stream: products.leave,
}


def lower(recording: Recording, result: Recorded, *, max_length: int) -> list[Lowered]:
    """What gives a result, and the effects of a step, in order.

    max_length: positions are below it.
    """
    calls = _live(recording.calls, result)
    forms = Forms(recording, calls, result, max_length=max_length)
    lowered: list[Lowered] = []
    for call in reversed(forms.calls):
        breathe()
        if call not in forms.absorbed:
            form = _FORMS.get(call.function)
            made = None if form is None else form(forms, call, *call.args, **call.kwargs)
            lowered.append(call if made is None else made)
    return _wanted(lowered, result)


def _live(calls: Sequence[Call], result: Recorded) -> list[Call]:
    """The calls that the result or an effect hangs on, in order."""
    needed = {result.root}
    live: list[Call] = []
    for call in reversed(calls):
        if call.has_effect or any(each.root in needed for each in call.values):
            live.append(call)
            needed.update(each.root for each in call.reads())
    return live[::-1]


def _wanted(backwards: Sequence[Lowered], result: Recorded) -> list[Lowered]:
    """What is still read once native operations stand for some calls, in order."""
    read, roots = {result}, {result.root}
    wanted: list[Lowered] = []
    for each in backwards:
        if isinstance(each, NativeCall):
            reads = each.reads
        else:
            # A view is made by torch for torch alone: native operations address its root.
            made = read.intersection(each.values) if each.is_view else each.values
            if not each.has_effect and not any(value.root in roots for value in made):
                continue
            reads = tuple(each.reads())
            read.update(reads)
        roots.update(value.root for value in reads)
        wanted.append(each)
    return wanted[::-1]
