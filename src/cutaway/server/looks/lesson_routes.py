"""The lesson by HTTP: a tiny model made through every stage while one looks on."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from cutaway.core.errors import RequestError
from cutaway.core.limits import quote
from cutaway.server.body import read
from cutaway.server.error_replies import HttpError
from cutaway.server.field_types import Body, Limited
from cutaway.server.looks.opt_in import check_on
from cutaway.server.route_context import Context
from cutaway.server.routes import REFUSALS, describe_route, json_answer

SCHEMA = 1
_REFUSALS = REFUSALS | {
    403: f"{REFUSALS[403]}, or the server listens where others reach it",
    409: "one runs already, or the folder holds too many",
}
_CHOICES = {"rewards": ("final", "length"), "until": ("pretrain", "sft", "reward", "ppo", "dpo")}


class LessonBody(Body):
    """What to turn, to see it go otherwise; docs/train.md, The lesson.

    rate: the peak learning rate of pretraining.   beta: PPO's leash.
    rewards: what PPO is paid for: final (right answers) or length.   until: the last stage.
    """

    rate: Annotated[float | None, Limited("rate")] = None
    beta: Annotated[float | None, Limited("beta")] = None
    rewards: str | None = None
    until: str | None = None


def router(context: Context) -> APIRouter:
    """The routes of this API."""
    routes = APIRouter()

    @routes.get("/cutaway/v1/lesson", **describe_route())
    async def tell() -> Response:
        check_on(context)
        return json_answer(_told(context))

    @routes.post("/cutaway/v1/lesson", **describe_route(LessonBody, refusals=_REFUSALS))
    async def start(http: HttpRequest) -> Response:
        _check_local(context)
        settings = await context.worker.take_in(_settings, await http.body())
        await context.lesson.start(context.runs, settings)
        return json_answer(_told(context))

    @routes.delete("/cutaway/v1/lesson", **describe_route(refusals=_REFUSALS))
    async def stop() -> Response:
        _check_local(context)
        await context.lesson.stop()
        return json_answer(_told(context))

    return routes


def _check_local(context: Context) -> None:
    """Raise HttpError unless this machine alone reaches the server: a lesson takes its cores."""
    check_on(context)
    if not _is_startable(context):
        raise HttpError(
            status=403,
            message="this server listens where others reach it, and trains for nobody. "
            "`cutaway train lesson` makes the same on a machine of your own.",
            code="lesson_off",
        )


def _is_startable(context: Context) -> bool:
    return not context.config.is_public


def _told(context: Context) -> dict[str, Any]:
    lesson = context.lesson
    return {
        "schema": SCHEMA,
        "can_start": _is_startable(context),
        "state": lesson.state,
        "name": lesson.name,
        "fault": lesson.fault,
    }


def _settings(data: bytes) -> dict[str, object]:
    body = read(data, LessonBody)
    told = {name: value for name, value in body if value is not None}
    for name, allowed in _CHOICES.items():
        if name in told and told[name] not in allowed:
            raise RequestError(
                f"{name} is {quote(told[name])}; it must be one of {', '.join(allowed)}.",
                param=name,
            )
    return told
