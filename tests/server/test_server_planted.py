"""A fault planted at the k-th call of each place of the server's side ends one answer at most.

The places of the engine's side are in bench/faults.py, whose planter plants here as well.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

import httpx2
import pytest
from live_server import Live, live
from server_app import chat, completion, make_folder

from cutaway.server.watching import log
from planting import load_planting
from trials import ran, seed, trials

planting = load_planting()
# Module, and a function or a class's method; a name that others import is planted in each.
PLACES = tuple(
    (f"cutaway.server.{module}", name)
    for module, name in (
        *((module, "data") for module in ("streaming", "openai.chat", "openai.completions")),
        *(("streaming", "_Out.write"), ("streaming", "_Out.begin_write")),
        ("answers", "_measure"),
        ("watching.metrics", "Metrics.gap"),
        ("watching.metrics", "Metrics.count_finished"),
        ("watching.metrics", "Metrics.count_answered"),
        ("watching.log", "event"),
    )
)
MESSAGES = {
    "model": "tiny",
    "max_tokens": 6,
    "temperature": 0,
    "messages": [{"role": "user", "content": "good day"}],
}
ASKED: dict[str, tuple[str, Any]] = {
    "chat": ("/v1/chat/completions", chat("one", stream=True)),
    "whole": ("/v1/chat/completions", chat("two and two")),
    "completions": ("/v1/completions", completion("three", stream=True, n=2, seed=1)),
    "messages": ("/v1/messages", {**MESSAGES, "stream": True}),
}
KEPT = ("choices", "content_block", "delta", "error", "type")


@contextlib.contextmanager
def planted(planter: Any) -> Iterator[None]:
    """The planter around every place."""
    with contextlib.ExitStack() as stack:
        for module, name in PLACES:
            owner: Any = importlib.import_module(module)
            *within, last = name.split(".")
            for part in within:
                owner = getattr(owner, part)
            around = planter.around(name, getattr(owner, last))
            stack.enter_context(mock.patch.object(owner, last, around))
        yield


def essence(said: tuple[int, str]) -> list[Any]:
    """Status and what an answer says, without ids and times."""
    status, body = said
    lines = [line.removeprefix("data: ") for line in body.splitlines() if line.startswith("data: ")]
    events = [json.loads(line) for line in lines or [body] if line.startswith("{")]
    return [status, *({k: v for k, v in event.items() if k in KEPT} for event in events)]


async def ask_all(server: Live) -> dict[str, tuple[int, str]]:
    """Status and body of each, all asked at once; 0 where the connection broke."""

    async def one(path: str, body: Any) -> tuple[int, str]:
        url = f"http://127.0.0.1:{server.port}"
        async with httpx2.AsyncClient(base_url=url, timeout=300) as http:
            try:
                answer = await http.post(path, json=body)
            except httpx2.HTTPError as error:
                return 0, str(error)
            return answer.status_code, answer.text

    said = await asyncio.gather(*(one(*each) for each in ASKED.values()))
    await server.until_idle()
    return dict(zip(ASKED, said, strict=True))


def test_a_fault_in_the_servers_own_work_ends_one_answer_alone(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    async def body() -> Counter[str]:
        chance, ended, planter = Random(seed(9)), Counter[str](), planting.Planter()
        async with live(make_folder(tmp_path)) as server:
            golden = {name: essence(said) for name, said in (await ask_all(server)).items()}
            assert all(each[0] == 200 and "error" not in str(each) for each in golden.values())
            with planted(planter):
                planter.arm()
                await ask_all(server)
                calls = dict(planter.calls)
                assert calls.keys() == {name for _, name in PLACES}, calls
                for number in range(trials(4 * len(calls))):
                    name = list(calls)[number % len(calls)]
                    planter.arm(name, chance.randint(1, calls[name]))
                    said = await ask_all(server)
                    planter.is_armed = False
                    other = {each for each in ASKED if essence(said[each]) != golden[each]}
                    assert len(other) <= 1, f"{name}, call {planter.k}: {other} ended: {said}"
                    assert planting.SECRET not in str(said)
                    ended[name] += len(other)
                    ended["fired"] += planter.has_fired
        return ended

    with log.writing("text"):
        ended = asyncio.run(body())
    assert planting.SECRET not in capfd.readouterr().err, "the log has the message"
    print(ended)
    ran(trials(28), total_fired=ended["fired"])
