"""Events of answers and the engine's state by HTTP: as docs/events.md has them."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing
from pathlib import Path
from typing import Any

import httpx2
import pytest
from server_app import chat, client, completion, events, serving

from cutaway.core.looks import EventRequest
from cutaway.server.entry.auth import Keys

PROMPT = [{"role": "user", "content": "hello"}]
MESSAGES = {"model": "tiny", "messages": PROMPT, "max_tokens": 4, "temperature": 0}
RESPONSE = {"model": "tiny", "input": "hello", "max_output_tokens": 4, "temperature": 0}
ROUTES: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", {**chat(max_tokens=4)}),
    ("/v1/completions", {**completion(max_tokens=4)}),
    ("/v1/messages", MESSAGES),
    ("/v1/responses", RESPONSE),
]
TRACE = {"trace": True}


def told(response: httpx2.Response) -> list[tuple[int, Any]]:
    """Numbers and objects of all events."""
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    found: list[tuple[int, Any]] = []
    for each in response.text.split("\n\n"):
        lines = [line for line in each.splitlines() if not line.startswith(":")]
        if lines:
            number, data = lines
            found.append(
                (int(number.removeprefix("id: ")), json.loads(data.removeprefix("data: ")))
            )
    return found


async def heard(http: httpx2.AsyncClient, trace: str, **more: Any) -> httpx2.Response:
    return await http.get(f"/cutaway/v1/traces/{trace}/events", **more)


@pytest.mark.parametrize(("path", "body"), ROUTES)
def test_an_answer_tells_where_it_opens_if_asked(
    folder: Path, path: str, body: dict[str, Any]
) -> None:
    async def ask() -> None:
        async with serving(folder) as (app, _), client(app) as http:
            plain = (await http.post(path, json=body)).json()
            assert "cutaway" not in plain
            for neutral in (None, {}, {"trace": False}, {"trace": None}):
                again = (await http.post(path, json={**body, "cutaway": neutral})).json()
                assert set(again) == set(plain)
            traced = (await http.post(path, json={**body, "cutaway": TRACE})).json()
            assert set(traced) == {*plain, "cutaway"}
            trace = traced["cutaway"]["trace_id"]
            assert traced["cutaway"] == {
                "schema": 1,
                "trace_id": traced["id"],
                "events": f"/cutaway/v1/traces/{trace}/events",
                "views": f"/cutaway/v1/traces/{trace}/views",
            }
            last = told(await http.get(traced["cutaway"]["events"]))[-1][1]
            assert last["type"] == "end" and last["usage"]["completion_tokens"] == 4
            view = await http.post(traced["cutaway"]["views"], json={"view": "tokens"})
            assert view.status_code == 200

    asyncio.run(ask())


@pytest.mark.parametrize(("path", "body"), ROUTES)
def test_a_stream_tells_it_with_its_end_and_changes_nothing_else(
    folder: Path, path: str, body: dict[str, Any]
) -> None:
    async def ask() -> None:
        async with serving(folder) as (app, _), client(app) as http:
            found: list[list[Any]] = []
            for asked in (None, TRACE):
                sent = {**body, "stream": True, "cutaway": asked}
                text = (await http.post(path, json=sent)).text
                lines = [line[6:] for line in text.splitlines() if line.startswith("data: ")]
                found.append([json.loads(line) for line in lines if line != "[DONE]"])
            plain, traced = found
            assert len(plain) == len(traced)
            extended = [
                index
                for index, (before, after) in enumerate(zip(plain, traced, strict=True))
                if keys(before) != keys(after)
            ]
            (index,) = extended
            event = traced[index]
            end = event.get("response", event)
            assert end["cutaway"]["trace_id"] in text and "chunk" not in end["cutaway"]["trace_id"]
            is_end = any(
                "finish_reason" in str(c) and c["finish_reason"] for c in end.get("choices", [])
            )
            assert is_end or event.get("type") in ("message_delta", "response.incomplete")
            assert (await http.get(end["cutaway"]["events"])).status_code == 200

    asyncio.run(ask())


def test_pieces_of_a_chat_tell_when_they_went_out_if_asked(folder: Path) -> None:
    """After the engine chose their token, by the same clock; all else is as without."""
    body = chat(max_tokens=6, ignore_eos=True, logprobs=True, stream=True)

    async def ask() -> None:
        async with serving(folder) as (app, _), client(app) as http:
            found: list[list[Any]] = []
            before = (await http.get("/cutaway/v1/clock")).json()
            for own in (None, {"times": False}, {"times": True}):
                sent = {**body, "cutaway": own}
                text = (await http.post("/v1/chat/completions", json=sent)).text
                found.append(events(text)[:-1])  # without [DONE]
            after = (await http.get("/cutaway/v1/clock")).json()
            plain, neutral, timed = found
            assert "cutaway" not in str(plain) and "cutaway" not in str(neutral)
            start, *others = [event for _, event in told(await heard(http, timed[0]["id"]))]
            chosen = [start["came"] + each["at"] for each in others if each["type"] == "token"]
            # Tokens that came together go out together.
            times = [each["cutaway"]["sent"] for each in timed for _ in range(num_tokens(each))]
            told_times = [each.pop("cutaway")["sent"] for each in timed if "cutaway" in each]
            shapes = [{str(sorted(keys(each))) for each in chunks} for chunks in (plain, timed)]
            assert shapes[0] == shapes[1]
            assert set(told_times) == set(times) and len(times) == len(chosen) == 6
            assert before["schema"] == after["schema"] == 1
            assert before["now"] <= start["came"] <= chosen[0]
            for done, sent_at in zip(chosen, times, strict=True):
                assert done <= sent_at + 1e-6 and sent_at <= after["now"], "rounded to 1e-6"
            assert times == sorted(times)

    asyncio.run(ask())


def num_tokens(chunk: Any) -> int:
    """How many tokens a piece of a chat brings."""
    return sum(len((each["logprobs"] or {}).get("content", [])) for each in chunk["choices"])


def test_times_of_pieces_need_pieces(folder: Path) -> None:
    async def ask() -> None:
        async with serving(folder) as (app, _), client(app) as http:
            sent = {**chat(max_tokens=2), "cutaway": {"times": True}}
            refused = await http.post("/v1/chat/completions", json=sent)
            assert refused.status_code == 400
            assert refused.json()["error"]["param"] == "cutaway.times"
            assert "send stream: true" in refused.json()["error"]["message"]

    asyncio.run(ask())


def keys(value: Any, place: str = "") -> set[str]:
    """The paths of all fields of an object."""
    if isinstance(value, dict):
        return {each for name, item in value.items() for each in keys(item, f"{place}.{name}")}
    if isinstance(value, list):
        return {each for item in value for each in keys(item, place)}
    return {place}


def test_each_choice_of_each_prompt_has_its_events(folder: Path) -> None:
    async def ask() -> None:
        async with serving(folder) as (app, _), client(app) as http:
            sent = completion(prompt=["one", "three"], n=2, max_tokens=2, temperature=1, seed=1)
            answer = (await http.post("/v1/completions", json={**sent, "cutaway": TRACE})).json()
            for choice, words in enumerate(["one", "one", "three", "three"]):
                place = answer["cutaway"]["events"]
                found = told(await http.get(place, params={"choice": choice}))
                prompt = next(event for _, event in found if event["type"] == "prompt")
                assert "".join(prompt["texts"]) == words
                assert found[0][1]["choice"] == choice % 2
                said = "".join(event.get("shows", "") for _, event in found) + found[-1][1]["rest"]
                assert said == answer["choices"][choice]["text"]
            refused = await http.get(place, params={"choice": 4})
            assert refused.status_code == 404 and refused.json()["error"]["code"] == "no_trace"

    asyncio.run(ask())


def test_a_stream_that_broke_off_goes_on(folder: Path) -> None:
    async def ask() -> None:
        async with serving(folder) as (app, _), client(app) as http:
            trace = (await http.post("/v1/completions", json=completion(max_tokens=40))).json()[
                "id"
            ]
            whole = told(await heard(http, trace))
            assert [number for number, _ in whole] == list(range(len(whole)))
            for after in (0, 17, len(whole) - 2):
                rest = await heard(http, trace, headers={"last-event-id": str(after)})
                assert told(rest) == whole[after + 1 :]
            done = await heard(http, trace, headers={"last-event-id": str(len(whole) - 1)})
            assert done.status_code == 204 and not done.content

    asyncio.run(ask())


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"params": {"choice": "x"}}, "choice"),
        ({"params": {"choice": "-1"}}, "choice"),
        ({"params": {"choice": "1.0"}}, "choice"),
        ({"params": {"choice": str(2**31)}}, "choice"),
        ({"params": {"choice": "9" * 10_000}}, "choice"),
        ({"params": {"choice": "\u0661"}}, "choice"),
        ({"headers": {"last-event-id": "--5"}}, "Last-Event-ID"),
        ({"headers": {"last-event-id": "-2"}}, "Last-Event-ID"),
        ({"headers": {"last-event-id": ""}}, "Last-Event-ID"),
    ],
)
def test_places_that_are_none_are_named(folder: Path, more: dict[str, Any], param: str) -> None:
    async def ask() -> None:
        async with serving(folder) as (app, _), client(app) as http:
            refused = await heard(http, "x", **more)
            assert refused.status_code == 400
            error = refused.json()["error"]
            assert error["param"] == param and "it must be an integer from 0" in error["message"]

    asyncio.run(ask())


def test_events_belong_to_the_key_that_had_the_answer_made(folder: Path) -> None:
    keys = Keys([("ann", "a" * 20), ("ben", "b" * 20)])

    async def ask() -> None:
        async with serving(folder, keys=keys) as (app, _), client(app) as http:
            assert (await heard(http, "x")).status_code == 401
            http.headers["authorization"] = f"Bearer {'a' * 20}"
            trace = (await http.post("/v1/completions", json=completion())).json()["id"]
            assert (await heard(http, trace)).status_code == 200
            http.headers["authorization"] = f"Bearer {'b' * 20}"
            refused = await heard(http, trace)
            assert refused.status_code == 404 and "no record" in refused.text

    asyncio.run(ask())


@pytest.mark.parametrize("views", ["off", "local"])
def test_nothing_is_told_where_views_are_off(folder: Path, views: str) -> None:
    changes: dict[str, Any] = {"views": views}
    if views == "local":
        changes |= {"host": "0.0.0.0", "allowed_hosts": ("test",)}

    async def ask() -> None:
        async with serving(folder, **changes) as (app, _), client(app) as http:
            answers = [await heard(http, "x"), await http.get("/cutaway/v1/engine")]
            answers.append(await http.get("/cutaway/v1/clock"))
            for path, body in ROUTES:
                answers.append(await http.post(path, json={**body, "cutaway": TRACE}))
                assert (await http.post(path, json=body)).status_code == 200
            for response in answers:
                assert response.status_code == 403 and "--views off" in response.text

    asyncio.run(ask())


def test_events_come_while_the_answer_is_made(folder: Path) -> None:
    async def ask() -> None:
        async with serving(folder) as (app, context), client(app) as http:
            seen: list[str] = []

            async def listen(trace: str) -> list[int]:
                numbers: list[int] = []
                asked = EventRequest(request_id=trace, choice=0, owner="")
                async with aclosing(context.service.listen(asked)) as batches:
                    async for batch in batches:
                        numbers += [number for number, _ in batch.events]
                        seen.append("events")
                return numbers

            long = chat(max_tokens=100, ignore_eos=True, stream=True)
            async with asyncio.TaskGroup() as group:
                post = group.create_task(http.post("/v1/chat/completions", json=long))
                post.add_done_callback(lambda _: seen.append("end"))
                snapshot = await running(http)
                listening = group.create_task(listen(snapshot["running"][0]["trace_id"]))
            assert seen.index("end") > 2, "several batches came before the answer's end"
            trace = events(post.result().text)[0]["id"]
            assert listening.result() == [number for number, _ in told(await heard(http, trace))]

    asyncio.run(ask())


async def running(http: httpx2.AsyncClient) -> Any:
    """What the engine holds, once it holds an answer that runs."""
    while True:
        snapshot = (await http.get("/cutaway/v1/engine")).json()
        if snapshot["running"]:
            return snapshot


def test_a_listener_who_goes_is_forgotten(folder: Path) -> None:
    async def ask() -> None:
        async with serving(folder) as (app, context), client(app) as http:
            long = chat(max_tokens=200, ignore_eos=True)
            answer = asyncio.create_task(http.post("/v1/chat/completions", json=long))
            trace = (await running(http))["running"][0]["trace_id"]
            messages = iter([{"type": "http.request", "body": b"", "more_body": False}])
            begun = asyncio.Event()

            async def receive() -> Any:
                for message in messages:
                    return message
                await begun.wait()
                return {"type": "http.disconnect"}

            async def send(message: Any) -> None:
                begun.set()

            path = f"/cutaway/v1/traces/{trace}/events"
            scope = {
                "type": "http",
                "asgi": {"version": "3.0"},
                "http_version": "1.1",
                "method": "GET",
                "scheme": "http",
                "path": path,
                "raw_path": path.encode(),
                "query_string": b"",
                "root_path": "",
                "headers": [(b"host", b"127.0.0.1:8000")],
                "server": ("127.0.0.1", 8000),
                "client": ("127.0.0.1", 1),
            }
            await app(scope, receive, send)
            feeds = context.service._llm._feeds  # type: ignore[attr-defined]
            await context.service.stats()  # said after the leaving, so done after it
            assert begun.is_set() and feeds.num_open == 0
            assert (await answer).status_code == 200

    asyncio.run(ask())


def test_a_snapshot_tells_states_and_no_content(folder: Path) -> None:
    keys = Keys([("ann", "a" * 20), ("ben", "b" * 20)])

    async def ask() -> None:
        async with serving(folder, keys=keys) as (app, _), client(app) as http:
            http.headers["authorization"] = f"Bearer {'a' * 20}"
            empty = (await http.get("/cutaway/v1/engine")).json()
            assert (empty["schema"], empty["steps"], empty["running"], empty["batch"]) == (
                1,
                0,
                [],
                None,
            )
            long = chat(max_tokens=200, ignore_eos=True)
            answer = asyncio.create_task(http.post("/v1/chat/completions", json=long))
            own = await running(http)
            (mine,) = own["running"]
            assert mine["trace_id"].startswith("chatcmpl-") and mine["choice"] == 0
            http.headers["authorization"] = f"Bearer {'b' * 20}"
            (theirs,) = (await running(http))["running"]
            assert theirs["answer"] == mine["answer"]
            assert (theirs["trace_id"], theirs["choice"], theirs["num_cached"]) == (
                None,
                None,
                None,
            )
            for group, runs in zip(own["groups"], mine["pages"], strict=True):
                held = [page for first, count in runs for page in range(first, first + count)]
                assert len(held) == -(-mine["num_computed"] // 8)
                assert all(group["map"][page] in "us" for page in held)
                counted = {letter: group["map"].count(letter) for letter in ".fcus"}
                assert counted["."] == 1 and len(group["map"]) == group["num_pages"]
                assert counted["f"] == group["free"] and counted["c"] == group["cached"]
                assert counted["u"] + counted["s"] == group["used"]
            assert own["batch"]["parts"][0]["answer"] == mine["answer"]
            assert own["counts"]["recorded_answers"] == 1
            assert (await answer).status_code == 200

    asyncio.run(ask())


def test_an_error_amid_events_is_told_as_one(folder: Path) -> None:
    async def ask() -> None:
        async with serving(folder) as (app, context), client(app) as http:
            trace = (await http.post("/v1/completions", json=completion(max_tokens=60))).json()[
                "id"
            ]
            engine = context.service._llm._llm.engine  # type: ignore[attr-defined]
            engine.ledger._drop_steps(before=engine.num_steps - 1)
            response = await heard(http, trace)
            assert response.status_code == 200
            last = response.text.strip().split("\n\n")[-1]
            fault = json.loads(last.removeprefix("data: "))
            assert (fault["schema"], fault["type"]) == (1, "error")
            assert fault["error"]["code"] == "no_trace" and "ledger" in fault["error"]["message"]

    asyncio.run(ask())
