"""Runs of `cutaway train` by HTTP, as they go: which there are, and what each wrote down."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from time import time
from typing import Any, cast

from fastapi import APIRouter
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from cutaway.core.errors import ConfigError, RequestError
from cutaway.core.limits import quote
from cutaway.host.run_record import FILE, RecordPart, read_example, read_last, read_part
from cutaway.server.error_replies import HttpError
from cutaway.server.looks.opt_in import check_on
from cutaway.server.route_context import Context
from cutaway.server.routes import describe_route, json_answer
from cutaway.tokens.unicode import repair_surrogates

SCHEMA = 1
MOST_RUNS = 200  # that are listed, the newest
_RUN = "run.json"  # a folder that holds it is a run: train/stage.py writes it first


def router(context: Context) -> APIRouter:
    """The routes of this API."""
    routes = APIRouter()

    @routes.get("/cutaway/v1/runs", **describe_route())
    async def list_runs(http: HttpRequest) -> Response:
        check_on(context)
        return json_answer(await context.worker.take_in(_list, context.runs))

    @routes.get("/cutaway/v1/runs/{name}", **describe_route())
    async def follow_run(http: HttpRequest, name: str) -> Response:
        check_on(context)
        start = _start_of(http)
        return json_answer(await context.worker.take_in(_follow, context.runs, name, start))

    return routes


def _start_of(http: HttpRequest) -> int:
    """The byte of the record to go on from. Raises: RequestError."""
    text = http.query_params.get("start", "0")
    if not (text.isascii() and text.isdigit() and len(text) < 16):
        raise RequestError(
            f"start is {quote(text)}; it must be the end that the last answer told, or 0.",
            param="start",
        )
    return int(text)


def _runs(folder: Path) -> list[Path]:
    """Folders of runs, the one that was written to last first."""
    written: dict[Path, float] = {}
    for run in folder.iterdir() if folder.is_dir() else ():
        with suppress(OSError):  # it is gone meanwhile, or not for us to read
            if (run / _RUN).is_file():
                written[run] = _written(run)
    return sorted(written, key=written.__getitem__, reverse=True)


def _written(run: Path) -> float:
    """When a run was last written to, in seconds of the clock on the wall. Raises: OSError."""
    record = run / FILE
    return (record if record.is_file() else run / _RUN).stat().st_mtime


def _list(folder: Path) -> dict[str, Any]:
    runs = _runs(folder)
    told = {"folder": _name(folder.resolve()), "left_out": max(0, len(runs) - MOST_RUNS)}
    return {"schema": SCHEMA, **told, "runs": [_head(run) for run in runs[:MOST_RUNS]]}


def _name(folder: Path) -> str:
    """Its name as text, whatever its bytes are."""
    return os.fsencode(folder.name).decode("utf-8", "replace")


def _as_text(value: Any) -> Any:
    """What a file of JSON holds, without halves of surrogate pairs, which no text may have."""
    if isinstance(value, str):
        return repair_surrogates(value)
    if isinstance(value, list):
        return [_as_text(each) for each in cast("list[Any]", value)]
    if isinstance(value, dict):
        entries = cast("dict[str, Any]", value).items()
        return {repair_surrogates(name): _as_text(each) for name, each in entries}
    return value


def _head(run: Path) -> dict[str, Any]:
    """What a run is, how far it is and what it last wrote down; its fault where it has one."""
    head: dict[str, Any] = {"name": _name(run), "is_over": False, "idle_seconds": 0.0}
    try:
        head["is_over"] = (run / "model").is_dir()
        head["idle_seconds"] = max(0.0, round(time() - _written(run), 1))
        told = _settings(run)
        last = read_last(run / FILE) if (run / FILE).is_file() else None
    except (ConfigError, OSError) as error:
        return {**head, "fault": _fault(run, error)}
    return {**head, **_as_text(told), "last": _as_text(last)}


def _fault(run: Path, error: Exception) -> str:
    """What is wrong with a run, without where this machine keeps it."""
    return repair_surrogates(str(error).replace(str(run), _name(run)))


def _settings(run: Path) -> dict[str, Any]:
    """The stage and its settings. Raises: ConfigError for a file of another kind; OSError."""
    try:
        told: object = json.loads((run / _RUN).read_bytes())
    except (ValueError, RecursionError):
        told = None
    if not isinstance(told, dict):
        raise ConfigError(f"{run / _RUN} does not say what run this is.")
    names = ("stage", "settings", "device")
    return {name: cast("dict[str, Any]", told).get(name) for name in names}


def _example(run: Path) -> list[list[tuple[str, bool]]]:
    """Tokens of what it learns from, and which are scored; none where they cannot be read."""
    with suppress(OSError):
        return [
            [(repair_surrogates(text), is_scored) for text, is_scored in sequence]
            for sequence in read_example(run)
        ]
    return []


def _follow(folder: Path, name: str, start: int) -> dict[str, Any]:
    """A run and its rows from a byte on. Raises: HttpError 404."""
    run = next((each for each in _runs(folder) if _name(each) == name), None)
    if run is None:
        raise HttpError(
            status=404,
            message=f"no run in {quote(_name(folder.resolve()))} is called {quote(name)}. "
            "GET /cutaway/v1/runs lists them.",
            code="not_found",
            param="name",
        )
    head = _head(run)
    is_told = "fault" not in head and (run / FILE).is_file()
    part = RecordPart([], 0, 0, 0)
    try:
        part = read_part(run / FILE, start) if is_told else part
    except (ConfigError, OSError) as error:
        head["fault"] = _fault(run, error)
    told = {"start": part.start, "end": part.end, "size": part.size, "rows": _as_text(part.rows)}
    if start == 0 and is_told:
        told["example"] = _example(run)
    return {"schema": SCHEMA, **head, **told}
