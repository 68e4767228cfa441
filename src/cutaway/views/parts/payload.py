"""A view's numbers on their way out: as JSON values, or as values beside named arrays."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Protocol, cast

import numpy as np

from cutaway.host.turns import breathe
from cutaway.views.parts.drawing import Drawing

Array = np.ndarray[tuple[int, ...], np.dtype[np.float32 | np.int64 | np.uint8]]


class Payload(Protocol):
    """A frozen dataclass of plain values, arrays and such dataclasses."""

    def draw(self) -> Drawing:
        """The payload as a picture for a terminal."""
        ...


def as_json(value: object) -> object:
    """Nested plain values; arrays become lists, and what is not finite None."""
    return _walk(value, "", None)


def split(payload: Payload) -> tuple[dict[str, object], dict[str, Array]]:
    """Plain values, and the arrays by the path of their fields; values name their arrays."""
    arrays: dict[str, Array] = {}
    plain = _walk(payload, "", arrays)
    return cast("dict[str, object]", plain), arrays


def _walk(value: object, path: str, arrays: dict[str, Array] | None) -> object:
    breathe()
    if isinstance(value, np.ndarray):
        array = cast(Array, value)
        if arrays is None:
            return _walk(array.tolist(), path, None)
        arrays[path] = np.ascontiguousarray(array)
        return {"array": path}
    if is_dataclass(value) and not isinstance(value, type):
        return {
            each.name: _walk(getattr(value, each.name), f"{path}.{each.name}".strip("."), arrays)
            for each in fields(value)
        }
    if isinstance(value, Mapping):
        items = cast("Mapping[str, object]", value).items()
        return {str(key): _walk(each, f"{path}.{key}".strip("."), arrays) for key, each in items}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        items = enumerate(cast("Sequence[object]", value))
        return [_walk(each, f"{path}.{index}".strip("."), arrays) for index, each in items]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    assert value is None or isinstance(value, str | int | float), f"{path} is {type(value)}"
    return value
