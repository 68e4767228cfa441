"""Events of answers and a snapshot of the engine by HTTP, for who may look inside.

docs/events.md is the contract; what is told is made by the engine, this is the way out.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from contextlib import aclosing

from fastapi import APIRouter
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from cutaway.core.errors import ReplayError, RequestError
from cutaway.core.limits import LIMITS, quote
from cutaway.core.looks import EventRequest
from cutaway.server.entry.door import call_of
from cutaway.server.error_replies import HttpError
from cutaway.server.looks.opt_in import check_on, clock
from cutaway.server.route_context import Context
from cutaway.server.routes import describe_route, json_answer
from cutaway.server.streaming import EventStream, until_gone
from cutaway.trace.events import SCHEMA

_INTEGER = re.compile(r"-?[0-9]{1,12}")  # int() of a million digits would take its time
_CHOICE = {
    "name": "choice",
    "in": "query",
    "description": "which of several answers, counted over all prompts",
    "schema": {"type": "integer", "minimum": 0, "maximum": int(LIMITS["place"].most)},
}
_AFTER = {
    "name": "Last-Event-ID",
    "in": "header",
    "description": "the number of the last event that is known",
    "schema": {"type": "integer", "minimum": 0, "maximum": int(LIMITS["place"].most)},
}


def router(context: Context) -> APIRouter:
    """The routes of this API; they refuse where views are off."""
    routes = APIRouter()
    events_of = describe_route(answer={}, streams=True)
    events_of["responses"][204] = {"description": "the last event is known already"}
    events_of["openapi_extra"] = {"parameters": [_CHOICE, _AFTER]}

    @routes.get("/cutaway/v1/traces/{trace_id}/events", **events_of)
    async def events(http: HttpRequest, trace_id: str) -> Response:
        check_on(context)
        listened = EventRequest(
            request_id=trace_id,
            choice=_number(http.query_params.get("choice", "0"), "choice"),
            owner=call_of(http.scope).owner.name,
            after=_number(http.headers.get("last-event-id", "-1"), "Last-Event-ID", least=-1),
        )
        return EventStream(
            _events(context, listened), config=context.config, error_event=_error_event
        )

    @routes.get("/cutaway/v1/engine", **describe_route())
    async def engine(http: HttpRequest) -> Response:
        check_on(context)
        owner = call_of(http.scope).owner.name
        told = await until_gone(http.receive, context.service.snapshot(owner))
        return Response(told, media_type="application/json")

    @routes.get("/cutaway/v1/clock", **describe_route())
    async def now() -> Response:
        check_on(context)
        return json_answer({"schema": SCHEMA, "now": clock()})

    return routes


async def _events(context: Context, listened: EventRequest) -> AsyncGenerator[bytes]:
    """Each batch as it came; the next is asked for when this one has gone out."""
    try:
        async with aclosing(context.service.listen(listened)) as batches:
            async for batch in batches:
                if batch.events:
                    yield b"".join(
                        b"id: %d\ndata: %b\n\n" % (number, event) for number, event in batch.events
                    )
    except ReplayError as error:
        raise HttpError(status=404, message=str(error), code="no_trace") from None


def _error_event(body: bytes) -> bytes:
    """An error amid events, given its JSON object."""
    return b'data: {"schema":%d,"type":"error",%b\n\n' % (SCHEMA, body[1:])


def _number(text: str, param: str, *, least: int = 0) -> int:
    """Raises: RequestError for what is no number in range."""
    most = int(LIMITS["place"].most)
    if not _INTEGER.fullmatch(text) or not least <= int(text) <= most:
        raise RequestError(
            f"{param} is {quote(text)}; it must be an integer from {max(0, least)} to {most}.",
            param=param,
        )
    return int(text)
