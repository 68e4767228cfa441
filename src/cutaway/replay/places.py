"""At which places a trace file has its views: some steps of the answer, layers and heads.

Beside a view at the place of its own choice stand those that are cheap, at many tokens: they want a
row of logits each, which the pass for all others has anyway.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import product
from typing import cast

import numpy as np

from cutaway.core.errors import RequestError
from cutaway.core.limits import quote
from cutaway.core.whole_numbers import whole_number
from cutaway.trace.file import SavedPlace, SavedView, Values
from cutaway.trace.tensors import Array
from cutaway.views.parts.query import Query, query_of
from cutaway.views.parts.subject import Subject
from cutaway.views.parts.view import View

# A long answer is scrubbed in strides; `all` is for those who want every step.
USUAL_STEPS = 128
MOST_PLACES = 20_000  # of all views; a reader bounds the arrays of one
ROW_TEXTS = 200  # tokens of a whole row that a reader without a tokenizer sees by name


@dataclass(frozen=True)
class Places:
    """Where views are saved, besides the place of their own choice.

    steps:  tokens of the answer, from 0, for views that are cheap; None spreads USUAL_STEPS evenly.
    each:   tokens of the answer at which every view is.
    layers, heads: for views that take them.
    """

    steps: tuple[int, ...] | None = None
    each: tuple[int, ...] = ()
    layers: tuple[int, ...] = ()
    heads: tuple[int, ...] = ()


def places_of(text: str | None, *, count: int, param: str) -> tuple[int, ...] | None:
    """Numbers below a count as people list them: `all`, `none`, 0,7,20-30. None stays None.

    Raises: RequestError for what is no such list, or not below the count.
    """
    if text is None or text == "none":
        return None if text is None else ()
    if text == "all":
        return tuple(range(count))
    found: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        start, end = whole_number(first), whole_number(last if dash else first)
        if start is None or end is None:
            raise RequestError(
                f"{param} has {quote(part)}; it must be all, none, or as in 0,7,20-30.",
                param=param,
            )
        if end >= count:
            raise RequestError(
                f"{param} has {part.strip()}; it must be from 0 to {count - 1}.", param=param
            )
        found.update(range(start, end + 1))
    return tuple(sorted(found))


def queries(view: View, subject: Subject, places: Places) -> list[Query]:
    """The first is the view's own choice."""
    first = Query(top=ROW_TEXTS) if view.name == "logits" else Query()
    steps = _steps(view, subject, places)
    takes = frozenset(view.takes)
    layers = _some(places.layers, subject.facts.num_layers if "layer" in takes else 0)
    heads = _some(places.heads, subject.facts.num_heads if "head" in takes else 0)
    if heads and not layers:
        heads = ()  # a head is one of a layer
    found = [first]
    for step, layer, head in product(steps or (None,), layers or (None,), heads or (None,)):
        place: dict[str, int] = {}
        if step is not None and "token" in takes:
            place["token"] = step
        elif step is not None:
            place["position"] = subject.row_position(step)
        if layer is not None:
            place["layer"] = layer
        if head is not None:
            place["head"] = head
        if place:
            found.append(query_of(place))
    return found


def _steps(view: View, subject: Subject, places: Places) -> Sequence[int]:
    if not {"token", "position"} & set(view.takes):
        return ()
    if not view.is_by_step:
        return places.each
    usual = spread(subject.num_rows, USUAL_STEPS)
    return sorted({*(usual if places.steps is None else places.steps), *places.each})


def spread(count: int, most: int) -> Sequence[int]:
    """So many of a count, evenly, the first and the last among them."""
    if count <= most:
        return range(count)
    return sorted({round(index * (count - 1) / (most - 1)) for index in range(most)})


def _some(chosen: Sequence[int], count: int) -> Sequence[int]:
    return [each for each in chosen if each < count]


_PLACES = ("token", "position", "layer", "head")


def place_of(query: Query, values: Values) -> Values:
    """Where a view was: as it was asked for, and what its values tell of its own choice."""
    told = {name: values[name] for name in _PLACES if isinstance(values.get(name), int)}
    asked = {field.name: getattr(query, field.name) for field in fields(query)}
    return told | {name: asked[name] for name in _PLACES if asked[name] is not None}


def merge_views(views: Sequence[SavedView]) -> SavedView:
    """A view at its own place, with the other places as what differs there."""
    first, arrays = views[0], dict(views[0].arrays)
    places: list[SavedPlace] = []
    seen = {_key(first.query)}
    for view in views[1:]:
        if _key(view.query) in seen:
            continue
        seen.add(_key(view.query))
        is_whole = view.values.keys() != first.values.keys()
        values = {
            key: value
            for key, value in view.values.items()
            if is_whole or not _same(key, view, first)
        }
        names = _names(values)
        renamed = {name: f"{name}@{len(seen) - 1}" for name in names}
        arrays |= {renamed[name]: view.arrays[name] for name in names}
        told = cast("Values", _with(values, renamed))
        places.append(SavedPlace(view.query, view.proof, told, is_whole))
    return SavedView(
        first.name,
        first.question,
        first.proof,
        first.lines,
        first.values,
        arrays,
        first.query,
        tuple(places),
    )


def _key(query: Values) -> frozenset[tuple[str, object]]:
    return frozenset(query.items())


def _same(key: str, view: SavedView, first: SavedView) -> bool:
    value = view.values[key]
    if key not in first.values or first.values[key] != value:
        return False
    return all(_equal(view.arrays[name], first.arrays[name]) for name in _names(value))


def _equal(one: Array, other: Array) -> bool:
    return one.dtype == other.dtype and np.array_equal(one, other, equal_nan=one.dtype.kind == "f")


def _names(value: object) -> list[str]:
    """Arrays that values name."""
    if isinstance(value, Mapping):
        items = cast("Mapping[str, object]", value)
        path = items.get("array")
        if len(items) == 1 and isinstance(path, str):
            return [path]
        return [name for each in items.values() for name in _names(each)]
    if isinstance(value, list):
        return [name for each in cast("list[object]", value) for name in _names(each)]
    return []


def _with(value: object, names: Mapping[str, str]) -> object:
    """The same values, their arrays by other names."""
    if isinstance(value, Mapping):
        items = cast("Mapping[str, object]", value)
        path = items.get("array")
        if len(items) == 1 and isinstance(path, str):
            return {"array": names[path]}
        return {key: _with(each, names) for key, each in items.items()}
    if isinstance(value, list):
        return [_with(each, names) for each in cast("list[object]", value)]
    return value
