"""Comparisons by HTTP: in idle moments, within bounds, for the owner of an answer alone."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx2
import pytest
from server_app import answered, client, completion, events, serving

from cutaway.compare import trials
from cutaway.compare.compare import compare
from cutaway.compare.levers import LEVERS, change_of
from cutaway.core.limits import LIMITS
from cutaway.server.entry.auth import Keys
from cutaway.service.llm import LLM
from cutaway.views.parts.payload import as_json
from subjects import answered as recorded

# What no two runs have in common.
TIMES = ("first_text", "per_token", "seconds", "rate", "money")


_LONG = "9" * 900  # more digits than any place has


async def compared(http: httpx2.AsyncClient, trace: str, **body: Any) -> httpx2.Response:
    return await http.post(f"/cutaway/v1/traces/{trace}/compare", json={"runs": 1, **body})


def without_times(found: dict[str, Any]) -> dict[str, Any]:
    left = {name: each for name, each in found.items() if name not in ("type", "notes")}
    for side in ("recorded", "changed"):
        left[side] = {name: each for name, each in found[side].items() if name not in TIMES}
    return left


def test_two_temperatures_are_compared_as_in_python(folder: Path) -> None:
    """By events and as one object; the numbers are those of the same model in this process."""
    sent = completion(prompt="hello", max_tokens=6, temperature=0.5, seed=3, ignore_eos=True)

    async def body() -> tuple[dict[str, Any], list[dict[str, Any]]]:
        async with serving(folder) as (app, _), client(app) as http:
            trace = (await http.post("/v1/completions", json=sent)).json()["id"]
            plain = await compared(http, trace, change="temperature=2", price=3.6)
            assert plain.headers["content-type"] == "application/json"
            streamed = await compared(http, trace, change="temperature=2", stream=True)
            assert streamed.headers["content-type"].startswith("text/event-stream")
            return plain.json(), events(streamed.text)

    plain, told = asyncio.run(body())
    assert {each["type"] for each in told[:-1]} == {"progress"}
    assert [each["num_done"] for each in told[:-1]] == sorted(e["num_done"] for e in told[:-1])
    assert without_times(told[-1]) == without_times(plain) and plain["changed"]["money"] > 0

    name = f"random:{folder / 'config.json'}"
    engine = LLM(name, dtype="float32", cache_tokens=4096, page_size=8).engine
    prompt = engine.model.tokenizer.encode("hello", bos=True)
    record = recorded(engine, prompt, temperature=0.5, seed=3)
    found = compare(engine, record, change_of("temperature=2"), name=name, num_runs=1)
    assert without_times(json.loads(json.dumps(as_json(found)))) == without_times(plain)
    assert plain["first_difference"] is not None and plain["is_as_served"]


def test_levers_are_told_with_their_ranges(folder: Path) -> None:
    async def body() -> None:
        async with serving(folder) as (app, _), client(app) as http:
            levers = (await http.get("/cutaway/v1/levers")).json()["levers"]
            assert [each["name"] for each in levers] == list(LEVERS)
            by_name = {each["name"]: each for each in levers}
            assert by_name["temperature"]["most"] == LIMITS["temperature"].most
            assert by_name["kv_dtype"]["choices"][0] == by_name["kv_dtype"]["now"] == "auto"
            assert "second model" in by_name["model"]["refused"]

    asyncio.run(body())


def test_what_cannot_be_compared_is_one_clear_error(folder: Path) -> None:
    cases: list[tuple[dict[str, Any], int, str]] = [
        ({}, 400, "change"),
        ({"change": 3}, 400, "change"),
        ({"change": "hotness=1"}, 400, "nothing to change"),
        ({"change": "temperature=9"}, 400, "temperature is 9.0"),
        ({"change": "quant=int4"}, 400, "cutaway compare PROMPT --change quant"),
        ({"change": "system=be brief"}, 400, "not its conversation"),
        ({"change": "seed=1", "runs": 21}, 400, "runs is 21"),
        ({"change": "seed=1", "price": -1}, 400, "price is -1"),
        ({"change": "seed=1", "max_bytes": 1}, 400, "raise max_bytes"),
        ({"change": "seed=1", "max_flops": 1}, 400, "allowed are 1"),
        ({"change": "seed=1", "choice": 1}, 404, "no record of answer"),
        ({"change": "seed=1", "colour": 1}, 400, "colour"),
        # Numbers in text, as nobody means them.
        *(({"change": f"token@{step}=5"}, 400, "by its step") for step in ("²", "٣", "1_0", _LONG)),
        ({"change": f"token@0={_LONG}"}, 400, "token is"),
        ({"change": "page_size=1"}, 400, "page_size is 1"),
        ({"change": f"page_size={_LONG}"}, 400, "page_size is"),
        ({"change": f"seed={_LONG}"}, 400, "seed is"),
        ({"change": "top_k=²"}, 400, "top_k is"),
        ({"change": f"ablate={_LONG}"}, 400, "ablate is"),
        ({"change": f"ablate=0.{_LONG}"}, 400, "ablate is"),
        ({"change": f"patch=0@1:{_LONG}"}, 400, "patch is"),
    ]

    async def body() -> None:
        async with serving(folder) as (app, _), client(app) as http:
            trace = await answered(http)
            for sent, status, words in cases:
                for stream in (False, True):
                    response = await compared(http, trace, stream=stream, **sent)
                    assert response.status_code == status, (sent, response.text)
                    assert words in response.json()["error"]["message"]
            missing = await compared(http, "chatcmpl-none", change="seed=1")
            assert missing.status_code == 404
            assert (await http.get("/ready")).status_code == 200

    asyncio.run(body())


def test_an_answer_is_compared_by_the_key_that_had_it_made(folder: Path) -> None:
    keys = Keys([("ann", "a" * 20), ("ben", "b" * 20)])

    async def body() -> None:
        async with serving(folder, keys=keys) as (app, _), client(app) as http:
            http.headers["authorization"] = f"Bearer {'a' * 20}"
            trace = await answered(http)
            assert (await compared(http, trace, change="seed=1")).status_code == 200
            http.headers["authorization"] = f"Bearer {'b' * 20}"
            refused = await compared(http, trace, change="seed=1")
            assert refused.status_code == 404 and "no record" in refused.text

    asyncio.run(body())


@pytest.mark.parametrize("views", ["off", "local"])
def test_where_views_are_off_nothing_is_compared(folder: Path, views: str) -> None:
    changes: dict[str, Any] = {"views": views}
    if views == "local":
        changes |= {"host": "0.0.0.0", "allowed_hosts": ("test",)}

    async def body() -> None:
        async with serving(folder, **changes) as (app, _), client(app) as http:
            for response in (
                await http.get("/cutaway/v1/levers"),
                await compared(http, "chatcmpl-none", change="seed=1"),
            ):
                assert response.status_code == 403 and "views" in response.text

    asyncio.run(body())


def test_answers_come_while_some_wait_and_who_leaves_ends_theirs(folder: Path) -> None:
    """What was left would be long, and soon one more would be too many."""

    async def body() -> None:
        async with serving(folder) as (app, _), client(app) as http:
            trace = await answered(http, ignore_eos=True)
            for number in range(3):
                waiting = [
                    asyncio.create_task(compared(http, trace, change="kv_cache=off", runs=20))
                    for _ in range(trials.MOST_OF_OWNER)
                ]
                await answered(http, seed=number)
                assert not all(each.done() for each in waiting)
                for each in waiting:
                    each.cancel()
                await asyncio.gather(*waiting, return_exceptions=True)
            left = await compared(http, trace, change="seed=1")
            assert left.status_code == 200, left.text

    asyncio.run(body())
