"""A table of token ids and numbers that does not change, so that it can be hashed and shared."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NoReturn


class TokenBias(dict[int, float]):
    """What is added to the logits of some tokens. Equal to a dict of the same, and hashable.

    It is a dict, so that it is copied, pickled and written as JSON as one.
    """

    def __init__(self, entries: Mapping[int, float] | Iterable[tuple[int, float]] = ()) -> None:
        super().__init__(entries)

    def __hash__(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride] a dict has none
        return hash(frozenset(self.items()))

    def __reduce__(self) -> tuple[type[TokenBias], tuple[dict[int, float]]]:
        return TokenBias, (dict(self),)

    def __copy__(self) -> TokenBias:
        return self

    def __deepcopy__(self, memo: object) -> TokenBias:
        return self

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise TypeError("a TokenBias does not change; make new SamplingParams with another one.")

    __setitem__ = __delitem__ = __ior__ = _refuse  # type: ignore[assignment]
    clear = pop = popitem = setdefault = update = _refuse  # type: ignore[assignment]
