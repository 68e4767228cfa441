"""Requests of ill will by the thousand: no fault of ours, no restart, and golden answers between.

Our own grammar asks 1,000 times, schemathesis some 7,000 over our OpenAPI (in CI a third), and
views, files and comparisons are asked for 200 times, each in its own language; all are seeded.
bench/reliability.py asks 100,000 times: row 4 of its plan.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path
from time import perf_counter
from typing import Any

import httpx2
import pytest
from hostile_bodies import KINDS, METHODS, body
from hostile_looks import look
from live_server import live
from openapi_fuzz import Findings, explore
from server_app import chat, client, completion, make_folder, serving

from cutaway.core.request import Request, SamplingParams
from cutaway.server.entry.door import Door
from cutaway.service.process import ProcessService
from trials import IN_FULL, patience, ran, seed, trials

NUM_REQUESTS = trials(1000)
NUM_EXAMPLES = NUM_REQUESTS // 100 if IN_FULL else 10  # of schemathesis, for each route
NUM_LOOKS = trials(200)
LONGEST = 6 * 60 * 60 if IN_FULL else 600
BATCH = 25
SEED = seed(20)
GOLDEN = completion("golden", logprobs=2, seed=1)
MESSAGES = [{"role": "user", "content": "x"}]
BASES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {**chat("x", max_tokens=2)},
    "/v1/completions": {**completion("x", max_tokens=2)},
    "/v1/responses": {"model": "tiny", "input": "x", "max_output_tokens": 2},
    "/v1/messages": {"model": "tiny", "messages": MESSAGES, "max_tokens": 2},
    "/v1/messages/count_tokens": {"model": "tiny", "messages": MESSAGES},
    "/tokenize": {"prompt": "hello"},
    "/detokenize": {"tokens": [104, 105]},
    "/cutaway/v1/traces/{trace_id}/views": {"view": "tokens"},
    "/cutaway/v1/traces/{trace_id}/file": {"views": "tokens"},
    "/cutaway/v1/traces/{trace_id}/compare": {"change": "temperature=1", "runs": 1},
    "/v1/load_lora_adapter": {"lora_name": "x", "lora_path": "x"},
    "/v1/unload_lora_adapter": {"lora_name": "x"},
    "/cutaway/v1/learn": {"text": "hello hello"},
    "/cutaway/v1/lesson": {"until": "pretrain"},
}


def engine_of(folder: Path) -> ProcessService:
    settings = {"dtype": "float32", "cache_tokens": 4096, "page_size": 8}
    return ProcessService(f"random:{folder / 'config.json'}", **settings)


async def golden(http: httpx2.AsyncClient) -> tuple[str, Any]:
    """Id and choices of the golden answer."""
    answer = await http.post("/v1/completions", json=GOLDEN)
    assert answer.status_code == 200, answer.text
    return answer.json()["id"], answer.json()["choices"]


async def fuzz(http: httpx2.AsyncClient, count: int) -> Counter[int]:
    """Statuses of so many requests. Fails with what is not declared, and its body."""
    chance = random.Random(SEED)
    paths = (await http.get("/openapi.json")).json()["paths"]
    posts = {path: methods["post"] for path, methods in paths.items() if "post" in methods}
    assert set(posts) == set(BASES), "a route has no body here"
    (trace, expected), statuses = await golden(http), Counter[int]()

    async def one() -> None:
        path = chance.choice(list(BASES))
        schema = posts[path]["requestBody"]["content"]["application/json"]["schema"]
        data = body(chance, BASES[path], schema)
        method, kind = chance.choice(METHODS), chance.choice(KINDS)
        url = path.format(trace_id=trace)
        answer = await http.request(method, url, content=data, headers={"content-type": kind})
        about = f"{method} {path} {kind} {data[:600]!r}: {answer.status_code} {answer.text[:600]}"
        declared = posts[path]["responses"]
        assert str(answer.status_code) in declared and "Traceback" not in answer.text, about
        assert answer.status_code < 500 or answer.status_code == 503, about
        statuses[answer.status_code] += 1

    for _ in range(0, count, BATCH):
        async with asyncio.TaskGroup() as batch:
            for _ in range(BATCH):
                batch.create_task(one())
        trace, choices = await golden(http)
        assert choices == expected
    return statuses


async def fuzz_looks(http: httpx2.AsyncClient, count: int) -> Counter[int]:
    """Statuses of so many looks at three answers: a plain one, one of several, one with a form."""
    chance = random.Random(SEED)
    paths = (await http.get("/openapi.json")).json()["paths"]
    statuses = Counter[int]()

    async def answers() -> list[str]:
        plain = completion("hello", max_tokens=12, temperature=1, seed=1, ignore_eos=True)
        several = completion("one two", max_tokens=3, n=2, temperature=1, seed=2, ignore_eos=True)
        formed = completion("x", max_tokens=8, structured_outputs={"regex": "[ab]{6}"})
        sent = [await http.post("/v1/completions", json=each) for each in (plain, several, formed)]
        return [each.json()["id"] for each in sent]

    async def one(trace: str) -> None:
        kind, data = look(chance)
        path = f"/cutaway/v1/traces/{{trace_id}}/{kind}"
        headers = {"content-type": "application/json"}
        if chance.random() < 0.5:
            headers["accept"] = "application/json"
        answer = await http.post(path.format(trace_id=trace), content=data, headers=headers)
        about = f"{path} {data[:600]!r}: {answer.status_code} {answer.text[:600]}"
        assert str(answer.status_code) in paths[path]["post"]["responses"], about
        assert answer.status_code < 500 or answer.status_code == 503, about
        assert "fault of Cutaway" not in answer.text and "Traceback" not in answer.text, about
        statuses[answer.status_code] += 1

    _, expected = await golden(http)
    for _ in range(0, count, BATCH):
        traces = await answers()
        async with asyncio.TaskGroup() as batch:
            for _ in range(BATCH):
                batch.create_task(one(chance.choice(traces)))
        _, choices = await golden(http)
        # In company the last bits of log-probabilities may be others; the tokens are not.
        assert choices[0]["text"] == expected[0]["text"]
    return statuses


async def waits(service: ProcessService, until: asyncio.Event) -> list[float]:
    """Seconds until there is news of short answers that come in between the looks: a step, and
    whatever holds it. Looks have the moments without answers, so there are pauses."""
    found: list[float] = []
    params = SamplingParams(max_tokens=4, temperature=0.0, ignore_eos=True)
    while not until.is_set():
        request = Request(request_id="beside", prompt_token_ids=(104, 105), params=params)
        async with aclosing(service.follow(request)) as deltas:
            last = perf_counter()
            async for _ in deltas:
                found.append(perf_counter() - last)
                last = perf_counter()
        await asyncio.sleep(0.05)
    return found


async def idle(app: Door, service: ProcessService) -> None:
    """Fail where anything is left of a request, or the engine had to be started again."""
    stats = await service.stats()
    left = (stats.running, stats.waiting, stats.pages_used, app.num_open, stats.restarts)
    assert left == (0, 0, 0, 0, 0)


@pytest.mark.slow
@pytest.mark.timeout(LONGEST)
def test_hostile_bodies_are_refused_or_answered(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "tiny")

    async def run() -> Counter[int]:
        service = engine_of(folder)
        async with serving(folder, service=service) as (app, _), client(app) as http:
            statuses = await fuzz(http, NUM_REQUESTS)
            await idle(app, service)
        return statuses

    told("our own grammar", asyncio.run(run()))


@pytest.mark.slow
@pytest.mark.timeout(LONGEST)
def test_looks_of_ill_will_are_refused_or_shown(tmp_path: Path) -> None:
    """Beside short answers; how long those wait is told, and judged where nothing else runs."""
    folder = make_folder(tmp_path / "tiny")

    async def run() -> tuple[Counter[int], list[float]]:
        service = engine_of(folder)
        async with serving(folder, service=service) as (app, _), client(app) as http:
            over = asyncio.Event()
            reader = asyncio.create_task(waits(service, over))
            try:
                statuses = await fuzz_looks(http, NUM_LOOKS)
            finally:
                over.set()
                found = await reader
            await idle(app, service)
        return statuses, sorted(found)

    statuses, found = asyncio.run(run())
    assert len(found) > 100, "answers were read meanwhile"
    usual, late, longest = (round(found[int(at * (len(found) - 1))], 4) for at in (0.5, 0.999, 1))
    figures = {"median wait, s": usual, "p99.9": late, "longest": longest}
    told("looks in their own language", statuses, **figures)


@pytest.mark.slow
@pytest.mark.timeout(LONGEST)
def test_schemathesis_finds_no_fault(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "tiny", max_position_embeddings=64)

    async def run() -> Findings:
        service = engine_of(folder)
        async with live(folder, service=service) as server:
            found = await asyncio.to_thread(
                explored, f"http://127.0.0.1:{server.port}", one_in=patience(1, in_ci=3)
            )
            await idle(server.app, service)
        return found

    found = asyncio.run(run())
    assert not found.faults, "\n\n".join(found.faults[:20])
    told("schemathesis", found.statuses)


def test_schemathesis_sees_a_status_and_a_type_that_are_not_declared(folder: Path) -> None:
    def spoilt(document: dict[str, Any]) -> dict[str, Any]:
        paths = {path: document["paths"][path] for path in ("/detokenize", "/version")}
        del paths["/detokenize"]["post"]["responses"]["400"]
        answer = paths["/version"]["get"]["responses"]["200"]
        answer["content"] = {"text/plain": {"schema": {"type": "string"}}}
        return {**document, "paths": paths}

    async def run() -> Findings:
        async with live(folder) as server:
            url = f"http://127.0.0.1:{server.port}"
            return await asyncio.to_thread(explored, url, num_examples=1, spoilt=spoilt)

    faults = asyncio.run(run()).faults
    assert {fault.partition(":")[0] for fault in faults} == {
        "Undocumented status code",
        "Undocumented Content-Type",
    }


def explored(
    url: str,
    *,
    num_examples: int = NUM_EXAMPLES,
    one_in: int = 1,
    spoilt: Callable[[dict[str, Any]], dict[str, Any]] = lambda document: document,
) -> Findings:
    """What schemathesis finds there.

    spoilt: what it is told that the server declares, made of what the server does declare.
    """
    with httpx2.Client(base_url=url, timeout=300) as http:

        def golden_now() -> tuple[str, Any]:
            answer = http.post("/v1/completions", json=GOLDEN)
            assert answer.status_code == 200, answer.text
            return answer.json()["id"], answer.json()["choices"]

        trace, expected = golden_now()
        return explore(
            spoilt(http.get("/openapi.json").json()),
            url,
            bases=BASES,
            trace=trace,
            max_examples=num_examples,
            seed=SEED,
            one_in=one_in,
            is_golden=lambda: golden_now()[1] == expected,
        )


def told(whose: str, statuses: Counter[int], **figures: float) -> None:
    """Say what was answered."""
    counts = ", ".join(f"{count} x {status}" for status, count in sorted(statuses.items()))
    print(f"{whose}: {counts}")
    assert statuses[200] and statuses[400], "either all is taken or all is refused"
    ran(statuses.total(), **figures)
