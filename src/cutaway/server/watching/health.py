"""How the server is: alive, ready, its version, its numbers."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import Response

from cutaway import __version__
from cutaway.core.errors import EngineClosedError
from cutaway.server.error_replies import HttpError
from cutaway.server.route_context import Context
from cutaway.server.routes import PLAIN_TEXT, describe_route, json_answer
from cutaway.server.watching.loads import tell_loads

STATS_SECONDS = 2  # an engine in a long step is not waited for


def router(context: Context) -> APIRouter:
    """The routes for those who operate the server."""
    routes = APIRouter()

    @routes.head("/health", include_in_schema=False)
    @routes.get("/health", **describe_route())
    async def health() -> Response:
        """200 while this process answers at all."""
        return json_answer({"status": "ok"})

    @routes.head("/ready", include_in_schema=False)
    @routes.get("/ready", **describe_route())
    async def ready() -> Response:
        """200 while requests are taken in."""
        fault = context.why_closed()
        if fault is not None:
            raise fault
        return json_answer({"status": "ready"})

    @routes.get("/version", **describe_route())
    async def version() -> Response:
        return json_answer({"version": __version__})

    @routes.get("/v1/loads", **describe_route())
    async def loads() -> Response:
        """How much each engine has to do, for routers of others."""
        if (fault := context.why_closed()) is not None:
            raise fault
        try:
            async with asyncio.timeout(STATS_SECONDS):
                return json_answer(tell_loads(await context.service.stats()))
        except TimeoutError:
            raise HttpError(
                status=503,
                message="the engine is in a long step. Try again in a second.",
                code="engine_busy",
                retry_after=1,
            ) from None

    @routes.get("/metrics", **describe_route(answer=PLAIN_TEXT))
    async def metrics() -> Response:
        try:
            async with asyncio.timeout(STATS_SECONDS):
                stats = await context.service.stats()
        except (TimeoutError, EngineClosedError):
            stats = None
        return Response(context.metrics.text(stats), media_type=CONTENT_TYPE_LATEST)

    return routes
