"""Typed reading of a model's configuration, so that a wrong value names file and field."""

from __future__ import annotations

import math
import warnings
from array import array
from collections.abc import Mapping
from typing import cast

from cutaway.core.claims import most_of
from cutaway.core.errors import ModelFormatError
from cutaway.core.limits import quote
from cutaway.core.whole_numbers import whole_number

_MOST_FACTOR = 1e9


class Fields:
    """A mapping read field by field. A missing field without a default is an error.

    file:  what messages call the source.
    asked: names that were looked for, there or not.
    """

    def __init__(self, values: Mapping[str, object], *, file: str, prefix: str = "") -> None:
        self._values = values
        self._prefix = prefix
        self.file = file
        self.asked: set[str] = set()

    def has(self, name: str) -> bool:
        """Whether the field is there and not null."""
        return self._found(name) is not None

    def is_empty(self, name: str) -> bool:
        """Whether the field is an object without anything in it."""
        return self._found(name) == {}

    def integer(self, name: str, default: int | None = None, *, least: int = 1) -> int:
        """An integer from least to the most that such a field may be.

        Raises: ModelFormatError for a value of another kind, or an absent one without a default.
        """
        value = self._get(name, default)
        most = most_of(name)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise self._wrong(name, value, f"an integer from {least} to {most}")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """A finite number above 0.

        Raises: ModelFormatError for a value of another kind, or an absent one without a default.
        """
        value = self._get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._wrong(name, value, "a number")
        if not math.isfinite(value) or value <= 0:
            raise self._wrong(name, value, "a finite number above 0")
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        """True or false; default where it is absent.

        Raises: ModelFormatError for any other value.
        """
        value = self._get(name, default)
        if not isinstance(value, bool):
            raise self._wrong(name, value, "true or false")
        return value

    def truth(self, name: str) -> bool:
        """Whether a field is there and neither null, 0, false nor empty."""
        return bool(self._found(name))

    def holds(self, name: str, word: str) -> bool:
        """Whether a field is this very string."""
        return self._found(name) == word

    def path(self, name: str) -> str:
        """The field's name behind those of the objects that it stands in."""
        _, _, objects = self.file.partition(": ")  # as `nested` names them
        return f"{objects.replace(': ', '.')}.{name}" if objects else f"{self._prefix}{name}"

    def differs(self, name: str, other: Fields, its: str) -> bool:
        """Whether both fields say something, and not the same; an empty object says nothing."""
        mine, others = self._found(name), other._found(its)
        return mine not in (None, {}) and others not in (None, {}) and mine != others

    def quote(self, name: str) -> str:
        """A field's value for a message."""
        return quote(self._found(name))

    def text(self, name: str, default: str | None = None) -> str:
        """A string.

        Raises: ModelFormatError for a value of another kind, or an absent one without a default.
        """
        value = self._get(name, default)
        if not isinstance(value, str):
            raise self._wrong(name, value, "a string")
        return value

    def numbers(self, name: str, count: int) -> tuple[float, ...]:
        """A list of exactly count numbers above 0.

        Raises: ModelFormatError for anything else.
        """
        value = self._get(name, None)
        items = _items(value)
        if len(items) != count or not all(
            isinstance(item, int | float) and not isinstance(item, bool) and item > 0
            for item in items
        ):
            raise self._wrong(name, value, f"a list of {count} numbers above 0")
        return tuple(float(cast(float, item)) for item in items)

    def flags(self, name: str, count: int) -> tuple[bool, ...]:
        """A list of exactly count truths.

        Raises: ModelFormatError for anything else.
        """
        value = self._get(name, None)
        items = _items(value)
        if len(items) != count or not all(isinstance(item, bool) for item in items):
            raise self._wrong(name, value, f"a list of {count} of true and false")
        return tuple(cast("list[bool]", items))

    def integers(self, name: str) -> tuple[int, ...]:
        """An integer or a list of integers; nothing where the field is missing, null or empty."""
        value = self._found(name)
        if value is None:
            return ()
        items = _items(value) if _is_list(value) else [value]
        if not all(isinstance(item, int) and not isinstance(item, bool) for item in items):
            raise self._wrong(name, value, "an integer or a list of integers")
        return tuple(cast("list[int]", items))

    def texts(self, name: str) -> tuple[str, ...]:
        """A list of strings; nothing where the field is missing or null."""
        value = self._found(name)
        if value is None:
            return ()
        items = _items(value)
        if not items or not all(isinstance(item, str) for item in items):
            raise self._wrong(name, value, "a list of strings")
        return tuple(cast("list[str]", items))

    def number_or_none(self, name: str, default: float | None = None) -> float | None:
        """A number above 0 and at most 1e9; None where the field is 0 or null: both mean off.

        default: what a missing field means.
        Raises: ModelFormatError for any other value.
        """
        value = self._found(name)
        if self._prefix + name not in self._values:
            return default
        if value in (None, 0) and value is not False:
            return None
        number = self.number(name)
        if number > _MOST_FACTOR:  # of caps and factors; kernels take no more
            raise self._wrong(name, value, "a number above 0 and at most 1e9, or null for none")
        return number

    def read_mapping(self, name: str) -> Fields:
        """A mapping inside; empty where the field is missing or null."""
        value = self._found(name)
        if value is None:
            return Fields({}, file=f"{self.file}: {name}")
        if not isinstance(value, Mapping):
            raise self._wrong(name, value, "a mapping")
        return Fields(cast("Mapping[str, object]", value), file=f"{self.file}: {name}")

    def changed_by(self, other: Fields) -> Fields:
        """The same with what another mapping says in its place; a warning names both."""
        for name in other._values:
            warn_of_two(other, name, self, name)
        return Fields({**self._values, **other._values}, file=self.file)

    def with_default(self, name: str, value: object) -> Fields:
        """The same where a field that is missing or null has a value."""
        if self.has(name):
            return self
        made = Fields({**self._values, self._prefix + name: value}, file=self.file)
        made._prefix, made.asked = self._prefix, self.asked
        return made

    def read_numbered(self, index: int) -> Fields:
        """The mapping inside whose name is a number, with leading zeros or without; else empty."""
        names = (name for name in self._values if whole_number(name) == index)
        return self.read_mapping(next(names, str(index)))

    def _found(self, name: str) -> object:
        self.asked.add(name)
        return self._values.get(self._prefix + name)

    def _get(self, name: str, default: object) -> object:
        value = self._found(name)
        if value is None:
            value = default
        if value is None:
            raise ModelFormatError(
                "is missing; the architecture needs it.", file=self.file, field=self._prefix + name
            )
        return value

    def _wrong(self, name: str, value: object, allowed: str) -> ModelFormatError:
        return ModelFormatError(
            f"is {quote(value)}; it must be {allowed}.", file=self.file, field=self._prefix + name
        )


def warn_of_two(first: Fields, name: str, second: Fields, other: str) -> None:
    """Tell of two settings that say different things; the first one is obeyed."""
    if not first.differs(name, second, other):
        return
    inner, outer = first.path(name), second.path(other)
    file = first.file.partition(": ")[0]
    warnings.warn(
        f"{file} has {inner} and {outer}; {inner} is obeyed and the other is not, as in "
        "transformers. Leave one of them out.",
        stacklevel=3,
    )


def _items(value: object) -> list[object]:
    """What a list holds; nothing for any other value."""
    return list(cast("list[object]", value)) if _is_list(value) else []


def _is_list(value: object) -> bool:
    """Whether a value is a list of JSON or of GGUF metadata."""
    return isinstance(value, list | tuple | array)
