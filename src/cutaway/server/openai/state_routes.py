"""Routes of what Responses keeps: answers, their input, and conversations. Only with a store."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from cutaway.core.errors import RequestError
from cutaway.core.limits import quote
from cutaway.core.whole_numbers import whole_number
from cutaway.server.body import read
from cutaway.server.entry.door import call_of
from cutaway.server.error_replies import HttpError
from cutaway.server.field_types import Body, optional, take_schema
from cutaway.server.openai.kept import Entry, Kept, Kind
from cutaway.server.openai.responses_fields import ITEM_LIST
from cutaway.server.openai.responses_input import messages_of
from cutaway.server.openai.responses_state import as_items, find_entry
from cutaway.server.route_context import Context
from cutaway.server.routes import describe_route, json_answer
from cutaway.server.tools import object_of

MAX_LISTED = 100
_ITEMS = {**ITEM_LIST, "minItems": 0, "maxItems": 20}


class ConversationBody(Body):
    """The body that begins a conversation."""

    items: Annotated[object, take_schema(optional(_ITEMS))] = None
    metadata: Annotated[object, take_schema(optional({"type": "object"}))] = None


def router(context: Context) -> APIRouter:
    """The routes; none where nothing is kept."""
    routes = APIRouter()
    store = context.store
    if store is None:
        return routes
    _responses(routes, context, store)
    _conversations(routes, context, store)
    return routes


def _responses(routes: APIRouter, context: Context, store: Kept) -> None:
    run = context.worker.run

    @routes.get("/v1/responses/{response_id}", **describe_route())
    async def response(http: HttpRequest, response_id: str) -> Response:
        entry = await run(find_entry, store, _owner(http), response_id, "response")
        return json_answer(entry["response"])

    @routes.delete("/v1/responses/{response_id}", **describe_route())
    async def forget(http: HttpRequest, response_id: str) -> Response:
        await run(_forget, store, _owner(http), response_id, "response")
        return json_answer({"id": response_id, "object": "response", "deleted": True})

    @routes.post("/v1/responses/{response_id}/cancel", **describe_route())
    async def cancel(http: HttpRequest, response_id: str) -> Response:
        await run(find_entry, store, _owner(http), response_id, "response")
        raise HttpError(
            status=400,
            message=f"Response {quote(response_id)} is complete. Only answers in the background "
            "can be cancelled, and this server has none; to end one that is streamed, close its "
            "connection.",
            code="not_cancellable",
        )

    @routes.get("/v1/responses/{response_id}/input_items", **describe_route())
    async def input_items(http: HttpRequest, response_id: str) -> Response:
        entry = await run(find_entry, store, _owner(http), response_id, "response")
        return json_answer(_page(entry["input"], http))


def _conversations(routes: APIRouter, context: Context, store: Kept) -> None:
    run = context.worker.run

    @routes.post("/v1/conversations", **describe_route(ConversationBody))
    async def begin(http: HttpRequest) -> Response:
        data = await http.body()
        return json_answer(await context.worker.take_in(_begun, store, _owner(http), data))

    @routes.get("/v1/conversations/{conversation_id}", **describe_route())
    async def conversation(http: HttpRequest, conversation_id: str) -> Response:
        entry = await run(find_entry, store, _owner(http), conversation_id, "conversation")
        return json_answer(entry["conversation"])

    @routes.delete("/v1/conversations/{conversation_id}", **describe_route())
    async def forget(http: HttpRequest, conversation_id: str) -> Response:
        await run(_forget, store, _owner(http), conversation_id, "conversation")
        told = {"id": conversation_id, "object": "conversation.deleted", "deleted": True}
        return json_answer(told)

    @routes.get("/v1/conversations/{conversation_id}/items", **describe_route())
    async def items(http: HttpRequest, conversation_id: str) -> Response:
        entry = await run(find_entry, store, _owner(http), conversation_id, "conversation")
        return json_answer(_page(entry["items"], http))


def _owner(http: HttpRequest) -> str:
    return call_of(http.scope).owner.name


def _forget(store: Kept, owner: str, entry_id: str, kind: Kind) -> None:
    find_entry(store, owner, entry_id, kind)
    _written(store.remove, owner, entry_id, kind)


def _begun(store: Kept, owner: str, data: bytes) -> Entry:
    body = read(data, ConversationBody)
    if body.items is not None:
        messages_of(None, body.items, place="items")
    metadata = {} if body.metadata is None else dict(object_of(body.metadata, "metadata"))
    conversation: Entry = {
        "id": f"conv_{uuid.uuid4().hex}",
        "object": "conversation",
        "created_at": int(time.time()),
        "metadata": metadata,
    }
    items = [] if body.items is None else as_items(body.items)
    entry: Entry = {"conversation": conversation, "items": items}
    _written(store.put, owner, conversation["id"], "conversation", entry)
    return conversation


def _written(write: Callable[..., object], *args: object) -> None:
    try:
        write(*args)
    except OSError as error:
        raise HttpError(
            status=507, message=f"nothing can be kept: {error}.", code="store_full"
        ) from None


def _page(items: list[Entry], http: HttpRequest) -> dict[str, Any]:
    """A part of a list, the newest first unless `order` is asc. Raises: RequestError."""
    query = http.query_params
    limit, order, after = query.get("limit", "20"), query.get("order", "desc"), query.get("after")
    most = whole_number(limit)
    if most is None or not 1 <= most <= MAX_LISTED:
        raise RequestError(
            f"limit is {quote(limit)}; it must be an integer from 1 to {MAX_LISTED}.", param="limit"
        )
    if order not in ("asc", "desc"):
        raise RequestError(f"order is {quote(order)}; it must be asc or desc.", param="order")
    ordered = items if order == "asc" else items[::-1]
    ids = [item["id"] for item in ordered]
    if after is not None and after not in ids:
        raise RequestError(f"after is {quote(after)}; no item has this id.", param="after")
    start = 0 if after is None else ids.index(after) + 1
    listed = ordered[start : start + most]
    return {
        "object": "list",
        "data": listed,
        "first_id": listed[0]["id"] if listed else None,
        "last_id": listed[-1]["id"] if listed else None,
        "has_more": start + most < len(ordered),
    }
