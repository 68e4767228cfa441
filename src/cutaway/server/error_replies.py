"""Every error as the API of its route writes it, with a fitting status.

No traceback, path or class name leaves the server: what is not the client's or an operator's to
know becomes one plain sentence.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec
from starlette.exceptions import HTTPException

from cutaway.core.errors import (
    CutawayError,
    DeadlineError,
    EngineClosedError,
    NumericsError,
    OverloadedError,
    RequestError,
    TemplateError,
)
from cutaway.core.limits import quote, shorten

MAX_MESSAGE = 1_000  # characters

# OpenAI's name for the kind of error that a status stands for.
_KINDS = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}

# Parts of other servers' APIs that clients may look for, and what to do instead.
_NO_VECTORS = "Cutaway serves models that write text; take an embedding server."
_NO_SCORES = "Cutaway ranks no texts; take a server of reranking models."
_OPENAIS = "Its API is that of OpenAI: use /v1/chat/completions or /v1/completions."
# Routes that clients put behind whatever address they are given.
WHOLE = ("/v1/chat/completions", "/v1/completions", "/v1/messages")
ABSENT = {
    "/v1/embeddings": _NO_VECTORS,
    "/embeddings": _NO_VECTORS,
    "/embedding": _NO_VECTORS,
    "/embed": _NO_VECTORS,
    "/api/embed": _NO_VECTORS,
    "/api/embeddings": _NO_VECTORS,
    "/v1/rerank": _NO_SCORES,
    "/v2/rerank": _NO_SCORES,
    "/rerank": _NO_SCORES,
    "/v1/score": _NO_SCORES,
    "/score": _NO_SCORES,
    "/v1/classify": _NO_SCORES,
    "/api/chat": _OPENAIS,
    "/api/generate": _OPENAIS,
    "/generate": _OPENAIS,
    "/invocations": _OPENAIS,
    "/infill": "It continues texts and fills no gaps; use /v1/completions.",
    "/apply-template": "POST /tokenize with messages gives the tokens of a conversation.",
    "/props": "GET /v1/models has what there is to know of the model.",
    "/slots": "GET /v1/loads tells what runs.",
    "/v1/complete": "Use /v1/messages.",
    "/v1/engines": "GET /v1/models lists the models.",
    "/api/tags": "Its API is that of OpenAI: GET /v1/models lists the models.",
    "/api": _OPENAIS,
    "/chat/completions": "Its paths begin with /v1: give clients the address with /v1.",
    "/completions": "Its paths begin with /v1: give clients the address with /v1.",
    "/completion": _OPENAIS,
    "/models": "Its paths begin with /v1: give clients the address with /v1.",
    "/messages": "Its paths begin with /v1: use /v1/messages.",
    "/v1/v1": "The address has /v1 twice; leave one out.",
    "/v1/moderations": "Cutaway has no moderation model.",
    "/v1/audio": "Cutaway reads and writes text alone.",
    "/v1/images": "Cutaway reads and writes text alone.",
    "/v1/files": "Cutaway keeps no files.",
    "/v1/batches": "Cutaway keeps no jobs; send requests at once, they share steps.",
    "/v1/fine_tuning": "Cutaway trains no models by HTTP.",
    "/v1/assistants": "Cutaway keeps no conversations; use /v1/chat/completions.",
    "/v1/responses/compact": "It packs no history; have the client sum up what was said.",
    "/v1/responses/input_tokens": "POST /v1/messages/count_tokens counts a conversation's tokens.",
    "/v1/responses": "This server keeps no answers; start it with --store FILE for that.",
    "/v1/conversations": "This server keeps no conversations; start it with --store FILE for that.",
    "/v1/threads": "Cutaway keeps no conversations; use /v1/chat/completions.",
}


@dataclass(kw_only=True, eq=False)
class HttpError(Exception):
    """An error as it is told to a client.

    retry_after: seconds after which another try may succeed.
    headers:     further headers of the answer.
    """

    status: int
    message: str
    param: str | None = None
    code: str | None = None
    retry_after: float | None = None
    headers: tuple[tuple[str, str], ...] = ()


class ModelUnknownError(RequestError):
    """The request names a model that is not served."""

    code = "model_not_found"

    def __init__(self, name: str, served: str) -> None:
        super().__init__(
            f"model is {quote(name)}; this server has {served}. GET /v1/models lists it.",
            param="model",
        )


def fault_of(error: Exception) -> HttpError:
    """What a client is told of an error."""
    words = str.__str__(str(error))  # a template's own words are marked, and no plain str
    match error:
        case HttpError():
            return error
        case ModelUnknownError():
            return HttpError(status=404, message=words, param=error.param, code=error.code)
        case RequestError():
            return HttpError(status=400, message=words, param=error.param, code=error.code)
        case TemplateError():
            return HttpError(status=400, message=words, param="messages", code="template_error")
        case OverloadedError():
            return HttpError(
                status=503, message=words, code="overloaded", retry_after=error.retry_after
            )
        case EngineClosedError():
            return HttpError(status=503, message=words, code="engine_unavailable", retry_after=5)
        case DeadlineError():
            # Another try would take as long; OpenAI's clients heed this header.
            stay = (("x-should-retry", "false"),)
            return HttpError(status=408, message=words, code=error.code, headers=stay)
        case NumericsError():
            return HttpError(status=500, message=words, code="numerics")
        case CutawayError():
            return HttpError(status=500, message=words)
        case HTTPException():
            return _routing_fault(error)
        case _:
            return HttpError(
                status=500,
                message="a fault of Cutaway itself; the log has it under this request's id.",
                code="internal_error",
            )


def absent(path: str) -> HttpError:
    """A route that does not exist here."""
    for known, advice in ABSENT.items():
        if path == known or path.startswith(f"{known}/"):
            return HttpError(
                status=404,
                message=f"{shorten(path)} is not served. {advice}",
                code="unsupported_endpoint",
            )
    whole = next((each for each in WHOLE if path.startswith(f"{each}/")), None)
    if whole is not None:
        return HttpError(
            status=404,
            message=f"{shorten(path)} is not served. Give the client the address that ends in /v1; "
            f"it adds {whole.removeprefix('/v1')} itself.",
            code="unsupported_endpoint",
        )
    return HttpError(
        status=404,
        message=f"there is no {quote(path)} here. GET /openapi.json lists what there is.",
        code="not_found",
    )


def is_anthropic(scope: Mapping[str, Any]) -> bool:
    """Whether a request is of Anthropic's API: by its path, or its header where two share one."""
    path: str = scope["path"]
    has_version = any(name == b"anthropic-version" for name, _ in scope["headers"])
    return path.startswith("/v1/messages") or (has_version and path.startswith("/v1/models"))


def encode_fault(fault: HttpError, scope: Mapping[str, Any] | None = None) -> bytes:
    """The error object that clients of the request's API expect, as JSON.

    scope: of the request, where it came so far that its path is known.
    """
    shape = _anthropic if scope is not None and is_anthropic(scope) else _openai
    # What others say in our messages, a compiler of grammars or a list of names, has an end too.
    param = None if fault.param is None else shorten(fault.param)
    short = replace(fault, message=shorten(fault.message, MAX_MESSAGE), param=param)
    return msgspec.json.encode(shape(short))


def headers_of(fault: HttpError) -> Mapping[str, str]:
    """Headers that go with an error."""
    headers = dict(fault.headers)
    if fault.retry_after is not None:
        headers["retry-after"] = str(max(1, round(fault.retry_after)))
    return headers


def _openai(fault: HttpError) -> dict[str, Any]:
    kind = "server_error" if fault.status >= 500 else "invalid_request_error"
    return {
        "error": {
            "message": fault.message,
            "type": _KINDS.get(fault.status, kind),
            "param": fault.param,
            "code": fault.code,
        }
    }


_ANTHROPIC_KINDS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


def _anthropic(fault: HttpError) -> dict[str, Any]:
    kind = "api_error" if fault.status >= 500 else "invalid_request_error"
    kind = _ANTHROPIC_KINDS.get(fault.status, kind)
    return {"type": "error", "error": {"type": kind, "message": fault.message}}


def _routing_fault(error: HTTPException) -> HttpError:
    """What the framework itself found: an unknown path or method."""
    headers = tuple((error.headers or {}).items())
    if error.status_code == 405:
        allowed = dict(headers)["Allow"]
        return HttpError(
            status=405,
            message=f"this path does not take that method; it takes {allowed}.",
            code="method_not_allowed",
            headers=headers,
        )
    return HttpError(status=error.status_code, message=str(error.detail), headers=headers)
