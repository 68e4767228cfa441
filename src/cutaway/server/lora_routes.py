"""Adapters by HTTP: loaded and unloaded while the server runs, in vLLM's words."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from cutaway.core.errors import ConfigError, ModelError, RequestError
from cutaway.core.limits import quote
from cutaway.server.body import read
from cutaway.server.entry.door import call_of
from cutaway.server.entry.owner import ANYBODY
from cutaway.server.error_replies import HttpError
from cutaway.server.field_types import Body, Ignored
from cutaway.server.route_context import Context
from cutaway.server.routes import describe_route, json_answer


class LoadBody(Body):
    """A folder in peft's layout on the server's own disk, and what requests will call it."""

    lora_name: str
    lora_path: str
    base_model_name: Ignored = None  # there is one


class UnloadBody(Body):
    """An adapter that is loaded."""

    lora_name: str
    lora_int_id: Ignored = None


def router(context: Context) -> APIRouter:
    """The routes of this API."""
    routes = APIRouter()

    @routes.post("/v1/load_lora_adapter", **describe_route(LoadBody))
    async def load(http: HttpRequest) -> Response:
        _check_caller(context, http)
        body = await context.worker.take_in(_load, await http.body(), context)
        return await _adapted(context, body.lora_name, body.lora_path)

    @routes.post("/v1/unload_lora_adapter", **describe_route(UnloadBody))
    async def unload(http: HttpRequest) -> Response:
        _check_caller(context, http)
        body = await context.worker.take_in(read, await http.body(), UnloadBody)
        return await _adapted(context, body.lora_name, None)

    return routes


def _check_caller(context: Context, http: HttpRequest) -> None:
    """A path is read from this machine's disk: strangers may not name one."""
    if call_of(http.scope).owner == ANYBODY and context.config.is_public:
        raise HttpError(
            status=403,
            message="adapters are loaded and unloaded with an API key, and this server has none. "
            "Start it with --api-key-file, or name the adapter by --lora.",
            code="key_needed",
        )


def _load(data: bytes, context: Context) -> LoadBody:
    body = read(data, LoadBody)
    if body.lora_name == context.name:
        raise RequestError(
            f"lora_name is {quote(body.lora_name)}, which is the model itself; take another name.",
            param="lora_name",
        )
    return body


async def _adapted(context: Context, name: str, path: str | None) -> Response:
    try:
        await context.service.adapt(name, path)
    except ModelError as error:  # no such file, a lying one, or one that is not read
        raise RequestError(_without_path(error, path or ""), param="lora_path") from None
    except ConfigError as error:
        raise RequestError(str(error), param="lora_name") from None
    return json_answer(models_of(context))


def _without_path(error: ModelError, path: str) -> str:
    """The error in few words, however long the path that was sent."""
    return str(error).replace(path, quote(path)) if len(path) > 80 else str(error)


def models_of(context: Context) -> dict[str, Any]:
    """The adapters that are loaded now."""
    return {
        "object": "list",
        "data": [
            {
                "id": each.name,
                "object": "model",
                "created": context.created,
                "owned_by": "cutaway",
                "root": each.path,
                "parent": context.name,
                "lora": {"rank": each.rank, "matrices": each.num_matrices, "bytes": each.num_bytes},
            }
            for each in context.adapters
        ],
    }
