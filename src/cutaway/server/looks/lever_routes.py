"""Comparisons by HTTP: one thing of an answer changed, for the key that had it made.

The engine works at them in its idle moments; docs/compare.md is the contract.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated

from fastapi import APIRouter
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from cutaway.compare.levers import change_of, check_served
from cutaway.core.errors import ReplayError, RequestError
from cutaway.core.limits import LIMITS, MAX_CHANGE
from cutaway.core.looks import ComparisonRequest, EventBatch
from cutaway.server.body import read
from cutaway.server.entry.door import HttpCall, call_of
from cutaway.server.error_replies import HttpError
from cutaway.server.field_types import Body, Limited
from cutaway.server.looks.opt_in import check_on
from cutaway.server.route_context import Context
from cutaway.server.routes import describe_route, json_answer
from cutaway.server.streaming import EventStream, until_gone

_OBJECT = {"schema": {"type": "object"}}
_ANSWER = {"application/json": _OBJECT, "text/event-stream": _OBJECT}  # the latter: of each event


class CompareBody(Body):
    """What to change of an answer, as in temperature=0, and how the two are measured.

    choice: which of several answers to one request, from 0.
    max_tokens, max_bytes, max_flops: what it may take at most.
    stream: whether events tell how far it is; the last one is the answer.
    """

    change: str
    choice: Annotated[int | None, Limited("place")] = None
    runs: Annotated[int | None, Limited("runs")] = None
    price: Annotated[float | None, Limited("price")] = None
    max_tokens: Annotated[int | None, Limited("compare_tokens")] = None
    max_bytes: Annotated[int | None, Limited("compare_bytes")] = None
    max_flops: Annotated[int | None, Limited("compare_flops")] = None
    stream: bool | None = None


def router(context: Context) -> APIRouter:
    """The routes of this API; they refuse where views are off."""
    routes = APIRouter()

    @routes.get("/cutaway/v1/levers", **describe_route())
    async def levers() -> Response:
        check_on(context)
        return json_answer({"levers": context.service.model.levers})

    @routes.post(
        "/cutaway/v1/traces/{trace_id}/compare", **describe_route(CompareBody, answer=_ANSWER)
    )
    async def compare(http: HttpRequest, trace_id: str) -> Response:
        check_on(context)
        call = call_of(http.scope)
        tried, streams = await context.worker.take_in(_tried, await http.body(), trace_id, call)
        if streams:
            return EventStream(_events(context, tried), config=context.config)
        found = await until_gone(http.receive, _found(context, tried))
        return Response(found, media_type="application/json")

    return routes


def _tried(data: bytes, trace_id: str, call: HttpCall) -> tuple[ComparisonRequest, bool]:
    body = read(data, CompareBody)
    if len(body.change) > MAX_CHANGE:
        raise RequestError(
            f"change has {len(body.change)} characters; it must have at most {MAX_CHANGE}.",
            param="change",
        )
    check_served(change_of(body.change))  # here, where it costs nobody else a moment
    tried = ComparisonRequest(
        request_id=trace_id,
        choice=body.choice or 0,
        owner=call.owner.name,
        change=body.change,
        num_runs=body.runs or int(LIMITS["runs"].default or 1),
        price=None if body.price is None else float(body.price),
        max_tokens=body.max_tokens,
        max_bytes=body.max_bytes or int(LIMITS["compare_bytes"].most),
        max_flops=body.max_flops or int(LIMITS["compare_flops"].most),
    )
    return tried, bool(body.stream)


async def _batches(context: Context, tried: ComparisonRequest) -> AsyncGenerator[EventBatch]:
    try:
        async with aclosing(context.service.compare(tried)) as batches:
            async for batch in batches:
                yield batch
    except ReplayError as error:
        raise HttpError(status=404, message=str(error), code="no_trace") from None


async def _events(context: Context, tried: ComparisonRequest) -> AsyncGenerator[bytes]:
    async with aclosing(_batches(context, tried)) as batches:
        async for batch in batches:
            for _, event in batch.events:
                yield b"data: " + event + b"\n\n"


async def _found(context: Context, tried: ComparisonRequest) -> bytes:
    """The last event, which is what was found."""
    found = b""
    async with aclosing(_batches(context, tried)) as batches:
        async for batch in batches:
            found = batch.events[-1][1]
    return found
