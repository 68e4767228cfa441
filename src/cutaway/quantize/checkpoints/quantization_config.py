"""A checkpoint's quantization_config, read setting by setting with clear faults.

It knows no method: each reads what it needs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar, cast

from cutaway.core.errors import ModelFormatError, UnsupportedModelError
from cutaway.core.limits import quote

_T = TypeVar("_T")


class Settings:
    """Typed access. Absent settings and null take the default; without one they are a fault.

    Raises: ModelFormatError naming the setting.
    """

    def __init__(self, values: Mapping[str, object], *, file: str) -> None:
        self._values = values
        self.file = file

    def has(self, name: str) -> bool:
        """Whether it is there and says anything."""
        return bool(self._values.get(name))

    def text(self, name: str, default: str | None = None) -> str:
        """A string.

        Raises: ModelFormatError for a value of another type, or an absent one without a default.
        """
        return self._read(name, str, default)

    def integer(self, name: str, default: int | None = None) -> int:
        """An integer.

        Raises: ModelFormatError for a value of another type, or an absent one without a default.
        """
        value = self._read(name, int, default)
        if isinstance(value, bool):
            raise self._wrong(name, int)
        return value

    def flag(self, name: str, default: bool) -> bool:
        """True or false; default where it is absent.

        Raises: ModelFormatError for a value of another type.
        """
        return self._read(name, bool, default)

    def names(self, name: str) -> tuple[str, ...]:
        """A list of words; none where it is absent."""
        values = self._read(name, list, cast("list[object]", []))
        if not all(isinstance(value, str) for value in values):
            raise self._wrong(name, list)
        return tuple(cast("list[str]", values))

    def sizes(self, name: str) -> tuple[int, ...]:
        """A list of integers; none where it is absent."""
        values = self._read(name, list, cast("list[object]", []))
        if not all(isinstance(value, int) and not isinstance(value, bool) for value in values):
            raise self._wrong(name, list)
        return tuple(cast("list[int]", values))

    def inner(self, name: str) -> Settings:
        """An object inside; empty where it is absent."""
        return Settings(self._read(name, dict, cast("dict[str, object]", {})), file=self.file)

    def each(self) -> Mapping[str, Settings]:
        """Every setting as an object."""
        return {name: self.inner(name) for name in self._values}

    def refuse(self, name: str, allowed: str) -> UnsupportedModelError:
        """What to raise for a setting that says what Cutaway cannot read."""
        return UnsupportedModelError(
            f"{self.file}: {name} of quantization_config is {quote(self._values.get(name))}; "
            f"{allowed}. Take the model in another form."
        )

    def _read(self, name: str, kind: type[_T], default: _T | None) -> _T:
        value = self._values.get(name)
        if value is None:
            value = default
        if not isinstance(value, kind):
            raise self._wrong(name, kind)
        return value

    def _wrong(self, name: str, kind: type) -> ModelFormatError:
        found = self._values.get(name)
        return ModelFormatError(
            f"is {quote(found)}; it must be of type {kind.__name__}.",
            file=self.file,
            field=f"quantization_config.{name}",
        )
