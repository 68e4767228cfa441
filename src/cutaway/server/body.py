"""From the bytes of a body to a checked request: strict JSON, bounded depth, named fields.

Runs in worker threads. It knows no API; what a body may hold is its model's own.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TypeVar, cast

import msgspec
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from cutaway.core.errors import RequestError
from cutaway.core.limits import quote, shorten, similar
from cutaway.server.field_types import Body, kinds_in
from cutaway.server.server_config import MAX_DEPTH

B = TypeVar("B", bound=Body)

_CONTAINERS = (dict, list)

# What pydantic calls a fault of type, and what the value must be.
_MUST_BE = {
    "string_type": "a string",
    "bool_type": "true or false",
    "int_type": "an integer",
    "float_type": "a number",
    "list_type": "a list",
    "dict_type": "an object",
    "model_type": "an object",
    "model_attributes_type": "an object",
}


def read(data: bytes, kind: type[B]) -> B:
    """A body of that kind. Raises: RequestError naming the field at fault."""
    return check_body(decode(data), kind)


def decode(data: bytes) -> Mapping[str, object]:
    """The JSON object in a body.

    Stricter than json.loads, as RFC 8259 has it: no NaN, no lone surrogate, UTF-8 alone.
    """
    try:
        value: object = msgspec.json.decode(data)
    except RecursionError:
        raise _too_deep() from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        place = f" {error}." if isinstance(error, msgspec.MsgspecError) else ""
        raise RequestError(f"the body is not JSON in UTF-8.{place}") from None
    if not isinstance(value, dict):
        raise RequestError("the body is not a JSON object; send one, as in {...}.")
    _check_depth(cast("dict[str, object]", value))
    return cast("dict[str, object]", value)


def check_body(value: Mapping[str, object], kind: type[B]) -> B:
    """The same object as a body of that kind."""
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        raise _named(error.errors(include_url=False, include_context=False)[0], kind) from None


def _named(error: ErrorDetails, kind: type[Body]) -> RequestError:
    """What pydantic found, in words of our own."""
    param = _path(error["loc"])
    if error["type"] == "missing":
        return RequestError(f"{param} is missing; the request needs it.", param=param)
    if error["type"] == "extra_forbidden":
        near = similar(str(error["loc"][-1]), kind.model_fields)
        hint = f"Did you mean {near[0]}?" if near else "Leave it out."
        return RequestError(f"{quote(param)} is not a field of this request. {hint}", param=param)
    must_be = _MUST_BE.get(error["type"])
    assert must_be is not None, f"a fault of type {error['type']} has words here"
    return RequestError(f"{param} is {quote(error['input'])}; it must be {must_be}.", param=param)


def _path(location: Sequence[int | str]) -> str:
    path = ""
    for part in location:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else part
    return shorten(path)


def _check_depth(value: object) -> None:
    """Raise RequestError for more than MAX_DEPTH levels; goes level by level, so never deep."""
    level = _filled((value,))
    for _ in range(MAX_DEPTH - 1):
        if not level:
            return
        level = [item for container in level for item in _filled(_members(container))]
    if level:
        raise _too_deep()


def _filled(values: Collection[object]) -> list[object]:
    """Those that hold something: a prompt's thousands of ids are passed over at once."""
    if kinds_in(values).isdisjoint(_CONTAINERS):
        return []
    return [each for each in values if isinstance(each, _CONTAINERS) and each]


def _members(value: object) -> Collection[object]:
    if isinstance(value, dict):
        return cast("dict[str, object]", value).values()
    return cast("list[object]", value)


def _too_deep() -> RequestError:
    return RequestError(
        f"the body is nested too deeply; at most {MAX_DEPTH} levels are allowed.", param=None
    )
