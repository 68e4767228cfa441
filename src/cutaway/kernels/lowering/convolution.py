"""The native form of short convolutions, whose last inputs stay in their pages."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from cutaway.core.step import Step
from cutaway.kernels import native
from cutaway.kernels.lowering.forms import Forms, NativeCall, Place
from cutaway.kernels.lowering.rows import is_matrix, rows_of
from cutaway.kernels.native.structs import Rows
from cutaway.kernels.recording import Call, Recorded


def convolve(
    forms: Forms,
    call: Call,
    x: Any,
    weight: Tensor,
    bias: Tensor | None,
    *,
    step: Step,
    layer: int,
) -> NativeCall | None:
    """A sequence's tokens, channel by channel."""
    del forms
    cache = step.caches[layer]
    kept = cache.fields["inputs"]
    if not is_matrix(x) or rows_of(x) is Rows.LOGITS or kept.dtype != torch.float32:
        return None
    if weight.dtype != torch.float32 or cache.group >= native.MAX_GROUPS:
        return None
    pages = native.InputPages(kept, cache.group, cache.page_size)
    learned, added = weight.detach().contiguous(), None if bias is None else bias.detach()
    out: Recorded = call.results

    def make(place: Place) -> list[native.Operation]:
        return [native.convolve(place(x), learned, added, pages, out=place(out))]

    return NativeCall((x,), (out,), make)
