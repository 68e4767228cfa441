"""Types of request fields: checks and schemas, made from core/limits.py where it has the field.

Every fault is a RequestError that names the field as the caller wrote it. null is the same as
leaving a field out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, cast

from pydantic import (
    BaseModel,
    ConfigDict,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    create_model,
)
from pydantic_core import core_schema

from cutaway.core import limits
from cutaway.core.errors import RequestError
from cutaway.core.limits import DRAW_SETTINGS, LIMITS, Limit, quote
from cutaway.text.object_fields import ObjectFields, RefusedField

_UNUSED = {"description": "taken, and without effect here"}
_JSON_TYPES = {"int": "integer", "float": "number", "bool": "boolean"}


class Body(BaseModel):
    """A request body: typed strictly, and nothing unknown in it."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class _Checked:
    """A field that one function checks and one JSON schema describes."""

    def check(self, value: object, param: str) -> object:
        """The value to keep. Raises: RequestError."""
        raise NotImplementedError

    @property
    def schema(self) -> dict[str, Any]:
        """Its JSON schema."""
        raise NotImplementedError

    def __get_pydantic_core_schema__(
        self, source: object, handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        def checked(value: object, info: core_schema.ValidationInfo[Any]) -> object:
            return self.check(value, info.field_name or "")

        return core_schema.with_info_plain_validator_function(checked)

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return self.schema


@dataclass(frozen=True)
class Limited(_Checked):
    """A number or switch with the range that core/limits.py gives it."""

    name: str

    def check(self, value: object, param: str) -> object:
        """The value, if it is within its range. Raises: RequestError."""
        if LIMITS[self.name].kind == "int":
            value = whole(value)
        if value is not None:
            limits.check(self.name, value, param=param)
        return value

    @property
    def schema(self) -> dict[str, Any]:
        """The range as a JSON schema, null allowed."""
        return nullable(range_schema(LIMITS[self.name]))

    def describe(self) -> str:
        """What it may be, in words."""
        return LIMITS[self.name].describe()


# What says how a token is drawn, in every API that draws.
_DRAW_FIELDS: dict[str, Any] = {
    name: (Annotated[float | None, Limited(name)], None) for name in DRAW_SETTINGS
}
DrawBody = create_model("DrawBody", __base__=Body, **_DRAW_FIELDS)


@dataclass(frozen=True)
class CheckedLater(_Checked):
    """Anything JSON: what it may be is checked where it is read.

    described: its JSON schema.
    """

    described: tuple[tuple[str, Any], ...] = ()

    def check(self, value: object, param: str) -> object:
        """The value as it came."""
        return value

    @property
    def schema(self) -> dict[str, Any]:
        """The JSON schema that describes it."""
        return dict(self.described)


@dataclass(frozen=True)
class Unused(_Checked):
    """A field of the API that says nothing about the answer here: taken and not read."""

    def check(self, value: object, param: str) -> object:
        """None, whatever was sent."""
        return None

    @property
    def schema(self) -> dict[str, Any]:
        """A JSON schema that takes anything."""
        return dict(_UNUSED)


@dataclass(frozen=True)
class Refused(RefusedField, _Checked):
    """A field of the API that would change the answer and is not supported."""

    @property
    def schema(self) -> dict[str, Any]:
        """The JSON schema of the values that ask for nothing."""
        return refusal_schema(self)


def whole(value: object) -> object:
    """An integer where JSON Schema sees one: 3.0 and 3e0 are what 3 is."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def wholes(value: object) -> object:
    """The same for each entry of a list."""
    if not isinstance(value, list):
        return value
    entries = cast("list[object]", value)
    return [whole(each) for each in entries] if float in kinds_in(entries) else entries


def kinds_in(values: Iterable[object]) -> set[type]:
    """The types of some values, in a tenth of the time that asking each takes."""
    return set(map(type, values))


def range_schema(limit: Limit) -> dict[str, Any]:
    """The JSON schema of a range."""
    schema: dict[str, Any] = {"type": _JSON_TYPES[limit.kind]}
    if limit.meaning:
        schema["description"] = limit.meaning
    if limit.kind != "bool":
        schema["exclusiveMinimum" if limit.least_open else "minimum"] = limit.least
        schema["maximum"] = limit.most
    return schema


def nullable(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema, or null."""
    return {**schema, "type": [schema["type"], "null"]}


def array(items: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """The schema of a list."""
    return {"type": "array", "items": dict(items), **more}


def optional(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema, or null."""
    return {"anyOf": [dict(schema), {"type": "null"}]}


def refusal_schema(refusal: RefusedField) -> dict[str, Any]:
    """The schema of the values that a refused field may have all the same."""
    return {
        "enum": [None, *refusal.neutral],
        "description": f"not supported. {refusal.advice}",
    }


def object_schema(
    fields: ObjectFields, values: Mapping[str, Any] | None = None, **more: Any
) -> dict[str, Any]:
    """The schema of an object inside a request. values: schemas of those fields that have one."""
    schemas: dict[str, Any] = {name: {} for name in fields.read}
    schemas.update(values or {})
    schemas.update((name, dict(_UNUSED)) for name in fields.notes)
    schemas.update((name, refusal_schema(each)) for name, each in fields.refused.items())
    return {"type": "object", "title": fields.kind, "properties": schemas, **more}


def take_schema(schema: Mapping[str, Any]) -> CheckedLater:
    """A field that is checked later, with its schema."""
    return CheckedLater(tuple(schema.items()))


Ignored = Annotated[object, Unused()]


def bias_of(value: object) -> dict[int, object] | None:
    """logit_bias as JSON writes it, with text for ids, as the engine wants it."""
    if value is None or value == []:  # PHP writes an empty object so
        return None
    if not isinstance(value, Mapping):
        raise RequestError(
            f"logit_bias is {quote(value)}; it must be an object of token ids and numbers.",
            param="logit_bias",
        )
    entries = cast("Mapping[str, object]", value)
    for key in entries:
        if not (key.isascii() and key.isdigit() and len(key) <= 10):
            raise RequestError(
                f"logit_bias has the key {quote(key)}; keys must be token ids.", param="logit_bias"
            )
    return {int(key): amount for key, amount in entries.items()}
