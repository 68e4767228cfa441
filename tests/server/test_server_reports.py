"""Properties that would have found each kind of what was reported of other servers (N-ids).

tests/house/test_house_reports.py says which test holds which id.
"""

from __future__ import annotations

import asyncio
import gzip
import http.client
import json
import shutil
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from live_server import live
from server_app import chat, client, completion, events, serving
from test_server_edge import BIG, KEY, LEAST, PAGE, posted_by_http_client, posted_by_node, preflight

from cutaway.core.limits import LIMITS
from cutaway.server.entry.auth import Keys
from cutaway.server.route_context import Context

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
FUNCTION = {"name": "f", "description": "d", "parameters": SCHEMA}
CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}

# As much of each API's body as goes together.
WHOLE: dict[str, dict[str, Any]] = {
    CHAT: {
        **chat(),
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "hello"}]},
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "3"}]},
        ],
        "tools": [{"type": "function", "function": FUNCTION}],
        "tool_choice": {"type": "function", "function": {"name": "f"}},
        "stream": True,
        "stream_options": {"include_usage": True},
    },
    COMPLETIONS: {**completion(), "stream": True, "stream_options": {"include_usage": True}},
    RESPONSES: {
        "model": "tiny",
        "max_output_tokens": 4,
        "input": [
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]},
            {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c1", "output": "3"},
        ],
        "text": {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA}},
        "reasoning": {"effort": "low"},
    },
    MESSAGES: {
        "model": "tiny",
        "max_tokens": 4,
        "system": [{"type": "text", "text": "Be brief."}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "hi"}]},
            {"role": "assistant", "content": [
                {"type": "tool_use", "id": "t1", "name": "f", "input": {"a": 1}},
            ]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": [
                    {"type": "text", "text": "3"},
                ]},
            ]},
        ],
        "tools": [{"name": "f", "description": "d", "input_schema": SCHEMA}],
        "tool_choice": {"type": "auto"},
        "thinking": {"type": "disabled"},
    },
}  # fmt: skip
# What a client writes there is its own: names of properties, arguments of its functions.
FREE = ("properties", "schema", "parameters", "input_schema")


def places(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Every object of a body, but those whose names are the client's own."""
    if isinstance(value, dict):
        yield path
        for name, each in value.items():
            if name not in FREE and not (name == "input" and path):  # of a call
                yield from places(each, (*path, name))
    elif isinstance(value, list):
        for index, each in enumerate(value):
            yield from places(each, (*path, index))


def put(body: Any, path: tuple[str | int, ...], name: str, value: object) -> Any:
    """The body with one field more in one of its objects."""
    made = json.loads(json.dumps(body))
    inner = made
    for each in path:
        inner = inner[each]
    inner[name] = value
    return made


@pytest.mark.parametrize("path", WHOLE)
def test_n06_no_object_drops_a_field_that_nobody_knows(long_folder: Path, path: str) -> None:
    """Kind B: what was sent acts, or is refused by its name, at every depth."""

    async def walk() -> None:
        async with serving(long_folder) as (app, _), client(app) as http:
            whole = await http.post(path, json=WHOLE[path])
            assert whole.status_code == 200, whole.text
            dropped: list[Any] = []
            for place in places(WHOLE[path]):
                body = put(WHOLE[path], place, "zz_unknown", {"type": "string"})
                answer = await http.post(path, json=body)
                if answer.status_code != 400 or "zz_unknown" not in answer.text:
                    dropped.append((place, answer.text[:200]))
            assert dropped == []

    asyncio.run(walk())


INTEGERS = [name for name, limit in LIMITS.items() if limit.kind == "int"]


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 20), st.sampled_from(["{}.0", "{}e0", "{}.000", "{}0e-1"]))
def test_n25_an_integer_is_one_however_json_writes_it(number: int, form: str) -> None:
    """Kind G, of the reader of bodies itself: 3.0 and 3e0 are 3, 3.5 is none."""
    from cutaway.core.errors import RequestError
    from cutaway.server.field_types import wholes

    assert wholes(json.loads(f"[{form.format(number)}]")) == [number]
    told = wholes([number + 0.5])
    assert told == [number + 0.5], "what is no integer stays for the check to refuse"
    with pytest.raises(RequestError):
        from cutaway import SamplingParams

        SamplingParams(stop_token_ids=told)


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_n25_every_integer_field_takes_3_and_refuses_half(folder: Path, path: str) -> None:
    base = dict(chat() if path == CHAT else completion())

    async def walk() -> None:
        async with serving(folder) as (app, _), client(app) as http:
            fields = (await http.get("/openapi.json")).json()["paths"][path]["post"]
            schema = fields["requestBody"]["content"]["application/json"]["schema"]
            count = 0
            for name in INTEGERS:
                if name not in schema["properties"]:
                    continue
                more = {"logprobs": True} if name == "top_logprobs" else {}
                if path == CHAT and name == "logprobs":
                    continue  # there it is true or false
                taken = await http.post(path, json={**base, **more, name: 1.0})
                assert taken.status_code == 200, (name, taken.text)
                refused = await http.post(path, json={**base, **more, name: 1.5})
                assert refused.status_code == 400 and name in refused.text, (name, refused.text)
                count += 1
            assert count >= 5

    asyncio.run(walk())


TOKEN = st.text("abcdefghijklmnopqrstuvwxyz0123456789-_", min_size=1, max_size=30)


def names_of_headers() -> list[list[str]]:
    """Thirty lists of names; drawn when they are asked for, not when tests are collected."""
    found: list[list[str]] = []

    @settings(max_examples=30, deadline=None, database=None, derandomize=True)
    @given(
        st.lists(TOKEN.filter(lambda name: name.strip("-_")), min_size=1, max_size=6, unique=True)
    )
    def collect(names: list[str]) -> None:
        found.append(names)

    collect()
    return found


def test_n16_whatever_an_allowed_page_asks_to_send_it_may(asked: Callable[..., Any]) -> None:
    """Kind F: names of headers that no list has."""
    drawn: list[tuple[list[str], Any]] = []

    async def ask(http: httpx2.AsyncClient, _: Context) -> None:
        for names in names_of_headers():
            told = await http.options(CHAT, headers=preflight(PAGE, ", ".join(names)))
            drawn.append((names, told))

    asked(ask, allowed_origins=(PAGE,))
    assert len(drawn) == 30
    for names, told in drawn:
        assert told.status_code == 204
        allowed = {e.strip() for e in told.headers["access-control-allow-headers"].split(",")}
        assert allowed == {*names}


def refused_by_http_client(port: int, headers: dict[str, str], path: str, method: str) -> int:
    """The status that a client sees which sends all before it reads."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    told = {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}", **headers}
    try:
        connection.request(method, path, body=b"x" * BIG, headers=told)
        return connection.getresponse().status
    finally:
        connection.close()


REFUSALS = {
    "key": ({"Authorization": "Bearer wrong"}, COMPLETIONS, "POST", 401),
    "host": ({"Host": "evil.example"}, COMPLETIONS, "POST", 403),
    "origin": ({"Origin": "https://evil.example"}, COMPLETIONS, "POST", 403),
    "type": ({"Content-Type": "text/plain"}, COMPLETIONS, "POST", 400),
    "packed": ({"Content-Encoding": "gzip"}, COMPLETIONS, "POST", 400),
    "size": ({}, COMPLETIONS, "POST", 413),
    "path": ({}, "/v1/nothing", "POST", 404),
    "method": ({}, COMPLETIONS, "PUT", 405),
}


@pytest.mark.parametrize("kind", REFUSALS)
def test_n21_whatever_refuses_a_large_body_is_read(folder: Path, kind: str) -> None:
    """Kind F: every refusal that comes before the body was read."""
    headers, path, method, status = REFUSALS[kind]

    async def body() -> list[int]:
        async with live(folder, max_body_bytes=LEAST, keys=Keys([("a", KEY)])) as server:
            loop = asyncio.get_running_loop()
            given_ = (server.port, headers, path, method)
            return [
                await loop.run_in_executor(None, refused_by_http_client, *given_) for _ in range(4)
            ]

    seen = set(asyncio.run(body()))
    # Where several things are wrong the door says the first; the size is one of them.
    assert seen in ({status}, {413}), seen


@pytest.mark.slow
@pytest.mark.parametrize("megabytes", [3, 8, 30])
def test_n21_forty_of_forty_see_the_413(folder: Path, megabytes: int) -> None:
    async def body() -> list[int]:
        async with live(folder, max_body_bytes=2 * 2**20, keys=Keys([("a", KEY)])) as server:
            loop, size = asyncio.get_running_loop(), megabytes * 2**20
            seen = [
                await loop.run_in_executor(None, posted_by_http_client, server.port, size, KEY)
                for _ in range(40)
            ]
            for _ in range(5 if shutil.which("node") else 0):
                seen += await loop.run_in_executor(None, posted_by_node, server.port, size, KEY)
            return seen

    seen = asyncio.run(body())
    assert set(seen) == {413} and len(seen) >= 40


@pytest.mark.parametrize("packed", ["gzip", "deflate", "br", "zstd"])
@pytest.mark.parametrize("path", [CHAT, MESSAGES])
def test_n23_a_packed_body_is_refused_in_words(
    asked: Callable[..., Any], path: str, packed: str
) -> None:
    plain = json.dumps(WHOLE[path]).encode()
    data = {"gzip": gzip.compress(plain), "deflate": zlib.compress(plain)}.get(packed, plain)

    async def ask(http: httpx2.AsyncClient, _: Context) -> Any:
        headers = {"content-type": "application/json", "content-encoding": packed}
        return await http.post(path, content=data, headers=headers), await http.get("/health")

    refused, after = asked(ask)
    assert refused.status_code == 400 and after.status_code == 200
    told = refused.json()["error"]["message"]
    assert f'Content-Encoding is "{packed}"' in told and "send the body as it is" in told


def test_n29_the_first_event_counts_the_prompt(long_folder: Path) -> None:
    asked = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}]}

    async def body() -> tuple[int, dict[str, Any], dict[str, Any]]:
        async with serving(long_folder) as (app, _), client(app) as http:
            counted = await http.post(f"{MESSAGES}/count_tokens", json=asked)
            whole = await http.post(MESSAGES, json={**asked, "max_tokens": 2})
            streamed = await http.post(MESSAGES, json={**asked, "max_tokens": 2, "stream": True})
            first = next(
                json.loads(line.removeprefix("data: "))
                for line in streamed.text.splitlines()
                if line.startswith("data: ")
            )
            return counted.json()["input_tokens"], whole.json()["usage"], first

    count, usage, first = asyncio.run(body())
    assert first["type"] == "message_start"
    told = first["message"]["usage"]
    assert told["input_tokens"] + told.get("cache_read_input_tokens", 0) == count
    assert usage["input_tokens"] + usage.get("cache_read_input_tokens", 0) == count


@pytest.mark.parametrize("max_tokens", [1, 2, 7])
def test_n35_counts_hold_where_the_bound_ends_an_answer(
    asked: Callable[..., Any], max_tokens: int
) -> None:
    async def ask(http: httpx2.AsyncClient, _: Context) -> Any:
        fields = {"max_tokens": max_tokens, "ignore_eos": True}
        whole = await http.post(CHAT, json=chat(**fields))
        options = {"stream": True, "stream_options": {"include_usage": True}}
        return whole.json(), events((await http.post(CHAT, json=chat(**fields, **options))).text)

    whole, streamed = asked(ask)
    assert whole["usage"]["completion_tokens"] == max_tokens
    assert whole["choices"][0]["finish_reason"] == "length"
    counts = [each["usage"] for each in streamed if each != "[DONE]" and each.get("usage")]
    assert counts[-1]["completion_tokens"] == max_tokens
    assert counts[-1]["total_tokens"] == counts[-1]["prompt_tokens"] + max_tokens


@pytest.mark.parametrize(
    ("path", "advice"),
    [
        ("/v1/embeddings", "embedding server"),
        ("/embeddings", "embedding server"),
        ("/v1/rerank", "ranks no texts"),
        ("/rerank", "ranks no texts"),
        ("/v1/score", "ranks no texts"),
        ("/api/chat", "/v1/chat/completions"),
        ("/api/generate", "/v1/chat/completions"),
        ("/chat/completions", "with /v1"),
        ("/v1/v1/chat/completions", "twice"),
    ],
)
def test_what_others_have_and_this_has_not_is_told_with_advice(
    asked: Callable[..., Any], path: str, advice: str
) -> None:
    async def ask(http: httpx2.AsyncClient, _: Context) -> Any:
        return await http.post(path, json={})

    answer = asked(ask)
    assert answer.status_code == 404 and advice in answer.json()["error"]["message"]


def test_two_requests_in_one_packet_are_told_why(folder: Path) -> None:
    async def body() -> bytes:
        async with live(folder) as server:
            reader, writer = await server.connect()
            one = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
            writer.write(one * 2)
            return await asyncio.wait_for(reader.read(), 10)

    told = asyncio.run(body())
    assert b"a second request came before the first was answered" in told
