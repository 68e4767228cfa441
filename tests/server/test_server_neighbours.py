"""One hostile request or look beside others: theirs are answered with the same bits as without it.

bench/reliability.py looks at answers beside 10,000 batches: row 6 of its plan.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import httpx2
import pytest
from hostile_looks import look
from server_app import chat, client, completion, serving

from cutaway.kernels import capture
from cutaway.service.process import ProcessService
from trials import ran, seed, trials

GOOD: list[dict[str, Any]] = [
    {**completion("first", max_tokens=12, logprobs=3)},
    {**completion("second", max_tokens=9, temperature=1, seed=7, logprobs=1)},
    {**completion("third", max_tokens=15, temperature=0.7, top_k=5, seed=1, n=2, logprobs=0)},
    {**completion("fourth", max_tokens=10, repetition_penalty=1.3, logprobs=2, echo=True)},
]
# Taken, and as odd as what is taken can be.
TAKEN: list[dict[str, Any]] = [
    {"temperature": 5, "top_p": 0, "seed": -(2**63)},
    {"temperature": 1e-300, "top_p": 1e-300, "min_p": 1},
    {"repetition_penalty": 1e-300},
    {"repetition_penalty": 10, "presence_penalty": 2, "frequency_penalty": -2},
    {"logit_bias": {str(number): -100 for number in range(320)}},
    {"logit_bias": {str(number): 100 for number in range(320)}, "n": 16, "temperature": 1},
    {"stop_token_ids": list(range(128))},
    {"stop": ["a", "\ufffd", "\x00"], "min_tokens": 5, "max_tokens": 9},
    {"prompt_logprobs": 20, "logprobs": 20},
    {"n": 64, "max_tokens": 2, "temperature": 2},
    {"prompt": [319] * 200, "ignore_eos": True},
    {"prompt": [[256], [257], [0] * 100], "echo": True, "logprobs": 5},
    {"prompt": "\u202e\u0000\U0010ffff" * 5},
    {"max_tokens": 200, "ignore_eos": True, "min_tokens": 200},
    {"structured_outputs": {"regex": "(a|b)*c"}},
    {"structured_outputs": {"json_object": True}, "max_tokens": 3},
]
# Refused, each by another part of the way in.
REFUSED: list[dict[str, Any]] = [
    {"n": 10**9},
    {"logprobs": -1},
    {"prompt_logprobs": 2**63},
    {"prompt": [2**63]},
    {"prompt": [-1]},
    {"stop_token_ids": [320]},
    {"logit_bias": {"320": 1}},
    {"min_tokens": 2**62},
    {"max_tokens": 2**62},
    {"prompt": "x" * 4000},
    {"temperature": 10**400},
    {"structured_outputs": {"regex": "("}},
    {"structured_outputs": {"grammar": "start: missing"}},
    {"structured_outputs": {"json": {"type": "widget"}}},
    {"structured_outputs": {"json": {"$ref": "#/$defs/none"}}},
]


async def answers(http: httpx2.AsyncClient, extra: dict[str, Any]) -> tuple[list[Any], int]:
    """What the good requests get, and the other's status, all asked at once."""
    bodies = [*GOOD, {**completion(max_tokens=6), **extra}]
    posts = [http.post("/v1/completions", json=body) for body in bodies]
    *good, other = await asyncio.gather(*posts)
    return [each.json()["choices"] for each in good], other.status_code


@pytest.mark.skipif(not capture.is_available(), reason="torch alone sums in another order")
def test_one_hostile_request_leaves_the_others_answers_bit_equal(folder: Path) -> None:
    pytest.importorskip("llguidance")

    async def body() -> None:
        async with serving(folder, dtype="auto") as (app, context), client(app) as http:
            golden, _ = await answers(http, {})
            for fields in [*TAKEN, *REFUSED]:
                beside, status = await answers(http, fields)
                assert status == (200 if fields in TAKEN else 400), fields
                assert beside == golden, fields
            stats = await context.service.stats()
            assert (stats.running, stats.waiting, stats.pages_used) == (0, 0, 0)
            assert (await http.post("/v1/chat/completions", json=chat())).status_code == 200

    asyncio.run(body())


async def looked_at(http: httpx2.AsyncClient, chance: Random, trace: str) -> int:
    """The status of a look of ill will at an answer that was given before."""
    kind, body = look(chance)
    path, headers = f"/cutaway/v1/traces/{trace}/{kind}", {"content-type": "application/json"}
    answer = await http.post(path, content=body, headers=headers)
    assert answer.status_code < 500 or answer.status_code == 503, (body[:300], answer.text[:300])
    return answer.status_code


@pytest.mark.skipif(not capture.is_available(), reason="torch alone sums in another order")
def test_looks_of_ill_will_leave_the_others_answers_bit_equal(folder: Path) -> None:
    async def body() -> Counter[int]:
        chance, statuses = Random(seed(6)), Counter[int]()
        service = ProcessService(
            f"random:{folder / 'config.json'}", dtype="auto", cache_tokens=4096, page_size=8
        )
        async with serving(folder, service=service) as (app, _), client(app) as http:
            golden, _ = await answers(http, {})
            for _ in range(trials(8)):
                plain = completion("hello", max_tokens=12, temperature=1, seed=1, ignore_eos=True)
                trace = (await http.post("/v1/completions", json=plain)).json()["id"]
                looks = [looked_at(http, chance, trace) for _ in range(3)]
                (beside, status), *others = await asyncio.gather(answers(http, {}), *looks)
                assert status == 200 and beside == golden
                statuses.update(others)
            stats = await service.stats()
            left = (stats.running, stats.waiting, stats.pages_used, stats.restarts)
            assert left == (0, 0, 0, 0)
        return statuses

    statuses = asyncio.run(body())
    assert statuses[200] >= trials(8) // 8, "some are shown"
    ran(trials(8), total_shown=statuses[200], total_looks=statuses.total())
