"""What is answered past threads and the framework's layers is what they would have answered."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest
from scripted import ScriptedService
from server_app import client, completion, serving

from cutaway.core.errors import NumericsError, OverloadedError
from cutaway.core.output import Delta
from cutaway.core.request import Request
from cutaway.server.body import decode
from cutaway.server.entry.door import ClientGoneError
from cutaway.server.openai import completions
from cutaway.server.route_context import Context
from cutaway.server.server_config import MAX_DEPTH
from cutaway.server.streaming import until_gone

URL = "/v1/completions"
JSON = {"content-type": "application/json"}
IDS = list(b"hello")
# Bodies of ids and nearly of ids; those that are no quick ones go to a thread.
BODIES: list[tuple[Any, bool]] = [
    (completion(IDS), True),
    (completion(IDS, stream=True, n=2, seed=3), True),
    (completion(IDS, stop=["a"], logprobs=2, echo=False), True),
    (completion([5, 10**6]), True),
    (completion([-1]), True),
    (completion([]), True),
    (completion(IDS, temperature=9), True),
    (completion(IDS, colour="red"), True),
    (completion(IDS, model="other"), True),
    (completion(IDS, max_tokens=10**6), True),
    ({"prompt": IDS}, True),
    (completion([*IDS, True]), False),
    (completion([104.0, 101]), False),
    (completion([1.5]), False),
    (completion([IDS, IDS]), False),
    (completion("hello"), False),
    (completion(IDS, echo=True), False),
    (completion(IDS, logit_bias={"5": 1}), False),
    (completion(IDS, response_format={"type": "nothing"}), False),
    (completion(IDS, cutaway={"token_ids": True}), False),
    ([IDS], False),
    ("no JSON {", False),
]


def told(answer: httpx2.Response) -> tuple[int, str]:
    """Status and text of an answer, without what no two have in common."""
    text = answer.text
    if answer.status_code == 200 and not text.startswith("data:"):
        whole = answer.json()
        text = json.dumps([whole["choices"], whole["usage"]])
    elif answer.status_code == 200:
        parts = [part.removeprefix("data: ") for part in text.split("\n\n") if part]
        read = [json.loads(each) for each in parts if each != "[DONE]"]
        text = json.dumps([each.get("choices", each) for each in read])
    return answer.status_code, text


def test_bodies_of_ids_are_answered_alike_at_once_and_by_a_thread(
    asked: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    handed: list[bytes] = []

    async def ask(http: httpx2.AsyncClient, context: Context) -> list[tuple[int, str]]:
        take_in = context.worker.take_in

        async def noted(work: Any, body: bytes, *more: Any) -> Any:
            handed.append(body)
            return await take_in(work, body, *more)

        monkeypatch.setattr(context.worker, "take_in", noted)
        contents = [b if isinstance(b, str) else json.dumps(b) for b, _ in BODIES]
        return [told(await http.post(URL, content=each, headers=JSON)) for each in contents]

    at_once = asked(ask)
    assert len(handed) == sum(not is_quick for _, is_quick in BODIES)
    monkeypatch.setattr(completions, "MOST_QUICK_BYTES", 0)
    assert asked(ask) == at_once
    assert {status for status, _ in at_once} == {200, 400, 404}


class Failing(ScriptedService):
    """Raises instead of an answer."""

    def __init__(self, fault: Exception, *, after: int) -> None:
        super().__init__("hello")
        self._fault, self._after = fault, after

    async def follow(self, request: Request) -> AsyncGenerator[Delta]:
        """Some pieces, then the fault."""
        for _ in range(self._after):
            yield Delta(request.request_id, 0, (104,), "h")
        raise self._fault


@pytest.mark.parametrize("after", [0, 1])
@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize(
    "fault",
    [OverloadedError("full.", retry_after=3), NumericsError("NaN."), RuntimeError("secret")],
)
def test_faults_past_the_framework_are_told_as_through_it(
    folder: Path, fault: Exception, *, is_streamed: bool, after: int
) -> None:
    async def ask(*, straight: bool) -> Any:
        service = Failing(fault, after=after)
        async with serving(folder, service=service) as (app, _), client(app) as http:  # type: ignore[arg-type]
            if not straight:
                app._app._straight.clear()  # type: ignore[attr-defined]
            answer = await http.post(URL, json=completion(IDS, stream=is_streamed))
            own = ("x-request-id", "date")
            headers = {name: value for name, value in answer.headers.items() if name not in own}
            return told(answer), headers

    assert asyncio.run(ask(straight=True)) == asyncio.run(ask(straight=False))


def test_each_route_of_answers_is_reached_straight(folder: Path) -> None:
    async def ask() -> set[str]:
        async with serving(folder) as (app, _):
            return set(app._app._straight)  # type: ignore[attr-defined]

    assert asyncio.run(ask()) == {
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/responses",
        "/v1/messages",
    }


class Line:
    """A client's end of a connection, which may be closed."""

    def __init__(self) -> None:
        self.closed = asyncio.Event()

    async def receive(self) -> dict[str, str]:
        await self.closed.wait()
        return {"type": "http.disconnect"}


def test_work_begins_in_the_turn_in_which_it_is_asked_for() -> None:
    seen: list[str] = []

    async def work() -> str:
        seen.append("begun")
        await asyncio.sleep(0)
        return "done"

    async def run() -> str:
        asyncio.get_running_loop().call_soon(seen.append, "next turn")
        return await until_gone(Line().receive, work())

    assert asyncio.run(run()) == "done"
    assert seen == ["begun", "next turn"]


def test_work_is_cancelled_when_the_client_goes_and_nothing_else_is() -> None:
    ended: list[str] = []

    async def work() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            ended.append("work")

    async def run() -> None:
        line, ours = Line(), asyncio.current_task()
        asyncio.get_running_loop().call_soon(line.closed.set)
        with pytest.raises(ClientGoneError):
            await until_gone(line.receive, work())
        assert ours is not None and not ours.cancelling()
        await asyncio.sleep(0)  # this task goes on

    asyncio.run(run())
    assert ended == ["work"]


def test_a_fault_amid_leaving_is_the_client_s_going() -> None:
    async def work() -> None:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            raise ValueError("nobody reads this") from None

    async def run() -> None:
        line = Line()
        asyncio.get_running_loop().call_soon(line.closed.set)
        with pytest.raises(ClientGoneError):
            await until_gone(line.receive, work())

    asyncio.run(run())


@pytest.mark.parametrize("goes", [False, True])
def test_who_is_cancelled_from_outside_is_cancelled(*, goes: bool) -> None:
    async def run() -> None:
        line = Line()
        task = asyncio.create_task(until_gone(line.receive, asyncio.sleep(3600)))
        await asyncio.sleep(0.01)
        if goes:
            line.closed.set()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())


def test_what_is_done_as_the_client_goes_is_done() -> None:
    line = Line()

    async def work() -> str:
        line.closed.set()
        return "done"

    assert asyncio.run(until_gone(line.receive, work())) == "done"


@pytest.mark.parametrize("inner", ["[]", "{}", "1", '[{"a": []}]', '{"a": 1}'])
def test_depth_is_counted_to_the_deepest_value(inner: str) -> None:
    def depth(value: Any) -> int:
        items = value.values() if isinstance(value, dict) else value
        is_container = isinstance(value, list | dict)
        return 1 + max(map(depth, items), default=0) if is_container else 1

    for count in range(MAX_DEPTH - 4, MAX_DEPTH + 2):
        text = '{"a": ' + "[" * count + inner + "]" * count + "}"
        # A value stands on a level of its own below what holds it.
        levels = depth(json.loads(text))
        if levels <= MAX_DEPTH:
            assert decode(text.encode())
        else:
            with pytest.raises(Exception, match="nested too deeply"):
                decode(text.encode())
