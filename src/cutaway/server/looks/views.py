"""Views of answers by HTTP: an answer's own id opens it, for the key that had it made.

What a view computes it computes in the engine's idle moments, within bounds of bytes and FLOPs.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from cutaway.core.errors import ReplayError, RequestError, TraceFileError
from cutaway.core.limits import LIMITS, MAX_VIEW_TEXT
from cutaway.core.looks import FileRequest, ViewRequest
from cutaway.server.body import read
from cutaway.server.entry.door import HttpCall, call_of
from cutaway.server.error_replies import HttpError
from cutaway.server.field_types import Body, Limited
from cutaway.server.looks.opt_in import check_on
from cutaway.server.route_context import Context
from cutaway.server.routes import describe_route, json_answer
from cutaway.server.streaming import until_gone
from cutaway.trace.viewer import with_viewer

_FRAME = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
_BINARY = {"schema": {"type": "string", "format": "binary"}}
_FILE = {"application/zip": _BINARY, "text/html": {"schema": {"type": "string"}}}
_JSON = {"application/json": {"schema": {"type": "object"}}}


class ViewBody(Body):
    """A view of an answer, and places in it: each view takes some of them.

    choice:    which of several answers to one request, from 0.
    position:  a token of prompt and answer together, from 0.   token: one of the answer alone.
    only_cost: what it would take is told instead, as JSON, and nothing is computed.
    start:     of the tokens that are told, where they are too many for one answer.
    max_bytes, max_flops: what running the answer again may take at most.
    """

    view: str
    choice: Annotated[int | None, Limited("place")] = None
    position: Annotated[int | None, Limited("place")] = None
    token: Annotated[int | None, Limited("place")] = None
    layer: Annotated[int | None, Limited("place")] = None
    head: Annotated[int | None, Limited("place")] = None
    expert: Annotated[int | None, Limited("place")] = None
    top: Annotated[int | None, Limited("top")] = None
    text: str | None = None
    start: Annotated[int | None, Limited("place")] = None
    only_cost: bool | None = None
    max_bytes: Annotated[int | None, Limited("view_bytes")] = None
    max_flops: Annotated[int | None, Limited("view_flops")] = None


class FileBody(Body):
    """An answer as a trace file, or within the page's viewer as one HTML document.

    choice: which of several answers to one request, from 0.
    views:  by name, as in tokens,cost; all unless named.   token: at which each of them is too.
    steps, layers, heads: places, as in 0,7,20-30 (docs/trace.md).   redact: no ids and texts.
    """

    choice: Annotated[int | None, Limited("place")] = None
    views: str | None = None
    token: Annotated[int | None, Limited("place")] = None
    steps: str | None = None
    layers: str | None = None
    heads: str | None = None
    redact: bool | None = None
    html: bool | None = None


def router(context: Context) -> APIRouter:
    """The routes of this API; they refuse where views are off."""
    routes = APIRouter()

    @routes.get("/cutaway/v1/views", **describe_route())
    async def views() -> Response:
        check_on(context)
        return json_answer({"views": context.service.model.views})

    @routes.post(
        "/cutaway/v1/traces/{trace_id}/views", **describe_route(ViewBody, answer=_JSON | _FRAME)
    )
    async def view(http: HttpRequest, trace_id: str) -> Response:
        check_on(context)
        call = call_of(http.scope)
        accepted = "application/json" in http.headers.get("accept", "")
        body = await http.body()
        asked = await context.worker.take_in(_asked, body, trace_id, call, is_json=accepted)
        try:
            frame = await until_gone(http.receive, context.service.view(asked))
        except ReplayError as error:
            raise HttpError(status=404, message=str(error), code="no_trace") from None
        kind = "application/json" if accepted or asked.is_cost else "application/octet-stream"
        return Response(frame, media_type=kind)

    @routes.post("/cutaway/v1/traces/{trace_id}/file", **describe_route(FileBody, answer=_FILE))
    async def file(http: HttpRequest, trace_id: str) -> Response:
        check_on(context)
        call = call_of(http.scope)
        asked, is_page = await context.worker.take_in(_kept, await http.body(), trace_id, call)
        try:
            made = await until_gone(http.receive, context.service.view(asked))
            made = await context.worker.run(_page, made) if is_page else made
        except ReplayError as error:
            raise HttpError(status=404, message=str(error), code="no_trace") from None
        except TraceFileError as error:
            raise HttpError(status=404, message=str(error), code="no_viewer") from None
        kind = "text/html" if is_page else "application/zip"
        name = f"trace.{'html' if is_page else 'cutaway'}"
        # Never shown as a page of this server: its origin has the browser's cookie.
        headers = {"content-disposition": f'attachment; filename="{name}"'}
        return Response(made, media_type=kind, headers=headers)

    return routes


def _page(data: bytes) -> bytes:
    return with_viewer(data, file="the trace").encode()


def _kept(data: bytes, trace_id: str, call: HttpCall) -> tuple[ViewRequest, bool]:
    """What is asked for, and whether as a page."""
    body = read(data, FileBody)
    kept = FileRequest(
        views=tuple(name.strip() for name in (body.views or "").split(",") if name.strip()),
        token=body.token,
        steps=body.steps,
        layers=body.layers,
        heads=body.heads,
        redact=bool(body.redact),
    )
    asked = ViewRequest(
        request_id=trace_id,
        choice=body.choice or 0,
        owner=call.owner.name,
        view="",
        places={},
        is_json=False,
        is_cost=False,
        max_bytes=int(LIMITS["view_bytes"].most),
        max_flops=int(LIMITS["view_flops"].most),
        file=kept,
    )
    return asked, bool(body.html)


def _asked(data: bytes, trace_id: str, call: HttpCall, *, is_json: bool) -> ViewRequest:
    body = read(data, ViewBody)
    num_bytes = len((body.text or "").encode("utf-8", "surrogatepass"))
    if num_bytes > MAX_VIEW_TEXT:
        raise RequestError(
            f"text has {num_bytes} bytes; it must have at most {MAX_VIEW_TEXT}.", param="text"
        )
    places: dict[str, Any] = body.model_dump(
        exclude={"view", "choice", "only_cost", "max_bytes", "max_flops"}, exclude_none=True
    )
    return ViewRequest(
        request_id=trace_id,
        choice=body.choice or 0,
        owner=call.owner.name,
        view=body.view,
        places=places,
        is_json=is_json,
        is_cost=bool(body.only_cost),
        max_bytes=body.max_bytes or int(LIMITS["view_bytes"].most),
        max_flops=body.max_flops or int(LIMITS["view_flops"].most),
    )
