"""Native forms of what happens to heads: norm, rotation, store and attention over pages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from cutaway.core.layout import FULL, Extent, Window
from cutaway.kernels import native
from cutaway.kernels.lowering.forms import Forms, NativeCall, Place, RotationSource, is_head_rows
from cutaway.kernels.lowering.rows import is_heads, start_of
from cutaway.kernels.native.pages import PAGE_DTYPES
from cutaway.kernels.recording import Call, Recorded
from cutaway.kernels.rotary import rotate, rotate_neighbours
from cutaway.kernels.store import store


def turn(forms: Forms, call: Call, *_: Any) -> NativeCall | None:
    """Heads turned by position, normed first where nothing else reads the norm."""
    return turn_into(forms, call, call.results)


def turn_into(forms: Forms, call: Call, out: Recorded) -> NativeCall | None:
    """The same, to where heads may lie apart."""
    x, cos, sin = call.args
    turn = forms.turn(cos, sin, are_neighbours=call.function is rotate_neighbours)
    if turn is None or not is_head_rows(x):
        return None
    source, norm = forms.before(x, call)

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
    stores = stores_of(forms, call, keys, values)
    if keys.dtype not in PAGE_DTYPES or group >= native.MAX_GROUPS or stores is None:
        return None
    if not is_heads(query):
        return None
    window, first = (extent.width, extent.sinks) if isinstance(extent, Window) else (None, 0)
    given = None if sinks is None else sinks.detach()
    scoring = native.NativeScoring(softmax_scale, cap, window, num_first=first, sinks=given)
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


def stores_of(
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
class _Made:
    """Heads as a product made them, and what was done to them since.

    calls: what did it, and nothing else reads.
    """

    source: Recorded
    norm: native.NormWeights | None
    angles: Recorded | None
    turn: RotationSource | None
    calls: tuple[Call, ...]


def _made(forms: Forms, heads: Recorded, reader: Call) -> _Made:
    """How the heads came about that one reader alone gets; as they are where another does."""
    calls: list[Call] = []
    angles = turn = None
    call = heads.call
    if call is not None and call.function is rotate and heads.root is heads:
        turn = forms.turn(*call.args[1:])
        if turn is not None and forms.goes_only_to(heads, reader):
            angles, heads, reader = call.args[1], call.args[0], call
            calls.append(call)
    source, norm = forms.before(heads, reader, absorbs=False)
    if norm is not None and heads.call is not None:
        calls.append(heads.call)
    return _Made(source, norm, angles, turn if calls else None, tuple(calls))


def _in_one(
    forms: Forms,
    call: Call,
    query: Recorded,
    stores: tuple[Call, Call],
    *,
    pages: native.Pages,
    scoring: native.NativeScoring,
) -> NativeCall | None:
    """Norm, rotation, store and attention at once, of heads that one product holds."""
    key, value = (each.args[1] for each in stores)
    readers = (call, *stores)
    parts = [
        _made(forms, heads, reader)
        for heads, reader in zip((query, key, value), readers, strict=True)
    ]
    queries, keys, values = parts
    if queries.angles is not keys.angles or values.angles is not None:
        return None
    product, size = values.source.root, key.shape[2]
    num_heads, num_groups = query.shape[1], key.shape[1]
    row = (num_heads + 2 * num_groups) * size
    starts = (0, num_heads * size, (num_heads + num_groups) * size)
    lie_so = all(
        each.source.root is product
        and start_of(each.source) == start
        and each.source.stride() == (row, size, 1)
        for each, start in zip(parts, starts, strict=True)
    )
    if not lie_so or product.meta[:1].numel() != row:
        return None
    forms.absorbed.update(each for part in parts for each in part.calls)
    out: Recorded = call.results
    whole = Recorded.of(product.recording, product.meta.view(-1, row), call=None, root=product)
    turn = queries.turn

    def make(place: Place) -> list[native.Operation]:
        operation = native.attention(
            place(whole),
            pages,
            num_heads=num_heads,
            rotation=None if turn is None else turn.rotation(place),
            out=place(out).flatten(1),
            scoring=scoring,
            query_norm=queries.norm,
            key_norm=keys.norm,
            value_norm=values.norm,
        )
        return [operation]

    return NativeCall((whole, *(() if turn is None else turn.reads)), (out,), make)
