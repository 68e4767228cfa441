"""The metadata under tokenizer.ggml of a GGUF file, each value checked when it is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar, cast

from cutaway.core.errors import ModelFormatError
from cutaway.core.limits import quote

# Tokens that the metadata names by their role; those of the second line never come from plain text.
END_ROLES = ("eos", "eot", "eom")
CONTROL_ROLES = ("bos", *END_ROLES, "unknown", "padding")

# What converters write for a role that no token has: all bits of 32 set.
_NONE = (2**32 - 1, -1)

Item = TypeVar("Item", str, int, float)


class GgufFields:
    """Typed reading, each fault with the file's name and the field's."""

    def __init__(self, metadata: Mapping[str, object], file: str) -> None:
        self._metadata = metadata
        self.file = file

    def value(self, name: str) -> object:
        """A field's value as the file has it; None where it is absent."""
        return self._metadata.get(f"tokenizer.ggml.{name}")

    def fault(self, name: str, allowed: str) -> ModelFormatError:
        """The error that a field deserves. allowed: what it has to be, in words."""
        message = f"found {quote(self.value(name))}; it must be {allowed}."
        return ModelFormatError(message, file=self.file, field=f"tokenizer.ggml.{name}")

    def array(self, name: str, kind: type[Item], *, optional: bool = False) -> Sequence[Item]:
        """A list whose items are all of one type.

        optional: whether it may be absent, and is empty then.
        Raises: ModelFormatError for anything else.
        """
        value = self.value(name)
        if value is None and optional:
            return ()
        if isinstance(value, str | bytes) or not isinstance(value, Sequence):
            raise self.fault(name, f"a list of {kind.__name__}")
        items = cast("Sequence[Item]", value)
        if not all(map(kind.__instancecheck__, items)):
            raise self.fault(name, f"a list of {kind.__name__}")
        return items

    def tokens(self) -> Sequence[str]:
        """The text of every token, by id. Raises: ModelFormatError where there is none."""
        tokens = self.array("tokens", str)
        if not tokens:
            raise self.fault("tokens", "a list with at least one token")
        return tokens

    def one_each(self, name: str, kind: type[Item], count: int) -> Sequence[Item]:
        """A list with one item for each token; empty where the file has none."""
        items = self.array(name, kind, optional=True)
        if items and len(items) != count:
            raise self.fault(name, f"a list of {count}, one for each token")
        return items

    def token_id(self, name: str, count: int) -> int | None:
        """A token's id below count; None where the field is absent, or says that there is none.

        Raises: ModelFormatError for anything else.
        """
        value = self.value(name)
        if value is None or value in _NONE:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < count:
            raise self.fault(name, f"a token id from 0 to {count - 1}")
        return value

    def end_ids(self, count: int) -> list[int]:
        """Ids that end an answer."""
        ends = (self.token_id(f"{role}_token_id", count) for role in END_ROLES)
        return [end for end in ends if end is not None]

    def control_ids(self, count: int) -> set[int]:
        """Ids of the tokens that have a role which plain text must not give them."""
        named = (self.token_id(f"{role}_token_id", count) for role in CONTROL_ROLES)
        return {token_id for token_id in named if token_id is not None}

    def flag(self, name: str, *, default: bool) -> bool:
        """True or false; default where the field is absent.

        Raises: ModelFormatError for anything else.
        """
        value = self.value(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.fault(name, "true or false")
        return value
