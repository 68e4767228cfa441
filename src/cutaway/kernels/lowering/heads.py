"""Native forms of what happens to heads: norm, rotation, store and attention over pages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from cutaway.core.layout import FULL, Extent, Window
from cutaway.kernels import native
from cutaway.kernels.lowering.forms import Forms, NativeCall, Place, Turn
from cutaway.kernels.lowering.rows import is_heads, start_of
from cutaway.kernels.native.pages import PAGE_DTYPES
from cutaway.kernels.recording import Call, Recorded
from cutaway.kernels.rotary import rotate
from cutaway.kernels.store import store


def turn(forms: Forms, call: Call, x: Any, cos: Any, sin: Any) -> NativeCall | None:
    """Heads turned by position, normed first where nothing else reads the norm."""
    turn = forms.turn(cos, sin)
    if turn is None or not is_heads(x):
        return None
    source, norm = forms.before(x, call)
    out: Recorded = call.results

    def make(place: Place) -> list[native.Operation]:
        return [native.rotate(place(source), turn.rotation(place), out=place(out), norm=norm)]

    return NativeCall((source, *turn.reads), (out,), make)


def attend(
    forms: Forms,
    call: Call,
    query: Any,
    keys: Tensor,
    values: Tensor,
    *,
    page_table: Tensor,
    softmax_scale: float,
    extent: Extent = FULL,
    cap: float | None = None,
    sinks: Tensor | None = None,
    key_scales: Tensor | None = None,
    value_scales: Tensor | None = None,
    **_: Any,
) -> NativeCall | None:
    """Attention over pages, with the store of the step's own keys and values before it."""
    tables = [group.page_table for group in forms.step.groups]
    group = next(index for index, table in enumerate(tables) if table is page_table)
    keeps_first = isinstance(extent, Window) and extent.sinks > 0
    if keys.dtype not in PAGE_DTYPES or group >= native.MAX_GROUPS or sinks is not None:
        return None
    stores = _stores(forms, call, keys, values)
    if keeps_first or not is_heads(query) or stores is None:
        return None
    window = extent.width if isinstance(extent, Window) else None
    scoring = native.Scoring(softmax_scale, cap, window)
    pages = native.Pages(keys, values, group, key_scales, value_scales)
    out: Recorded = call.results
    if not stores:

        def attend_alone(place: Place) -> list[native.Operation]:
            return [native.attend(place(query), pages, out=place(out), scoring=scoring)]

        return NativeCall((query,), (out,), attend_alone)
    key, value = stores[0].args[1], stores[1].args[1]
    if not (is_heads(key) and is_heads(value)):
        return None
    forms.absorbed.update(stores)
    fused = _in_one(forms, call, query, stores, pages=pages, scoring=scoring)
    if fused is not None:
        return fused

    def store_and_attend(place: Place) -> list[native.Operation]:
        return [
            native.store(place(key), place(value), pages),
            native.attend(place(query), pages, out=place(out), scoring=scoring),
        ]

    return NativeCall((query, key, value), (out,), store_and_attend)


def _stores(
    forms: Forms, call: Call, keys: Tensor, values: Tensor
) -> tuple[Call, Call] | tuple[()] | None:
    """What wrote the step's keys and values for this attention; None where it is not a pair.

    A layer that reads another's pages finds that layer's attention before any store.
    """
    of_key = of_value = None
    for each in reversed(forms.calls[: forms.calls.index(call)]):
        if each.function is call.function and each.args[1] is keys:
            break
        if each.function is store and each.args[0] is keys:
            of_key = of_key or each
        if each.function is store and each.args[0] is values:
            of_value = of_value or each
        if of_key is not None and of_value is not None:
            return of_key, of_value
    return () if of_key is None and of_value is None else None


@dataclass(frozen=True)
class _Turned:
    """Heads before they were normed and turned."""

    source: Recorded
    norm: native.Norm | None
    call: Call
    turn: Turn


def _turned(forms: Forms, heads: Recorded, reader: Call) -> _Turned | None:
    """What one reader alone gets turned."""
    call = heads.call
    if call is None or call.function is not rotate or heads.root is not heads:
        return None
    x, cos, sin = call.args
    turn = forms.turn(cos, sin)
    if turn is None or not is_heads(x) or not forms.goes_only_to(heads, reader):
        return None
    source, norm = forms.before(x, call, absorbs=False)
    return _Turned(source, norm, call, turn)


def _in_one(
    forms: Forms,
    call: Call,
    query: Recorded,
    stores: tuple[Call, Call],
    *,
    pages: native.Pages,
    scoring: native.Scoring,
) -> NativeCall | None:
    """Norm, rotation, store and attention at once, of heads that one product holds."""
    key, value = (each.args[1] for each in stores)
    queries, own = _turned(forms, query, call), _turned(forms, key, stores[0])
    if queries is None or own is None or queries.call.args[1] is not own.call.args[1]:
        return None
    product, size = value.root, key.shape[2]
    num_heads, num_groups = query.shape[1], key.shape[1]
    row = (num_heads + 2 * num_groups) * size
    starts = (0, num_heads * size, (num_heads + num_groups) * size)
    heads = (queries.source, own.source, value)
    lie_so = all(
        each.root is product and start_of(each) == start and each.stride() == (row, size, 1)
        for each, start in zip(heads, starts, strict=True)
    )
    epsilons = {each.norm.epsilon for each in (queries, own) if each.norm is not None}
    if not lie_so or product.meta[:1].numel() != row or len(epsilons) > 1:
        return None
    for each in (queries, own):
        forms.absorbed.add(each.call)
        forms.before(each.call.args[0], each.call)
    out: Recorded = call.results
    whole = Recorded.of(product.recording, product.meta.view(-1, row), call=None, root=product)

    def make(place: Place) -> list[native.Operation]:
        operation = native.attention(
            place(whole),
            pages,
            num_heads=num_heads,
            rotation=queries.turn.rotation(place),
            out=place(out).flatten(1),
            scoring=scoring,
            query_norm=queries.norm,
            key_norm=own.norm,
        )
        return [operation]

    return NativeCall((whole, *queries.turn.reads), (out,), make)
