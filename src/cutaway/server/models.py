"""The list of models: what is served and its adapters, in OpenAI's shape or in Anthropic's."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from cutaway.server.error_replies import is_anthropic
from cutaway.server.lora_routes import models_of
from cutaway.server.route_context import Context
from cutaway.server.routes import describe_route, json_answer


def router(context: Context) -> APIRouter:
    """The routes of both APIs: what they are asked by tells which shape is meant."""
    routes = APIRouter()

    @routes.get("/v1/models", **describe_route())
    async def models(http: HttpRequest) -> Response:
        if not is_anthropic(http.scope):
            loaded = models_of(context)
            return json_answer({**loaded, "data": [_openai(context), *loaded["data"]]})
        names = [context.name, *(each.name for each in context.adapters)]
        ends = {"first_id": names[0], "last_id": names[-1]}
        data = [_anthropic(context, name) for name in names]
        return json_answer({"data": data, "has_more": False, **ends})

    @routes.get("/v1/models/{model:path}", **describe_route())
    async def model(http: HttpRequest, model: str) -> Response:
        context.check_model(model)
        if is_anthropic(http.scope):
            return json_answer(_anthropic(context, model))
        own = (each for each in models_of(context)["data"] if each["id"] == model)
        return json_answer(_openai(context) if model == context.name else next(own))

    return routes


def _openai(context: Context) -> dict[str, Any]:
    most = _max_length(context)
    return {
        "id": context.name,
        "object": "model",
        "created": context.created,
        "owned_by": "cutaway",
        **({} if most is None else {"max_model_len": most, "about": _about(context)}),
        **({"sampling": dict(context.sampling)} if context.sampling else {}),
    }


def _about(context: Context) -> dict[str, Any]:
    """What the page says of the model beside its name."""
    card = context.service.model
    names = ("architecture", "num_parameters", "dtype", "device", "licence", "settings")
    return {name: getattr(card, name) for name in names}


def _anthropic(context: Context, name: str) -> dict[str, Any]:
    most = _max_length(context)
    return {
        "type": "model",
        "id": name,
        "display_name": name,
        "created_at": datetime.fromtimestamp(context.created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        **({} if most is None else {"max_input_tokens": most, "max_tokens": most}),
    }


def _max_length(context: Context) -> int | None:
    """Tokens of prompt and answer together; not known while the model is being loaded."""
    return context.service.model.max_length if context.service.state == "ready" else None
