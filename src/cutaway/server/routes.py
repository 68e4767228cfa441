"""How routes are described in OpenAPI, and how they answer with JSON."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, cast

import msgspec
from starlette.responses import Response

from cutaway.server.field_types import Body

_ERROR = {
    "type": "object",
    "properties": {
        "error": {
            "type": "object",
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
            "required": ["message", "type", "param", "code"],
        }
    },
    "required": ["error"],
}
REFUSALS = {
    400: "a field is out of range, or the body is not JSON",
    401: "the API key is missing or wrong",
    403: "Host or Origin is foreign",
    404: "no such model or path",
    405: "no such method here",
    408: "the body came too slowly",
    413: "the body is too large",
    431: "the headers are too large",
    503: "too much waits already, or the model is not ready",
}
_ANY_JSON = {"application/json": {"schema": {"type": "object"}}}
_EVENTS = {"text/event-stream": {"schema": {"type": "object"}}}  # each event: its data and name
PLAIN_TEXT = {"text/plain": {"schema": {"type": "string"}}}


def describe_route(
    body: type[Body] | None = None,
    *,
    answer: dict[str, Any] = _ANY_JSON,
    streams: bool = False,
    error: dict[str, Any] = _ERROR,
    refusals: Mapping[int, str] = REFUSALS,
) -> dict[str, Any]:
    """Arguments of a route's decorator: what it reads and writes, errors among it.

    refusals: the statuses of its errors, and what each says.

    FastAPI is not given the body's type: it would parse on the event loop and answer 422.
    """
    content = {"application/json": {"schema": error}}
    responses: dict[int, dict[str, Any]] = {
        200: {"description": "the answer", "content": answer | (_EVENTS if streams else {})},
        **{code: {"description": text, "content": content} for code, text in refusals.items()},
    }
    described: dict[str, Any] = {"responses": responses, "response_model": None}
    if body is not None:
        content = {"application/json": {"schema": _schema_of(body)}}
        described["openapi_extra"] = {"requestBody": {"required": True, "content": content}}
    return described


def json_answer(value: object) -> Response:
    """A whole answer."""
    return Response(msgspec.json.encode(value), media_type="application/json")


@cache
def _schema_of(body: type[Body]) -> dict[str, Any]:
    """What a body may hold. Made once: it takes two thirds of the time to build an application."""
    return _inlined(body.model_json_schema())


def _inlined(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema with its own definitions put where they are named: OpenAPI looks elsewhere."""
    definitions = schema.pop("$defs", {})

    def filled(node: Any) -> Any:
        if isinstance(node, dict):
            entries = cast("dict[str, Any]", node)
            if "$ref" in entries:
                return filled(definitions[entries["$ref"].rpartition("/")[2]])
            return {name: filled(item) for name, item in entries.items()}
        if isinstance(node, list):
            return [filled(item) for item in cast("list[Any]", node)]
        return node

    return filled(schema)
