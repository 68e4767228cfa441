"""A value of a JSON file that knows where it stands, so that a fault names file and field."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from cutaway.core.errors import ModelFormatError, ModelNotFoundError
from cutaway.core.limits import quote
from cutaway.tokens.unicode import is_unicode


@dataclass(frozen=True)
class JsonNode:
    """One value, with the file that it came from and the path to it."""

    value: object
    file: str
    path: str = ""

    @staticmethod
    def read(path: Path) -> JsonNode:
        """The root of a file.

        Raises: ModelNotFoundError if there is none, ModelFormatError if it is no JSON.
        """
        try:
            return JsonNode(json.loads(path.read_bytes()), path.name)
        except FileNotFoundError:
            raise ModelNotFoundError(f"there is no file {path}.") from None
        except (ValueError, RecursionError) as error:
            raise ModelFormatError(
                f"no JSON: {error}. Fetch the file again.", file=path.name, field="(whole file)"
            ) from None

    @staticmethod
    def beside(path: Path, name: str) -> JsonNode:
        """The root of another file in the same folder; an empty object if there is none."""
        other = path.with_name(f"{name}.json")
        return JsonNode.read(other) if other.is_file() else JsonNode({}, other.name)

    def __getitem__(self, key: str) -> JsonNode:
        """The member of that name; its value is None if it is absent."""
        path = f"{self.path}.{key}" if self.path else key
        return JsonNode(self.mapping().get(key), self.file, path)

    def fault(self, allowed: str) -> ModelFormatError:
        """The error that this value deserves."""
        message = f"found {quote(self.value)}; it must be {allowed}."
        return ModelFormatError(message, file=self.file, field=self.path or "(whole file)")

    def mapping(self) -> dict[str, object]:
        """The members of an object. Raises: ModelFormatError for any other value."""
        if not isinstance(self.value, dict):
            raise self.fault("an object")
        return cast("dict[str, object]", self.value)

    def items(self) -> Iterator[JsonNode]:
        """The elements of a list; none if the value is absent."""
        if self.value is None:
            return
        if not isinstance(self.value, list):
            raise self.fault("a list")
        for index, value in enumerate(cast("list[object]", self.value)):
            yield JsonNode(value, self.file, f"{self.path}[{index}]")

    def text(self) -> str:
        """A string of whole characters. Raises: ModelFormatError for any other value."""
        if not isinstance(self.value, str) or not is_unicode(self.value):
            raise self.fault("a string of whole characters")
        return self.value

    def number(self) -> int:
        """An integer from 0. Raises: ModelFormatError for any other value."""
        if not isinstance(self.value, int) or isinstance(self.value, bool) or self.value < 0:
            raise self.fault("an integer from 0")
        return self.value

    def numbers(self) -> list[int]:
        """A list of integers from 0."""
        return [item.number() for item in self.items()]

    def flag(self, *, default: bool) -> bool:
        """True or false; default where it is absent.

        Raises: ModelFormatError for any other value.
        """
        if self.value is None:
            return default
        if not isinstance(self.value, bool):
            raise self.fault("true or false")
        return self.value
