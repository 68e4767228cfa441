"""Checked reading of a parsed config.json, for sizes alone. A null field counts as absent."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from cutaway.core.errors import ModelFormatError, UnsupportedModelError
from cutaway.core.limits import shown

# words of layer_types
SLIDING, LINEAR, FULL_ATTENTION = "sliding_attention", "linear_attention", "full_attention"


@dataclass(frozen=True)
class Reader:
    """Fields of one configuration. architecture: the checkpoint's word."""

    config: Mapping[str, object]
    file: str
    architecture: str

    def has(self, name: str) -> bool:
        return self.config.get(name) is not None

    def integer(self, name: str, default: int | None = None, *, least: int = 1) -> int:
        value = self.config.get(name)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 2**40:
            raise self.wrong(name, value, f"an integer from {least}")
        return value

    def flag(self, name: str, default: bool = False) -> bool:
        value = self.config.get(name)
        value = default if value is None else value
        if not isinstance(value, bool):
            raise self.wrong(name, value, "true or false")
        return value

    def refuse(self, *names: str) -> None:
        """Biases that the architecture could have and no public model has."""
        for name in names:
            if self.flag(name):
                raise UnsupportedModelError(f"{self.file}: {name} is true, which is not estimated.")

    def integers(self, name: str) -> frozenset[int]:
        value = self.config.get(name) or list[object]()
        items = cast("list[object]", value) if isinstance(value, list) else [value]
        if not all(isinstance(item, int) and not isinstance(item, bool) for item in items):
            raise self.wrong(name, cast(object, value), "a list of integers")
        return frozenset(cast("list[int]", items))

    def layer_kinds(self, default: Callable[[int], str]) -> Sequence[str]:
        """The kind of each layer: layer_types, or the architecture's own pattern."""
        count = self.integer("num_hidden_layers")
        given = self.config.get("layer_types")
        if given is None:
            return [default(layer) for layer in range(count)]
        known = (FULL_ATTENTION, SLIDING, LINEAR)
        items = cast("list[object]", given) if isinstance(given, list) else list[object]()
        kinds = [item for item in items if isinstance(item, str) and item in known]
        if len(items) != len(kinds) or len(kinds) != count:
            allowed = f"{count} of {', '.join(known)}"
            raise self.wrong("layer_types", cast(object, given), allowed)
        return kinds

    def of_layer(self, layer: int) -> Reader:
        """What per_layer_config says of one layer; nothing where it does not."""
        given = self.config.get("per_layer_config")
        entries = cast("Mapping[str, object]", given if isinstance(given, Mapping) else {})
        for name, entry in entries.items():
            if str(name).isdecimal() and int(name) == layer and isinstance(entry, Mapping):
                return Reader(cast("Mapping[str, object]", entry), self.file, self.architecture)
        return Reader({}, self.file, self.architecture)

    def wrong(self, name: str, value: object, allowed: str) -> ModelFormatError:
        return ModelFormatError(
            f"is {shown(value)}; it must be {allowed}.", file=self.file, field=name
        )
