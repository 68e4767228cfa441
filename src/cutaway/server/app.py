"""The application: every API's routes over one context, behind the door."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from time import perf_counter
from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import Route

from cutaway import __version__
from cutaway.core.errors import CutawayError
from cutaway.server import lora_routes, models, page, tokenizer_routes
from cutaway.server.anthropic import messages as anthropic
from cutaway.server.entry.arrivals import Arrivals
from cutaway.server.entry.auth import Keys
from cutaway.server.entry.door import ClientGoneError, Door, Receive, Scope, Send, call_of
from cutaway.server.error_replies import HttpError, absent, encode_fault, fault_of, headers_of
from cutaway.server.looks import (
    learn_routes,
    lesson_routes,
    lever_routes,
    run_routes,
    traces,
    views,
)
from cutaway.server.openai import chat as openai_chat
from cutaway.server.openai import completions as openai_completions
from cutaway.server.openai import responses as openai_responses
from cutaway.server.openai import state_routes as openai_state
from cutaway.server.route_context import ANSWERING, Context
from cutaway.server.watching import health

# One entry per API, in the order of the documentation.
ROUTERS: tuple[Callable[[Context], APIRouter], ...] = (
    openai_chat.router,
    openai_completions.router,
    openai_responses.router,
    openai_state.router,
    anthropic.router,
    models.router,
    lora_routes.router,
    tokenizer_routes.router,
    views.router,
    lever_routes.router,
    learn_routes.router,
    run_routes.router,
    lesson_routes.router,
    traces.router,
    health.router,
)

_LAG_SECONDS = 0.5  # between two looks at how late the event loop is


def build_app(context: Context, *, keys: Keys | None = None) -> Door:
    """The ASGI application of one served model."""
    keys = keys or Keys()
    app = _Application(
        title="Cutaway",
        version=__version__,
        docs_url=None,  # its pages load scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,
        lifespan=_watched(context),
    )
    for router in ROUTERS:
        app.take_in(router(context))
    app.take_in(page.router(keys.browsers))
    for kind in (*_TOLD, Exception):
        app.add_exception_handler(kind, _tell)
    return Door(
        app,
        context.config,
        keys=keys,
        metrics=context.metrics,
        arrivals=Arrivals(context.refusal, ANSWERING),
    )


_TOLD = (HttpError, CutawayError, HTTPException)  # what is raised so is an answer


class _Application(FastAPI):
    """The framework's, past whose layers requests for answers go straight to their routes.

    Their bodies and replies are none that it reads or checks, and its layers took 0.13 ms each.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._straight: dict[str, APIRoute] = {}
        self._ours: list[APIRoute] = []

    def take_in(self, routes: APIRouter) -> None:
        """Include an API's routes."""
        self.include_router(routes)
        self._ours += (each for each in routes.routes if isinstance(each, APIRoute))
        for route in self._ours:
            if route.path in ANSWERING:
                assert route.methods == {"POST"}, "an answer is asked for by POST"
                self._straight[route.path] = route

    def methods_of(self, path: str) -> str:
        """All that a path takes, in order; the framework tells those of its first route alone."""
        known = [*self._ours, *(each for each in self.routes if isinstance(each, Route))]
        routes = [each for each in known if each.path_regex.match(path)]
        return ", ".join(sorted({name for each in routes for name in each.methods or ()}))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        is_post = scope["type"] == "http" and scope["method"] == "POST"
        route = self._straight.get(scope["path"]) if is_post else None
        if route is None:
            await super().__call__(scope, receive, send)
            return
        scope["route"] = route
        http = HttpRequest(scope, receive, send)
        try:
            response: Response = await route.endpoint(http)
            await response(scope, receive, send)
        except Exception as error:
            if call_of(scope).status is not None:
                raise
            told = await _tell(http, error)
            await told(scope, receive, send)
            if not isinstance(error, _TOLD):
                raise


async def _tell(http: HttpRequest, error: Exception) -> Response:
    """An error in the shape of its route's API."""
    if isinstance(error, ClientGoneError):
        return Response(status_code=499)  # nobody reads it; the log has the number
    is_unknown = isinstance(error, HTTPException) and error.status_code == 404
    if isinstance(error, HTTPException) and error.status_code == 405:
        allowed = http.app.methods_of(http.scope["path"])
        error.headers = {"Allow": allowed} if allowed else error.headers
    fault = absent(http.scope["path"]) if is_unknown else fault_of(error)
    return Response(
        encode_fault(fault, http.scope),
        status_code=fault.status,
        headers=dict(headers_of(fault)),
        media_type="application/json",
    )


def _watched(context: Context) -> Callable[[FastAPI], AbstractAsyncContextManager[None]]:
    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncGenerator[None]:
        watch = asyncio.create_task(_watch(context))
        try:
            yield
        finally:
            watch.cancel()
            with suppress(asyncio.CancelledError):
                await watch
            await context.lesson.stop()
            context.worker.close()
            context.renderings.close()

    return lifespan


async def _watch(context: Context) -> None:
    """Measure again and again how late the event loop is."""
    while True:
        began = perf_counter()
        await asyncio.sleep(_LAG_SECONDS)
        context.metrics.lag(max(0.0, perf_counter() - began - _LAG_SECONDS))
