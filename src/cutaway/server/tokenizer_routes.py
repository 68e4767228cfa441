"""The tokenizer by HTTP: /tokenize, /detokenize and /tokenizer_info, as lm-eval asks for them.

They hang off the server's root, without /v1, since that is where vLLM has them.
"""

from __future__ import annotations

from typing import Annotated, Any, cast

from fastapi import APIRouter
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from cutaway.core.errors import RequestError
from cutaway.core.limits import quote
from cutaway.server.body import read
from cutaway.server.field_types import Body, array, kinds_in, take_schema, wholes
from cutaway.server.route_context import Context
from cutaway.server.routes import describe_route, json_answer
from cutaway.tokens.tokenizer import Tokenizer


class TokenizeBody(Body):
    """A text to cut. add_special_tokens puts a BOS in front where the model wants one."""

    prompt: str
    model: str | None = None
    add_special_tokens: bool | None = None
    control: bool | None = None  # whether names of control tokens become those tokens


class DetokenizeBody(Body):
    """Tokens to join."""

    tokens: Annotated[object, take_schema(array({"type": "integer", "minimum": 0}))]
    model: str | None = None
    skip_special_tokens: bool | None = None


def router(context: Context) -> APIRouter:
    """The routes of the tokenizer."""
    routes = APIRouter()

    @routes.post("/tokenize", **describe_route(TokenizeBody))
    async def tokenize(http: HttpRequest) -> Response:
        return json_answer(await context.worker.take_in(_tokenized, await http.body(), context))

    @routes.post("/detokenize", **describe_route(DetokenizeBody))
    async def detokenize(http: HttpRequest) -> Response:
        return json_answer(await context.worker.take_in(_detokenized, await http.body(), context))

    @routes.get("/tokenizer_info", **describe_route())
    async def tokenizer_info() -> Response:
        return json_answer(_info(context))

    return routes


def _tokenized(data: bytes, context: Context) -> dict[str, Any]:
    body = read(data, TokenizeBody)
    context.check_model(body.model or context.name)
    token_ids = context.tokenizer.encode(
        body.prompt, control=bool(body.control), bos=body.add_special_tokens is not False
    )
    return {
        "tokens": token_ids,
        "count": len(token_ids),
        "max_model_len": context.service.model.max_length,
    }


def _detokenized(data: bytes, context: Context) -> dict[str, Any]:
    body = read(data, DetokenizeBody)
    context.check_model(body.model or context.name)
    token_ids = token_ids_of(body.tokens, "tokens", vocab_size=context.service.model.vocab_size)
    skip = bool(body.skip_special_tokens)
    return {"prompt": context.tokenizer.decode(token_ids, skip_control=skip)}


def token_ids_of(value: object, param: str, *, vocab_size: int) -> list[int]:
    """A list of ids that the model has. Raises: RequestError naming the field and the id."""
    if not isinstance(value, list):
        raise RequestError(f"{param} is {quote(value)}; it must be a list.", param=param)
    items = cast("list[int]", value)
    if kinds_in(items) == {int} and min(items) >= 0 and max(items) < vocab_size:
        return items
    token_ids = cast("list[int]", wholes(items))
    for item in cast("list[object]", token_ids):
        is_id = isinstance(item, int) and not isinstance(item, bool)
        if not is_id or not 0 <= cast(int, item) < vocab_size:
            raise RequestError(
                f"{param} holds {quote(item)}; token ids go from 0 to {vocab_size - 1}.",
                param=param,
            )
    return token_ids


def _info(context: Context) -> dict[str, Any]:
    tokenizer = context.tokenizer
    ends = sorted(tokenizer.eos_token_ids)
    eos = _name(tokenizer, ends[0] if ends else None)
    return {
        "model": context.name,
        "vocab_size": tokenizer.vocab_size,
        "bos_token": _name(tokenizer, tokenizer.bos_token_id),
        "eos_token": eos,
        "pad_token": eos,  # nothing is ever padded here; clients want a name all the same
        "chat_template": context.template_source,
        "fingerprint": tokenizer.fingerprint,
    }


def _name(tokenizer: Tokenizer, token_id: int | None) -> str | None:
    return None if token_id is None else tokenizer.token_bytes(token_id).decode(errors="replace")
