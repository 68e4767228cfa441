"""Which fields an object inside a request may have: read, without effect here, or refused.

It knows no API: each says what its objects hold, and what it says is checked, described and shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cutaway.core.errors import RequestError
from cutaway.core.limits import inside, quote, similar


@dataclass(frozen=True)
class RefusedField:
    """A field that would change the answer and is not supported.

    neutral: values that ask for nothing, so that they may be sent.
    """

    advice: str
    neutral: tuple[object, ...] = ()

    def check(self, value: object, param: str) -> object:
        """None, if the value asks for nothing. Raises: RequestError."""
        for allowed in (None, *self.neutral):
            if type(value) is type(allowed) and value == allowed:
                return None
        raise RequestError(
            f"{param} is {quote(value)}; Cutaway does not support it. {self.advice}", param=param
        )


@dataclass(frozen=True)
class ObjectFields:
    """The fields of one kind of object.

    kind:    what it is called, as in "a text part".
    read:    what acts.
    notes:   what changes nothing here, and is taken.
    refused: what would change the answer and is not supported.
    """

    kind: str
    read: tuple[str, ...]
    notes: tuple[str, ...] = ()
    refused: Mapping[str, RefusedField] = field(default_factory=dict[str, RefusedField])

    @property
    def names(self) -> tuple[str, ...]:
        """All that may be sent."""
        return (*self.read, *self.notes, *self.refused)

    def check(self, fields: Mapping[str, object], param: str) -> None:
        """Let nothing through that would be dropped in silence; null is as good as left out.

        Raises: RequestError naming the field by its path.
        """
        for name, value in fields.items():
            if name in self.refused:
                self.refused[name].check(value, inside(param, name))
            elif value is not None and name not in self.read and name not in self.notes:
                near = similar(name, self.names)
                hint = f"Did you mean {near[0]}?" if near else "Leave it out."
                place = inside(param, name)
                raise RequestError(f"{place} is not a field of {self.kind}. {hint}", param=place)
