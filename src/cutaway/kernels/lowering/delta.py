"""The native form of gated delta layers, whose states stay in their pages."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from cutaway.core.step import Step
from cutaway.kernels import native
from cutaway.kernels.delta import DeltaWeights
from cutaway.kernels.lowering.forms import Forms, NativeCall, Place
from cutaway.kernels.lowering.rows import is_apart, rows_of
from cutaway.kernels.native.structs import Rows
from cutaway.kernels.recording import Call, Recorded


def run_sequences(
    forms: Forms,
    call: Call,
    *inputs: Any,
    weights: DeltaWeights,
    step: Step,
    layer: int,
) -> NativeCall | None:
    """Tokens through their states, from the convolution on."""
    del forms
    cache = step.caches[layer]
    states, kept = cache.fields["state"], cache.fields["inputs"]
    are_placed = all(is_apart(each) and each.dim() == 3 for each in inputs)
    are_floats = states.dtype == kept.dtype == torch.float32
    if not (are_placed and are_floats) or cache.group >= native.MAX_GROUPS:
        return None
    if any(rows_of(each) is Rows.LOGITS for each in inputs):
        return None
    pages = native.StatePages(states, kept, cache.group, cache.page_size)
    learned = native.NativeDeltaWeights(*(_plain(each) for each in vars(weights).values()))
    out: Recorded = call.results

    def make(place: Place) -> list[native.Operation]:
        read = native.DeltaInputs(*(place(each) for each in inputs))
        return [native.delta(read, learned, pages, out=place(out))]

    return NativeCall(tuple(inputs), (out,), make)


def _plain(weight: Tensor) -> Tensor:
    return weight.detach().contiguous()
