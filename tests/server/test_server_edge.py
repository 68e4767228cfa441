"""The edge of HTTP: browsers' preflights, origins that are no web pages, HEAD, refused bodies."""

from __future__ import annotations

import asyncio
import http.client
import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest
from live_server import live, post
from server_app import answered, chat, completion

from cutaway.core.errors import ConfigError, OverloadedError
from cutaway.server.entry.auth import Keys
from cutaway.server.route_context import Context
from cutaway.server.server_config import ServerConfig

PAGE = "http://localhost:5173"
SENT_BY_SDKS = (
    "anthropic-dangerous-direct-browser-access,anthropic-version,authorization,content-type,"
    "traceparent,user-agent,x-api-key,x-stainless-arch,x-stainless-lang,x-stainless-os,"
    "x-stainless-package-version,x-stainless-retry-count,x-stainless-runtime,x-stainless-timeout"
)
BIG = 3 * 2**20
LEAST = 1000  # bytes that are allowed
ROUNDS = 8


def preflight(origin: str, asked: str, **more: str) -> dict[str, str]:
    return {
        "origin": origin,
        "access-control-request-method": "POST",
        "access-control-request-headers": asked,
        **more,
    }


def test_n16_a_page_that_is_allowed_may_send_all_that_it_asks_for(
    asked: Callable[..., Any],
) -> None:
    async def ask(client: httpx2.AsyncClient, _: Context) -> Any:
        path = "/v1/chat/completions"
        sdk = await client.options(path, headers=preflight(PAGE, SENT_BY_SDKS))
        local = {"access-control-request-private-network": "true"}
        private = await client.options(path, headers=preflight(PAGE, "x-a", **local))
        odd = await client.options(path, headers=preflight(PAGE, "a\tb; c"))
        foreign = await client.options(path, headers=preflight("http://a.example", "x-a"))
        return sdk, private, odd, foreign

    sdk, private, odd, foreign = asked(ask, allowed_origins=(PAGE,))
    assert sdk.status_code == 204
    assert sdk.headers["access-control-allow-headers"] == SENT_BY_SDKS
    assert sdk.headers["access-control-allow-origin"] == PAGE
    assert private.headers["access-control-allow-private-network"] == "true"
    assert "access-control-allow-headers" not in odd.headers
    assert foreign.status_code == 403


@pytest.mark.parametrize(
    "origin",
    [
        "app://obsidian.md",
        "chrome-extension://abcdefghijklmnop",
        "moz-extension://0b1c-2d",
        "tauri://localhost",
        "vscode-webview://1a2b",
        "capacitor://localhost",
        "http://[::1]:8080",
        "https://chat.example.org",
    ],
)
def test_n17_origins_of_programs_can_be_allowed(asked: Callable[..., Any], origin: str) -> None:
    async def ask(client: httpx2.AsyncClient, _: Context) -> Any:
        sent = await client.post(
            "/v1/chat/completions", json=chat(max_tokens=1), headers={"origin": origin}
        )
        return await client.options("/v1/models", headers=preflight(origin, "x-a")), sent

    told, sent = asked(ask, allowed_origins=(origin,))
    assert told.status_code == 204 and sent.status_code == 200
    assert sent.headers["access-control-allow-origin"] == origin


@pytest.mark.parametrize(
    "origin",
    ["*", "null", "chat.example.org", "https://a.b/", "https://a.b/c", "https://*.b", "https://"],
)
def test_n17_what_is_no_origin_is_refused_before_the_server_starts(origin: str) -> None:
    with pytest.raises(ConfigError, match="an origin is scheme, host and port alone"):
        ServerConfig(allowed_origins=(origin,))


def test_n20_head_answers_wherever_get_does(asked: Callable[..., Any]) -> None:
    async def ask(client: httpx2.AsyncClient, _: Context) -> Any:
        schema = (await client.get("/openapi.json")).json()
        trace = await answered(client)
        pairs: list[Any] = []
        for path, methods in schema["paths"].items():
            if "get" not in methods or path.endswith("/events"):
                continue
            place = path.format(trace_id=trace, model_id="tiny", name="tiny", model="tiny")
            pairs.append((place, await client.get(place), await client.head(place)))
        feed = await client.head(f"/cutaway/v1/traces/{trace}/events")
        return pairs, feed, await client.head("/v1/chat/completions")

    pairs, feed, post = asked(ask)
    assert len(pairs) >= 6
    for place, got, head in pairs:
        assert head.status_code == got.status_code, place
        assert head.headers["content-type"] == got.headers["content-type"], place
        assert head.content == b"", place
    assert feed.status_code in (200, 404) and feed.content == b""
    assert post.status_code == 405


def posted_by_http_client(port: int, size: int, key: str) -> int:
    """The status that Python's own client sees; it sends all before it reads."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    body = json.dumps({"model": "tiny", "prompt": "x" * size})
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
    try:
        connection.request("POST", "/v1/completions", body=body, headers=headers)
        return connection.getresponse().status
    finally:
        connection.close()


def posted_by_node(port: int, size: int, key: str) -> list[int]:
    """The statuses that Node's fetch sees."""
    script = f"""
    const statuses = [];
    for (let i = 0; i < {ROUNDS}; i++) {{
      const answer = await fetch("http://127.0.0.1:{port}/v1/completions", {{
        method: "POST",
        headers: {{"Content-Type": "application/json", "Authorization": "Bearer {key}"}},
        body: JSON.stringify({{model: "tiny", prompt: "x".repeat({size})}})
      }});
      statuses.push(answer.status);
      await answer.text();
    }}
    console.log(JSON.stringify(statuses));
    """
    done = subprocess.run(
        ["node", "--input-type=module", "-e", script],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-500:]
    return json.loads(done.stdout)


KEY = "a-key-of-sixteen-characters"


@pytest.mark.parametrize(("key", "status"), [(KEY, 413), ("wrong", 401)])
def test_n21_who_sends_too_much_reads_why(folder: Path, key: str, status: int) -> None:
    async def body() -> list[int]:
        keys = Keys([("alice", KEY)])
        async with live(folder, max_body_bytes=LEAST, keys=keys) as server:
            loop = asyncio.get_running_loop()
            seen = [
                await loop.run_in_executor(None, posted_by_http_client, server.port, BIG, key)
                for _ in range(ROUNDS)
            ]
            if shutil.which("node"):
                seen += await loop.run_in_executor(None, posted_by_node, server.port, BIG, key)
            return seen

    assert set(asyncio.run(body())) == {status}


def test_n21_a_body_that_stops_coming_is_not_waited_for(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cutaway.server.entry import door

    monkeypatch.setattr(door, "DRAIN_IDLE_SECONDS", 0.1)

    async def body() -> bytes:
        async with live(folder, max_body_bytes=LEAST) as server:
            reader, writer = await server.connect()
            head = b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\n"
            head += b"Content-Type: application/json\r\nContent-Length: 99999999\r\n\r\n"
            writer.write(head + b"x" * 10)
            told = await asyncio.wait_for(reader.read(), 10)  # to the end of the connection
            assert server.app.num_open == 0
            return told

    assert b"413" in asyncio.run(body())


def test_n21_who_waits_to_be_told_to_send_is_answered_at_once(folder: Path) -> None:
    async def body() -> bytes:
        async with live(folder, max_body_bytes=LEAST) as server:
            reader, writer = await server.connect()
            head = b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\n"
            head += b"Content-Type: application/json\r\nContent-Length: 99999999\r\n"
            writer.write(head + b"Expect: 100-continue\r\n\r\n")
            return await asyncio.wait_for(reader.read(), 10)

    told = asyncio.run(body())
    assert told.startswith(b"HTTP/1.1 413") and b"100 Continue" not in told


def refused_for_want_of_room(_: str, num_coming: int = 0) -> OverloadedError:
    return OverloadedError(f"there is no room for {num_coming}.", retry_after=1)


def test_who_is_refused_for_want_of_room_keeps_the_connection(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body() -> list[bytes]:
        async with live(folder) as server:
            service = server.context.service
            reader, writer = await server.connect()
            heads: list[bytes] = []
            for refusal in (refused_for_want_of_room, refused_for_want_of_room, service.refusal):
                monkeypatch.setattr(service, "refusal", refusal)
                writer.write(post("/v1/completions", completion(max_tokens=1)))
                heads.append(await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10))
                size = heads[-1].partition(b"content-length: ")[2].partition(b"\r\n")[0]
                await reader.readexactly(int(size))
            return heads

    heads = asyncio.run(body())
    assert [each.split(b" ", 2)[1] for each in heads] == [b"503", b"503", b"200"]
    assert not any(b"connection: close" in each for each in heads)
    assert all(b"\r\nretry-after: 1\r\n" in each for each in heads[:2])


@pytest.mark.parametrize("num_first", [0, 10])
def test_who_still_sends_when_refused_for_want_of_room_reads_why(
    folder: Path, monkeypatch: pytest.MonkeyPatch, num_first: int
) -> None:
    async def body() -> bytes:
        async with live(folder) as server:
            monkeypatch.setattr(server.context.service, "refusal", refused_for_want_of_room)
            reader, writer = await server.connect()
            head, _, data = post("/v1/completions", completion()).partition(b"\r\n\r\n")
            writer.write(head + b"\r\n\r\n" + data[:num_first])
            told = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)
            writer.write(data[num_first:])
            told += await asyncio.wait_for(reader.read(), 10)  # to the end of the connection
            assert server.app.num_open == 0
            return told

    told = asyncio.run(body())
    assert told.startswith(b"HTTP/1.1 503") and b"connection: close" in told
    assert b"no room" in told
