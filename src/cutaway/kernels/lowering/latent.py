"""Native forms of latent attention: maps by head, and rows that all heads share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
from torch import Tensor

from cutaway.kernels import native
from cutaway.kernels.linear import project_heads
from cutaway.kernels.lowering.forms import Forms, NativeCall, Place, is_head_rows
from cutaway.kernels.lowering.heads import stores_of, turn_into
from cutaway.kernels.lowering.packed_floats import packed_stack
from cutaway.kernels.lowering.rows import is_matrix, is_spaced, rows_of
from cutaway.kernels.native.pages import PAGE_DTYPES
from cutaway.kernels.native.structs import Rows
from cutaway.kernels.recording import TOKENS, Call, Recorded
from cutaway.kernels.rotary import rotate, rotate_neighbours


def project(forms: Forms, call: Call, *_: Any) -> NativeCall | None:
    """Each head times a matrix of its own, packed as the floats that it is."""
    return _project_into(forms, call, call.results)


def join(forms: Forms, call: Call, parts: Any, dim: int = 0) -> NativeCall | None:
    """Parts of heads side by side, each made where it has to lie; parts of rows are copied."""
    out: Recorded = call.results
    if dim not in (-1, out.dim() - 1):
        return None
    if out.dim() != 3:
        return _join_rows(out, parts)
    made: list[NativeCall] = []
    calls: list[Call] = []
    start = 0
    for part in parts:
        source = part.call if isinstance(part, Recorded) and part.root is part else None
        form = None if source is None else _INTO.get(source.function)
        if source is None or form is None or not forms.goes_only_to(part, call):
            return None
        end = start + part.shape[-1]
        place = Recorded.of(out.recording, out.meta[..., start:end], call=call, root=out)
        lowered = form(forms, source, place)
        if lowered is None:
            return None
        start = end
        made.append(lowered)
        calls.append(source)
    forms.absorbed.update(calls)
    reads = tuple(value for each in made for value in each.reads)
    return NativeCall(
        reads, (out,), lambda place: [each for part in made for each in part.make(place)]
    )


def _join_rows(out: Recorded, parts: Any) -> NativeCall | None:
    """Rows side by side, copied as heads are that do not turn. Shapes: [T, D] each."""
    if not all(is_matrix(each) and rows_of(each) is Rows.TOKENS for each in parts):
        return None

    def make(place: Place) -> list[native.Operation]:
        made: list[native.Operation] = []
        start, joined = 0, place(out)
        for part in parts:
            width = part.shape[1]
            pieces = next(n for n in range(1, width + 1) if _fits_head(width, n))
            there = _as_heads(joined[:, start : start + width], pieces)
            made.append(native.rotate(_as_heads(place(part), pieces), None, out=there))
            start += width
        return made

    return NativeCall(tuple(parts), (out,), make)


def _as_heads(rows: Tensor, count: int) -> Tensor:
    """Shapes: [T, D], which may lie apart -> [T, count, D / count]."""
    size = rows.shape[1] // count
    return rows.as_strided((len(rows), count, size), (rows.stride(0), size, 1))


def _fits_head(width: int, pieces: int) -> bool:
    return width % pieces == 0 and width // pieces <= native.MOST_HEAD_SIZE


def attend(
    forms: Forms,
    call: Call,
    query: Any,
    latent: Tensor,
    rotary: Tensor,
    *,
    page_table: Tensor,
    softmax_scale: float,
    latent_scales: Tensor | None = None,
    rotary_scales: Tensor | None = None,
    **_: Any,
) -> NativeCall | None:
    """Attention over rows that all heads share, with the store of the step's own before it."""
    tables = [group.page_table for group in forms.step.groups]
    group = next(index for index, table in enumerate(tables) if table is page_table)
    stores = stores_of(forms, call, latent, rotary)
    if latent.dtype not in PAGE_DTYPES or group >= native.MAX_GROUPS or not stores:
        return None
    own = [each.args[1] for each in stores]
    is_whole = is_spaced(query) and query.dim() == 3 and query.shape[0] == TOKENS
    if not (is_whole and all(is_spaced(each) and each.dim() == 2 for each in own)):
        return None
    forms.absorbed.update(stores)
    pages = native.LatentPages(latent, rotary, group, latent_scales, rotary_scales)
    scoring = native.NativeScoring(softmax_scale)
    out: Recorded = call.results

    def make(place: Place) -> list[native.Operation]:
        return [
            native.store_latent(place(own[0]), place(own[1]), pages),
            native.attend_latent(place(query), pages, out=place(out), scoring=scoring),
        ]

    return NativeCall((query, *own), (out,), make)


def _project_into(forms: Forms, call: Call, out: Recorded) -> NativeCall | None:
    del forms
    x, matrices = call.args
    if not is_head_rows(x) or isinstance(matrices, Recorded) or matrices.dtype != torch.float32:
        return None
    stack = packed_stack(matrices)

    def make(place: Place) -> list[native.Operation]:
        return [native.heads_linear(place(x), stack, out=place(out))]

    return NativeCall((x,), (out,), make)


# Operations whose results may lie apart.
_INTO: Final[Mapping[Any, Callable[[Forms, Call, Recorded], NativeCall | None]]] = {
    project_heads: _project_into,
    rotate: turn_into,
    rotate_neighbours: turn_into,
}
