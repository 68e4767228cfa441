"""The door: keys, hosts, origins, sizes and deadlines, for every route that there is."""

from __future__ import annotations

import asyncio
import inspect
import json
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import mean, variance
from time import perf_counter_ns
from typing import Any

import httpx2
import pytest
from server_app import ORIGIN, chat, client, make_folder, serving

from cutaway.core.errors import ConfigError
from cutaway.server.entry import auth, door
from cutaway.server.entry.auth import Keys, read_keys
from cutaway.server.entry.door import OPEN_PATHS, Door
from cutaway.server.entry.entrance import MOST_IN_TURN, Entrance
from cutaway.server.entry.owner import who_asks
from cutaway.server.route_context import ANSWERING, Context
from cutaway.server.server_config import MAX_HEADERS, ServerConfig
from cutaway.server.worker import Worker
from cutaway.service.bounds import TrafficConfig
from cutaway.service.local import LocalService
from program import environment
from trials import IN_FULL, ran, seed, trials

KEY, OTHER = "k" * 32, "other-key-of-someone-else"
KEYS = Keys([("alice", KEY), ("bob", OTHER)])
JSON = "application/json"


def live_routes(app: Door) -> Iterator[tuple[str, str]]:
    """Method and path of every route, as the framework holds them."""
    paths = app._app.openapi()["paths"]  # type: ignore[attr-defined]
    yield from ((method.upper(), path) for path, methods in paths.items() for method in methods)
    yield from (("GET", "/metrics"), ("GET", "/openapi.json"), ("HEAD", "/health"))


async def status(
    app: Door, method: str, path: str, headers: list[tuple[bytes, bytes]], body: bytes = b"{}"
) -> tuple[int, dict[str, str]]:
    """What the bare application answers, with no client's own headers between."""
    sent: list[dict[str, Any]] = []
    messages = iter([{"type": "http.request", "body": body, "more_body": False}])

    async def receive() -> dict[str, Any]:
        return next(messages, {"type": "http.disconnect"})

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    path_, _, query = path.partition("?")
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": method,
        "path": path_,
        "raw_path": path_.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "scheme": "http",
        "headers": headers,
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 8000),
    }
    await app(scope, receive, send)
    told = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return sent[0]["status"], told


HOST = (b"host", b"127.0.0.1:8000")
KIND = (b"content-type", b"application/json")
RIGHT = (b"authorization", b"Bearer " + KEY.encode())


def walk(folder: Path, headers: list[tuple[bytes, bytes]], keys: Keys = KEYS) -> dict[Any, int]:
    """The status of every live route under some headers."""

    async def body() -> dict[Any, int]:
        async with serving(folder, keys=keys) as (app, _):
            found = {(m, p): await status(app, m, p, headers) for m, p in live_routes(app)}
            return {route: code for route, (code, _) in found.items()}

    return asyncio.run(body())


@pytest.mark.parametrize(
    "key",
    [
        None,
        (b"authorization", b""),
        (b"authorization", b"Bearer"),
        (b"authorization", b"Bearer "),
        (b"authorization", b"Bearer " + KEY[:-1].encode()),
        (b"authorization", b"Bearer " + KEY.encode() + b"k"),
        (b"authorization", b"Bearer " + KEY.upper().encode()),
        (b"authorization", b"Basic " + KEY.encode()),
        (b"authorization", KEY.encode()),
        (b"authorization", b"Bearer \xff\xfe"),
        (b"x-api-key", b"wrong"),
        (b"cookie", b"key=" + KEY.encode()),
    ],
)
def test_every_route_but_the_named_exceptions_needs_the_key(
    folder: Path, key: tuple[bytes, bytes] | None
) -> None:
    found = walk(folder, [HOST, KIND, *([key] if key else [])])
    assert len(found) > 9
    for (method, path), code in found.items():
        assert code == (200 if path in OPEN_PATHS else 401), (method, path)


@pytest.mark.parametrize("name", [b"authorization", b"x-api-key"])
def test_both_headers_carry_a_key(folder: Path, name: bytes) -> None:
    value = KEY if name == b"x-api-key" else f"bearer {KEY}"
    assert 401 not in walk(folder, [HOST, KIND, (name, value.encode())]).values()


@pytest.mark.parametrize(
    "path",
    [
        *("//v1/models", "/v1//models", "/v1/models/", "/V1/MODELS", "/health/", "/health/../v1"),
        *("/Health", "/ready/x", "/health%2f", "/health;a", "/./health", "/v1/models?key=" + KEY),
        *(
            "/health\0",
            "//",
            "/assets",
            "/index.html",
            "",
            "*",
            "/metrics",
            "/openapi.json",
            "/docs",
            "/static/x",
        ),
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST", "HEAD", "OPTIONS", "PUT", "TRACE", "WEIRD"])
def test_odd_paths_and_methods_need_the_key_too(folder: Path, path: str, method: str) -> None:
    async def body() -> int:
        async with serving(folder, keys=KEYS) as (app, _):
            return (await status(app, method, path, [HOST, KIND]))[0]

    assert asyncio.run(body()) == 401


@pytest.mark.parametrize("method", ["POST", "OPTIONS", "DELETE"])
def test_the_exceptions_are_for_reading_alone(folder: Path, method: str) -> None:
    async def body() -> int:
        async with serving(folder, keys=KEYS) as (app, _):
            return (await status(app, method, "/health", [HOST, KIND]))[0]

    assert asyncio.run(body()) == 401


@pytest.mark.parametrize(
    "host",
    [
        *(b"evil.example", b"evil.example:8000", b"127.0.0.1.evil.example", b"localhost.evil:1"),
        *(b"localhost.", b"", b"127.0.0.2", b"0.0.0.0", b"[::1", b"127.0.0.1@evil", b"LOCALHOST\t"),
    ],
)
def test_a_foreign_host_is_refused_by_every_route(folder: Path, host: bytes) -> None:
    assert set(walk(folder, [(b"host", host), KIND, RIGHT]).values()) == {403}


def test_a_host_that_is_missing_or_stands_twice_is_refused(folder: Path) -> None:
    assert set(walk(folder, [KIND, RIGHT]).values()) == {403}
    assert set(walk(folder, [HOST, HOST, KIND, RIGHT]).values()) == {400}


@pytest.mark.parametrize("host", [b"localhost", b"LocalHost:9", b"127.0.0.1", b"[::1]:8000"])
def test_every_name_of_the_loopback_is_taken(folder: Path, host: bytes) -> None:
    assert 403 not in walk(folder, [(b"host", host), KIND, RIGHT]).values()


@pytest.mark.parametrize(
    "origin",
    [
        *(b"https://evil.example", b"null", b"http://localhost:9", b"http://127.0.0.1:8000.evil"),
        *(b"", b"file://", b"http://[", b"chrome-extension://abc", b"127.0.0.1:8000"),
    ],
)
def test_a_foreign_origin_is_refused_by_every_route(folder: Path, origin: bytes) -> None:
    async def body() -> None:
        async with serving(folder, keys=KEYS) as (app, _):
            for method, path in live_routes(app):
                code, told = await status(
                    app, method, path, [HOST, KIND, RIGHT, (b"origin", origin)]
                )
                assert code == 403, (method, path)
                assert "access-control-allow-origin" not in told

    asyncio.run(body())


def test_h13_no_page_may_ask_unless_it_is_named(asked: Callable[..., Any]) -> None:
    page = "https://chat.example.org"
    preflight = {
        "origin": page,
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization,content-type",
    }

    async def ask(http: httpx2.AsyncClient, _: Context) -> list[httpx2.Response]:
        url = "/v1/chat/completions"
        return [
            await http.options(url, headers=preflight),
            await http.get("/v1/models", headers={"origin": page}),
            await http.get(
                "/v1/models", headers={"origin": page, "authorization": f"Bearer {KEY}"}
            ),
            await http.get("/v1/models", headers={"authorization": f"Bearer {KEY}"}),
        ]

    closed = asked(ask, keys=KEYS)
    assert [each.status_code for each in closed] == [403, 403, 403, 200]
    assert not any("access-control-allow-origin" in each.headers for each in closed)

    asked_page, without, with_key, same = asked(ask, keys=KEYS, allowed_origins=(page,))
    assert asked_page.status_code == 204
    allowed = asked_page.headers["access-control-allow-headers"]
    assert "authorization" in allowed and "content-type" in allowed
    assert without.status_code == 401 and set(without.json()) == {"error"}
    assert with_key.status_code == 200
    for each in (asked_page, without, with_key):
        assert each.headers["access-control-allow-origin"] == page
        assert "access-control-allow-credentials" not in each.headers
        assert each.headers["vary"] == "origin"
    assert "access-control-allow-origin" not in same.headers


def test_the_servers_own_page_may_ask(asked: Callable[..., Any]) -> None:
    async def ask(http: httpx2.AsyncClient, _: Context) -> int:
        answer = await http.post(
            "/v1/chat/completions", json=chat(), headers={"origin": "http://127.0.0.1:8000"}
        )
        return answer.status_code

    assert asked(ask) == 200


@pytest.mark.parametrize("origin", ["*", "chat.example.org", "https://a/b", "null"])
def test_an_origin_that_is_none_is_no_setting(origin: str) -> None:
    with pytest.raises(ConfigError, match="allowed_origins"):
        ServerConfig(allowed_origins=(origin,))


def test_headers_have_a_number_and_a_size(folder: Path) -> None:
    async def body() -> list[int]:
        async with serving(folder) as (app, _):
            many = [(b"x-%d" % number, b"") for number in range(MAX_HEADERS)]
            cases = [[HOST, *many], [HOST, (b"x", b"y" * 33_000)], [HOST, *many[:-1]]]
            found = [(await status(app, "GET", "/health", case))[0] for case in cases]
            return [*found, (await status(app, "GET", "/health?" + "q" * 33_000, [HOST]))[0]]

    assert asyncio.run(body()) == [431, 431, 200, 431]


def test_event_streams_are_described_event_by_event(folder: Path) -> None:
    """A client that checks schemas holds each event, with its name and data, to the one here."""

    async def body() -> list[Any]:
        async with serving(folder) as (app, _):
            paths = app._app.openapi()["paths"]  # type: ignore[attr-defined]
            contents = [
                answer.get("content", {})
                for methods in paths.values()
                for route in methods.values()
                for answer in route["responses"].values()
            ]
            return [c["text/event-stream"]["schema"] for c in contents if "text/event-stream" in c]

    schemas = asyncio.run(body())
    assert len(schemas) >= 5 and all(schema == {"type": "object"} for schema in schemas), schemas


def test_a_body_that_grows_too_large_is_not_read_to_its_end(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What comes after the answer is thrown away up to a bound, so that the answer is read."""
    monkeypatch.setattr(door, "MAX_DRAINED_BYTES", 500)
    num_read = 0

    async def body() -> int:
        async with serving(folder, max_body_bytes=1000) as (app, _):
            sent: list[Any] = []

            async def receive() -> dict[str, Any]:
                nonlocal num_read
                num_read += 1
                return {"type": "http.request", "body": b" " * 100, "more_body": True}

            async def send(message: Any) -> None:
                sent.append(message)

            scope = scope_of("/tokenize")
            await app(scope, receive, send)
            assert (b"connection", b"close") in sent[0]["headers"]
            return sent[0]["status"]

    assert asyncio.run(body()) == 413
    assert num_read == 11 + 5


@pytest.mark.parametrize("length", [b"1001", b"18446744073709551615", b"0" * 30 + b"1001"])
def test_a_body_that_is_told_to_be_too_large_is_not_read_at_all(
    folder: Path, length: bytes
) -> None:
    """A parser counts to 2^64, which has a digit more than the numbers that are read here."""

    async def body() -> int:
        async with serving(folder, max_body_bytes=1000) as (app, _):
            sent: list[Any] = []

            async def receive() -> dict[str, Any]:
                assert sent, "nothing of it is read before the answer"
                return {"type": "http.disconnect"}

            async def send(message: Any) -> None:
                sent.append(message)

            scope = scope_of("/tokenize")
            scope["headers"] = [*scope["headers"], (b"content-length", length)]
            await app(scope, receive, send)
            return sent[0]["status"]

    assert asyncio.run(body()) == 413


@pytest.mark.parametrize("settings", [{"body_idle_seconds": 0.02}, {"body_seconds": 0.02}])
def test_a_body_that_does_not_come_is_not_waited_for(
    folder: Path, settings: dict[str, float]
) -> None:
    async def body() -> int:
        async with serving(folder, **settings) as (app, _):
            sent: list[Any] = []

            async def receive() -> dict[str, Any]:
                await asyncio.Event().wait()
                return {}

            async def send(message: Any) -> None:
                sent.append(message)

            await app(scope_of("/tokenize"), receive, send)
            return sent[0]["status"]

    assert asyncio.run(body()) == 408


def scope_of(path: str) -> dict[str, Any]:
    return {
        "type": "http",
        "http_version": "1.1",
        "method": "POST",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "scheme": "http",
        "headers": [HOST, KIND],
    }


def test_requests_past_the_most_that_may_be_open_are_refused_at_once(folder: Path) -> None:
    async def body() -> tuple[int, dict[str, str], int]:
        async with serving(folder, max_open_requests=1) as (app, context):
            context.worker._turns._num_free = 0  # no thread reads what has come
            sent = b'{"prompt": "hello"}'
            first = asyncio.create_task(status(app, "POST", "/tokenize", [HOST, KIND], sent))
            while not context.worker._turns._waiting:
                await asyncio.sleep(0)
            code, told = await status(app, "GET", "/v1/models", [HOST])
            alive, _ = await status(app, "GET", "/health", [HOST])
            context.worker._turns.leave()
            assert (await first)[0] == 200
            assert app.num_open == app._places.total == 0
            assert b'reason="open_requests"' in context.metrics.text(None)
            return code, told, alive

    code, told, alive = asyncio.run(body())
    assert code == 503 and told["retry-after"] == "1" and alive == 200


def slow_scope(number: int, key: str | None) -> dict[str, Any]:
    """The head of a request whose body does not come."""
    scope = {**scope_of("/tokenize"), "state": {"connection": f"connection {number}"}}
    if key is not None:
        scope["headers"] = [*scope["headers"], (b"authorization", b"Bearer " + key.encode())]
    return scope


@pytest.mark.parametrize("keys", [KEYS, None])
def test_slow_bodies_however_many_leave_room_for_others(folder: Path, keys: Keys | None) -> None:
    async def body() -> tuple[Counter[int], int]:
        async with serving(folder, keys=keys, max_open_requests=20) as (app, _):
            statuses: Counter[int] = Counter()

            async def receive() -> dict[str, Any]:
                return await asyncio.get_running_loop().create_future()

            async def send(message: Any) -> None:
                statuses[message.get("status", 0)] += 1

            def slow(number: int) -> asyncio.Task[None]:
                scope = slow_scope(number, KEY if keys else None)
                return asyncio.create_task(app(scope, receive, send))

            tasks = [slow(number) for number in range(30)]
            await asyncio.sleep(0.1)
            key = [(b"authorization", b"Bearer " + OTHER.encode())] if keys else []
            code, _ = await status(
                app, "POST", "/tokenize", [HOST, KIND, *key], b'{"prompt": "hello"}'
            )
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            assert app.num_open == app._places.total == 0 and not app._bodies
            return statuses, code

    statuses, code = asyncio.run(body())
    assert code == 200
    del statuses[0]  # bodies of answers
    # One key has 4/5 of the places; where connections are owners, the oldest make room.
    assert statuses == ({503: 14} if keys else {408: 11})


def test_a_crowd_that_came_first_keeps_neither_health_nor_another_key_waiting(
    folder: Path,
) -> None:
    """Counted: of 900 requests at once no more than a few begin before either."""

    async def body() -> tuple[list[str], set[int]]:
        async with serving(folder, keys=KEYS) as (app, _):
            begun: list[str] = []

            async def begin(scope: Any, receive: Any, send: Any) -> None:
                begun.append(scope["path"])
                await send({"type": "http.response.start", "status": 200, "headers": []})
                await send({"type": "http.response.body", "body": b""})

            app._app = begin
            crowd, other = (
                [HOST, KIND, (b"authorization", b"Bearer " + key.encode())] for key in (KEY, OTHER)
            )
            tasks = [
                asyncio.create_task(status(app, "POST", "/tokenize", crowd)) for _ in range(900)
            ]
            tasks.append(asyncio.create_task(status(app, "GET", "/v1/models", other)))
            tasks.append(asyncio.create_task(status(app, "GET", "/health", [HOST])))
            told = await asyncio.gather(*tasks)
            return begun, {code for code, _ in told}

    begun, codes = asyncio.run(body())
    assert codes == {200} and len(begun) == 902
    assert begun.index("/health") <= MOST_IN_TURN
    assert begun.index("/v1/models") <= 2 * MOST_IN_TURN


def test_who_gives_up_at_the_entrance_takes_nobodys_turn() -> None:
    async def body() -> list[int]:
        entrance, came = Entrance(most=2), list[int]()

        async def come(number: int) -> None:
            await entrance.come(f"owner {number % 3}")
            came.append(number)

        tasks = [asyncio.create_task(come(number)) for number in range(12)]
        await asyncio.sleep(0)
        assert came == [0, 1]
        for task in tasks[2:8]:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return came

    for _ in range(2):  # another loop may come after the first
        assert sorted(asyncio.run(body())) == [0, 1, 8, 9, 10, 11]


def test_who_has_all_its_answers_is_refused_before_anything_of_its_body_is_parsed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a flood each request costs a head, and no JSON, template or tokens; others go on."""
    taken: list[str] = []
    take_in = Worker.take_in

    async def counted(self: Worker, *args: Any, **kwargs: Any) -> Any:
        taken.append(who_asks())
        return await take_in(self, *args, **kwargs)

    monkeypatch.setattr(Worker, "take_in", counted)

    async def body() -> tuple[list[httpx2.Response], list[httpx2.Response]]:
        traffic = TrafficConfig(max_waiting=8)
        folder = make_folder(tmp_path / "long", max_position_embeddings=8192)
        service = LocalService(f"random:{folder / 'config.json'}", traffic=traffic, max_sequences=2)
        async with serving(folder, keys=KEYS, service=service) as (app, _):
            async with client(app, key=KEY) as alice, client(app, key=OTHER) as bob:
                long = chat(max_tokens=4000, ignore_eos=True)
                running = [
                    asyncio.create_task(alice.post("/v1/chat/completions", json=long))
                    for _ in range(8)
                ]
                assert service._traffic is not None
                while service._traffic.num_open < 8:  # 4/5 of 2 that run and 8 that wait
                    await asyncio.sleep(0.01)
                taken.clear()
                late = [
                    await alice.post(path, content=b"[" * 100_000, headers={"content-type": JSON})
                    for path in ANSWERING
                ]
                late.append(await alice.post("/tokenize", json={"prompt": "hello"}))
                others = [await bob.post("/v1/chat/completions", json=chat())]
                for task in running:
                    task.cancel()
                await asyncio.gather(*running, return_exceptions=True)
                return late, others

    late, others = asyncio.run(body())
    assert [each.status_code for each in late] == [503] * len(ANSWERING) + [200]
    assert all(int(each.headers["retry-after"]) >= 1 for each in late[:-1])
    assert [each.status_code for each in others] == [200] and taken == ["alice", "bob"]


def test_of_a_burst_no_more_is_parsed_than_the_engine_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine counts what is in it: what is on its way there counts like that."""
    taken: list[str] = []
    take_in = Worker.take_in

    async def body() -> tuple[list[httpx2.Response], httpx2.Response, list[httpx2.Response], int]:
        go_on = asyncio.Event()

        async def held(self: Worker, *args: Any, **kwargs: Any) -> Any:
            taken.append(who_asks())
            await go_on.wait()
            return await take_in(self, *args, **kwargs)

        monkeypatch.setattr(Worker, "take_in", held)
        traffic = TrafficConfig(max_waiting=8)
        service = LocalService(
            f"random:{make_folder(tmp_path / 'tiny') / 'config.json'}",
            traffic=traffic,
            max_sequences=2,
        )
        async with serving(tmp_path / "tiny", keys=KEYS, service=service) as (app, _):
            async with client(app, key=KEY) as alice, client(app, key=OTHER) as bob:
                tasks = [
                    asyncio.create_task(alice.post("/v1/chat/completions", json=chat()))
                    for _ in range(20)
                ]
                done: set[asyncio.Task[httpx2.Response]] = set()
                while len(done) < 12:  # those that are refused
                    done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                    await asyncio.sleep(0.01)
                num_parsed = len(taken)
                other = asyncio.create_task(bob.post("/v1/chat/completions", json=chat()))
                while "bob" not in taken:
                    await asyncio.sleep(0.01)
                go_on.set()
                burst = await asyncio.gather(*tasks)
                later = [await alice.post("/v1/chat/completions", json=chat()) for _ in range(3)]
                return burst, await other, later, num_parsed

    burst, other, later, num_parsed = asyncio.run(body())
    assert num_parsed == 8, "4/5 of 2 that run and 8 that wait"
    assert Counter(each.status_code for each in burst) == {200: 8, 503: 12}
    assert other.status_code == 200, "others have room"
    assert [each.status_code for each in later] == [200] * 3, "all of it was given back"


def test_keys_are_compared_in_constant_time() -> None:
    source = inspect.getsource(auth)
    assert "hmac.compare_digest" in source
    assert "==" not in inspect.getsource(Keys.owner)


@pytest.mark.skipif(not IN_FULL, reason="takes a machine that is not busy: bench/reliability.py 18")
def test_time_does_not_tell_where_a_key_is_wrong() -> None:
    """Welch's t of keys wrong at their first and at their last character; 4.5 would be a sign.

    Samples are interleaved; the slower half, where the machine did other things, is left out.
    """
    chance, letters = random.Random(seed(1)), "abcdefghij"
    count = trials(0) // 2
    times: dict[bool, list[int]] = {True: [], False: []}
    order = [True] * count + [False] * count
    chance.shuffle(order)
    sent: list[list[tuple[bytes, bytes]]] = []  # made before: how it was made takes time too
    for is_first in order:
        letter = chance.choice(letters)
        key = letter + KEY[1:] if is_first else KEY[:-1] + letter
        sent.append([(b"authorization", f"Bearer {key}".encode())])
    for is_first, headers in zip(order, sent, strict=True):
        began = perf_counter_ns()
        found = KEYS.owner(headers)
        times[is_first].append(perf_counter_ns() - began)
        assert found is None
    first, last = (sorted(each)[: count // 2] for each in times.values())
    spread = (variance(first) / len(first) + variance(last) / len(last)) ** 0.5
    t = (mean(first) - mean(last)) / spread
    assert abs(t) < 4.5, f"t = {t:.1f}"
    ran(2 * count, welch_t=round(abs(t), 2))


def test_owners_have_salts_of_their_own_that_no_restart_repeats() -> None:
    alice = KEYS.owner([(b"authorization", f"Bearer {KEY}".encode())])
    bob = KEYS.owner([(b"x-api-key", OTHER.encode())])
    again = Keys([("alice", KEY)]).owner([(b"x-api-key", KEY.encode())])
    assert alice and bob and again
    assert (alice.name, bob.name) == ("alice", "bob")
    assert len({alice.cache_salt, bob.cache_salt, again.cache_salt}) == 3


def test_one_owner_does_not_find_what_another_has_cached(folder: Path) -> None:
    async def body() -> list[int]:
        async with serving(folder, keys=KEYS) as (app, _):
            transport = httpx2.ASGITransport(app=app)
            async with httpx2.AsyncClient(transport=transport, base_url=ORIGIN) as http:
                found: list[int] = []
                for key in (KEY, KEY, OTHER):
                    answer = await http.post(
                        "/v1/chat/completions",
                        json=chat("the same long question"),
                        headers={"authorization": f"Bearer {key}"},
                    )
                    details = answer.json()["usage"]["prompt_tokens_details"]
                    found.append(details["cached_tokens"])
                return found

    first, again, other = asyncio.run(body())
    assert first == other == 0 and again > 0


def test_a_file_of_keys_has_names_comments_and_blank_lines(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(f"# ours\n\nalice {KEY}\n  {OTHER}  \n", encoding="utf-8")
    keys = read_keys(file)
    alice = keys.owner([(b"x-api-key", KEY.encode())])
    other = keys.owner([(b"x-api-key", OTHER.encode())])
    assert alice and alice.name == "alice"
    assert other and other.name == "key-4"
    assert keys.owner([]) is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no API key"),
        ("# none\n", "no API key"),
        ("short", "16 printable"),
        ("a b " + "c" * 20, "3 words"),
        ("a " + "c" * 20 + "\na " + "d" * 20, "line 2"),
        ("c" * 20 + "\n" + "c" * 20, "line 2"),
        ("\u00e9" * 20, "ASCII"),
    ],
)
def test_a_file_of_keys_that_is_none_is_refused_without_a_key_in_the_message(
    tmp_path: Path, text: str, words: str
) -> None:
    file = tmp_path / "keys"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=words) as refused:
        read_keys(file)
    assert "cccc" not in str(refused.value)


def test_a_file_of_keys_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        read_keys(tmp_path / "none")


@pytest.mark.parametrize(
    ("host", "is_public"),
    [
        *(("127.0.0.1", False), ("::1", False), ("localhost", False), ("127.9.9.9", False)),
        *(("0.0.0.0", True), ("::", True), ("192.168.1.2", True), ("example.org", True)),
    ],
)
def test_an_address_is_public_unless_it_is_the_loopback(host: str, is_public: bool) -> None:
    assert ServerConfig(host=host).is_public == is_public


def test_a_reader_that_takes_nothing_is_gone_and_all_of_it_is_freed(folder: Path) -> None:
    body = json.dumps(chat(stream=True, max_tokens=200, ignore_eos=True)).encode()

    async def run() -> None:
        async with serving(folder, send_seconds=0.02) as (app, context):
            messages = iter([{"type": "http.request", "body": body, "more_body": False}])

            async def receive() -> dict[str, Any]:
                message = next(messages, None)
                if message is None:
                    await asyncio.Event().wait()
                return message or {}

            async def send(message: Any) -> None:
                if message["type"] == "http.response.body":
                    await asyncio.Event().wait()

            await app(scope_of("/v1/chat/completions"), receive, send)
            while (await context.service.stats()).pages_used:
                await asyncio.sleep(0)
            assert app.num_open == 0
            assert b'why="client"' in context.metrics.text(None)

    asyncio.run(run())


def test_the_server_is_imported_without_torch() -> None:
    code = "import sys, cutaway.server.run; print('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=True
    )
    assert done.stdout == "False\n"
