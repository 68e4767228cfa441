"""What a view is asked for: places in an answer and in the model, checked against both."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from types import UnionType

from cutaway.core.errors import RequestError
from cutaway.core.limits import quote, shorten
from cutaway.tokens.unicode import is_unicode


@dataclass(frozen=True)
class Query:
    """None leaves a place to the view.

    position: of a token in prompt and answer together, from 0.
    token:    of a token in the answer alone, from 0.
    layer, head, expert: from 0.   top: how many of a ranking.   text: words that a view works on.
    start: of the tokens that are told, where they are too many to be told at once, from 0.
    price: of this machine, per hour, in any currency.
    """

    position: int | None = None
    token: int | None = None
    layer: int | None = None
    head: int | None = None
    expert: int | None = None
    top: int = 10
    text: str | None = None
    start: int | None = None
    price: float | None = None

    def check(self, takes: Collection[str], bounds: Mapping[str, int], *, view: str) -> None:
        """Hold every field that was set against what the view takes and what there is.

        bounds: how many there are of what a field counts.
        Raises: RequestError naming field, value and range.
        """
        for field in fields(self):
            value = getattr(self, field.name)
            if value == field.default:
                continue
            if field.name not in takes:
                known = ", ".join(takes) or "nothing"
                raise RequestError(
                    f"{field.name} is {quote(value)}, but the view {view} takes {known}.",
                    param=field.name,
                )
            least, most = (1 if field.name == "top" else 0), bounds.get(field.name)
            if isinstance(value, int) and most is not None and not least <= value < most + least:
                raise RequestError(
                    f"{field.name} is {quote(value)}; it must be from {least} to "
                    f"{most - 1 + least}.",
                    param=field.name,
                )


_KINDS: Mapping[str, tuple[type | UnionType, str]] = {
    "text": (str, "text"),
    "price": (float | int, "a number"),
}


def query_of(values: Mapping[str, object]) -> Query:
    """Raises: RequestError for a field that no view has, or a value of another type."""
    names = [field.name for field in fields(Query)]
    for name, value in values.items():
        if name not in names:
            raise RequestError(
                f"{shorten(name)} is no field of a view: {', '.join(names)}.", param=name
            )
        types, kind = _KINDS.get(name, (int, "a whole number"))
        if value is not None and (not isinstance(value, types) or isinstance(value, bool)):
            raise RequestError(f"{name} is {quote(value)}; it must be {kind}.", param=name)
        if isinstance(value, str) and not is_unicode(value):
            raise RequestError(f"{name} holds a lone surrogate; use valid Unicode.", param=name)
        if name == "price" and isinstance(value, float | int) and not 0 <= value < math.inf:
            raise RequestError(
                f"price is {quote(value)}; it must be a number from 0 up.", param=name
            )
    given = {name: value for name, value in values.items() if value is not None}
    return Query(**given)  # pyright: ignore[reportArgumentType] types were checked above
