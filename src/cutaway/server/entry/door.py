"""What every request must pass before the framework sees it: sizes, deadlines, host, origin, key.

A pure ASGI layer. Decisions rest on the path and headers as they came, never on a URL that a
framework put together from them.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable, Iterable, MutableMapping
from contextlib import suppress
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from cutaway.core.limits import quote
from cutaway.core.whole_numbers import whole_number
from cutaway.host.ports import is_port
from cutaway.server.entry.arrivals import Arrivals, do_nothing
from cutaway.server.entry.auth import Keys
from cutaway.server.entry.begun import begin, go_on
from cutaway.server.entry.entrance import Entrance
from cutaway.server.entry.owner import ANYBODY, SHARER, Owner
from cutaway.server.error_replies import HttpError, encode_fault, fault_of, headers_of
from cutaway.server.page import is_page
from cutaway.server.server_config import (
    LOOPBACK_NAMES,
    MAX_HEADER_BYTES,
    MAX_HEADERS,
    ServerConfig,
    host_in_url,
)
from cutaway.server.watching import log
from cutaway.server.watching.metrics import Metrics
from cutaway.service.bounds import SharedBound

Scope = MutableMapping[str, Any]
AsgiMessage = MutableMapping[str, Any]
Receive = Callable[[], Any]
Send = Callable[[AsgiMessage], Any]
App = Callable[[Scope, Receive, Send], Any]
Headers = list[tuple[bytes, bytes]]

OPEN_PATHS = frozenset(("/health", "/ready"))  # answered without a key; they hold no data
# Clients that join addresses write slashes twice, or behind these; nothing else is meant by it.
_JOINED = frozenset(
    f"/v1/{name}"
    for name in (
        *("chat/completions", "completions", "responses", "messages", "messages/count_tokens"),
        "models",
    )
)
_ASKED_HEADERS = re.compile(rb"[A-Za-z0-9!#$%&'*+.^_`|~, -]{1,4096}")  # names, as HTTP has them
# What is left of a refused body is read and thrown away, so that the client comes to read the
# answer: one that still sends when a connection is closed sees the reset and no answer.
MAX_DRAINED_BYTES = 64 * 1024 * 1024
DRAIN_IDLE_SECONDS = 2.0
_REPLICA = b"x-cutaway-replica"
_ALWAYS: Headers = [(b"x-content-type-options", b"nosniff"), (b"cache-control", b"no-store")]


class ClientGoneError(Exception):
    """The client closed its connection; there is nobody to tell anything."""


class HeadToldError(Exception):
    """The headers of an answer were asked for alone, and they are told: no more is made of it."""


@dataclass(eq=False)
class HttpCall:
    """One request on its way: who asks, under which id, and what became of it."""

    send: Send
    request_id: str = field(default_factory=lambda: os.urandom(16).hex())
    owner: Owner = ANYBODY
    connection: str = ""  # the one it came by, where the server's own code took it in
    headers: Headers = field(default_factory=list[tuple[bytes, bytes]])  # of the answer
    status: int | None = None
    operation: str = "chat"  # what is asked for, as OpenTelemetry calls it
    trace_parent: str | None = None  # the span of whoever asks, as W3C writes it
    has_place: bool = False  # one of those that owners share
    is_read: bool = False  # the whole body
    is_head: bool = False  # only the headers of the answer are wanted
    counts: dict[str, int] = field(default_factory=dict[str, int])  # tokens, for the log
    began: float = field(default_factory=perf_counter)
    arrive: Callable[[], None] = do_nothing  # to be called where the engine takes it over

    @property
    def sharer(self) -> str:
        """Whose share it takes: the owner's, or where anybody may ask, its connection's."""
        return self.owner.name or self.connection

    def tell_replica(self, name: str | None) -> None:
        """Have the answer's headers name the engine that began it, for routers that keep to one."""
        if name is not None and not any(key == _REPLICA for key, _ in self.headers):
            self.headers.append((_REPLICA, name.encode("ascii", "replace")))

    @property
    def send_body(self) -> Send:
        """What takes the messages behind the head: pass_on, without a call more where it can be."""
        return self.pass_on if self.is_head else self.send

    async def pass_on(self, message: AsgiMessage) -> None:
        """Send a message of the answer, its headers completed."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            own = (b"x-request-id", self.request_id.encode())
            given = list(message.get("headers", ()))
            named = {name for name, _ in given}
            always = [header for header in _ALWAYS if header[0] not in named]
            message["headers"] = [*given, own, *always, *self.headers]
        elif self.is_head:
            await self.send({"type": "http.response.body", "body": b""})
            raise HeadToldError
        await self.send(message)


class Door:
    """The application behind its door.

    arrivals: asked of each POST before its body is read, and again before it is parsed.
    """

    def __init__(
        self,
        app: App,
        config: ServerConfig,
        *,
        keys: Keys,
        metrics: Metrics,
        arrivals: Arrivals,
    ) -> None:
        self._app = app
        self._config = config
        self._keys = keys
        self._metrics = metrics
        self._arrivals = arrivals
        self._num_open = 0
        self._entrance = Entrance()
        self._places = SharedBound(config.max_open_requests)
        # Bodies on their way, the one that began first in front: when all places are taken it
        # makes room, so that nobody is kept out by who sends slowly.
        self._bodies: dict[HttpCall, asyncio.Timeout] = {}
        named = {host_in_url(config.host), *config.allowed_hosts}
        has_any = config.is_public and not config.allowed_hosts
        self._hosts = None if has_any else frozenset({*LOOPBACK_NAMES, *named})

    @property
    def num_open(self) -> int:
        """Requests that are being answered."""
        return self._num_open

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, whatever happens."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        path = _unslashed(scope["path"])
        if path != scope["path"] and path in _JOINED:
            scope = {**scope, "path": path, "raw_path": path.encode()}
        state = scope.setdefault("state", {})
        call = state["call"] = HttpCall(send, connection=state.get("connection", ""))
        self._num_open += 1
        try:
            await self._answer(scope, receive, call)
        except ClientGoneError:
            call.status = call.status or 499
        except HeadToldError:
            pass
        except Exception as error:
            fault = fault_of(error)
            if fault.status == 500:
                log.fault(error, request_id=call.request_id)
            with suppress(HeadToldError):
                await self._refuse(call, scope, receive, fault)
        finally:
            self._num_open -= 1
            self._leave(call)
            self._note(scope, call)

    async def _answer(self, scope: Scope, receive: Receive, call: HttpCall) -> None:
        headers: Headers = scope["headers"]
        call.is_head = scope["method"] == "HEAD"
        _check_sizes(scope)
        self._check_host(_only(headers, b"host"))
        if self._is_preflight(scope, call):
            await _respond(call, 204, b"", _preflight_headers(headers))
            return
        is_open = scope["path"] in OPEN_PATHS or is_page(scope["path"])
        is_open = is_open and scope["method"] in ("GET", "HEAD")
        if not is_open:
            owner = self._keys.owner(headers)
            call.owner = owner or ANYBODY
            await self._entrance.come(call.sharer)
            _check_key(owner)
            call.trace_parent = _trace_parent(headers)
            self._enter(call, scope)
            _check_form(scope["method"], headers)
        body = await self._body(call, headers, receive)
        if call.has_place:  # who sends slowly was none of those on their way so far
            self._check_is_taken_in(call, scope)
            call.arrive = self._arrivals.begin(scope["path"], call.sharer)
        # For HEAD whatever GET answers, without its body; the server below has a scope of its own.
        asked = {**scope, "method": "GET"} if call.is_head else scope
        try:
            await self._app(asked, _replayed(body, receive), call.pass_on)
        finally:
            scope["route"] = asked.get("route")

    def _check_host(self, host: str | None) -> None:
        """Only names that this server has: a page may have its own name point here."""
        if host is None or (self._hosts is not None and _without_port(host) not in self._hosts):
            raise HttpError(
                status=403,
                message=f"Host is {quote(host)}, which is no name of this server. Ask by its "
                "address, or allow the name with --allow-host.",
                code="host_not_allowed",
            )

    def _is_preflight(self, scope: Scope, call: HttpCall) -> bool:
        """Whether a browser asks what a page may send. Raises: HttpError for a foreign page."""
        headers: Headers = scope["headers"]
        origin = _only(headers, b"origin")
        if origin is None:
            return False
        if origin in self._config.allowed_origins:
            call.headers += [
                (b"access-control-allow-origin", origin.encode("latin-1")),
                (b"access-control-expose-headers", b"x-request-id, x-cutaway-replica, retry-after"),
                (b"vary", b"origin"),
            ]
            asked = _only(headers, b"access-control-request-method")
            return scope["method"] == "OPTIONS" and asked is not None
        if origin.partition("://")[2] == _only(headers, b"host"):
            return False
        raise HttpError(
            status=403,
            message=f"Origin is {quote(origin)}; pages from elsewhere may not ask here. "
            "--allow-origin allows one.",
            code="origin_not_allowed",
        )

    def _enter(self, call: HttpCall, scope: Scope) -> None:
        """Take one of the places for requests. Raises: HttpError when there is none."""
        SHARER.set(call.sharer)
        places = self._places
        if places.left < 1 and self._bodies:
            slowest, timeout = next(iter(self._bodies.items()))
            timeout.reschedule(0)
            self._leave(slowest)
        if not places.has_room(call.sharer):
            self._metrics.count_rejected("open_requests")
            raise HttpError(
                status=503,
                message=f"{places.total} requests are open; at most {places.most} may be, and of "
                "one owner no more than leaves room for others. Try again in a second.",
                code="overloaded",
                retry_after=1,
            )
        places.take(call.sharer)
        call.has_place = True
        self._check_is_taken_in(call, scope)

    def _check_is_taken_in(self, call: HttpCall, scope: Scope) -> None:
        """Raise HttpError where its owner has all that it may."""
        is_work = scope["method"] == "POST"
        fault = self._arrivals.refusal(scope["path"], call.sharer) if is_work else None
        if fault is not None:
            self._metrics.count_rejected(fault.code or "closed")
            raise fault

    def _leave(self, call: HttpCall) -> None:
        """Give its place back, once."""
        self._bodies.pop(call, None)
        call.arrive()
        if call.has_place:
            call.has_place = False
            self._places.give(call.sharer)

    async def _body(self, call: HttpCall, headers: Headers, receive: Receive) -> bytes:
        """The whole body, within its size and its time."""
        config = self._config
        length = _only(headers, b"content-length")
        if length is not None:
            # The parser lets digits alone through; so many that none are read are too many.
            size = whole_number(length.lstrip("0") or "0")
            if size is None or size > config.max_body_bytes:
                raise _too_large(config.max_body_bytes)
        body = bytearray()
        step, is_there, got = begin(receive())
        if is_there and self._is_whole(call, body, got):
            return bytes(body)  # most come with their head, and need no clock
        try:
            async with asyncio.timeout(config.body_seconds) as whole:
                self._bodies[call] = whole
                while True:
                    async with asyncio.timeout(config.body_idle_seconds):
                        message = await (receive() if is_there else go_on(step, got))
                    is_there = True
                    if self._is_whole(call, body, message):
                        return bytes(body)
        except TimeoutError:
            raise HttpError(
                status=408,
                message=f"the body did not come within {config.body_idle_seconds:g} s between "
                f"parts and {config.body_seconds:g} s in all.",
                code="request_timeout",
            ) from None
        finally:
            self._bodies.pop(call, None)

    def _is_whole(self, call: HttpCall, body: bytearray, message: AsgiMessage) -> bool:
        """Take in a part of a body; whether it was the last. Raises: HttpError, ClientGoneError."""
        if message["type"] == "http.disconnect":
            raise ClientGoneError
        body += message.get("body", b"")
        if len(body) > self._config.max_body_bytes:
            raise _too_large(self._config.max_body_bytes)
        call.is_read = not message.get("more_body", False)
        return call.is_read

    async def _refuse(
        self, call: HttpCall, scope: Scope, receive: Receive, fault: HttpError
    ) -> None:
        """Tell a fault; once an answer has begun there is no place for it, and it ends there."""
        if call.status is not None:
            return
        told = [(name.encode(), value.encode()) for name, value in headers_of(fault).items()]
        told.append((b"content-type", b"application/json"))
        is_sent = not any(name == b"expect" for name, _ in scope["headers"])  # else it was not told
        if fault.retry_after is not None and is_sent and not call.is_read:
            receive = _passed_over(call, receive)
        if not call.is_read:
            told.append(_CLOSE)  # what is left of the body is no request
        await _respond(call, fault.status, encode_fault(fault, scope), told, is_last=call.is_read)
        if not call.is_read:
            if is_sent:
                await self._drain(call, receive)
            await call.pass_on({"type": "http.response.body", "body": b""})

    async def _drain(self, call: HttpCall, receive: Receive) -> None:
        """Read what is left of a body, within bounds."""
        self._leave(call)
        left = MAX_DRAINED_BYTES
        idle = min(DRAIN_IDLE_SECONDS, self._config.body_idle_seconds)
        with suppress(TimeoutError):
            async with asyncio.timeout(self._config.body_seconds):
                while left > 0:
                    async with asyncio.timeout(idle):
                        message = await receive()
                    if message["type"] == "http.disconnect" or not message.get("more_body"):
                        return
                    left -= len(message.get("body", b""))

    def _note(self, scope: Scope, call: HttpCall) -> None:
        seconds = perf_counter() - call.began
        route = getattr(scope.get("route"), "path", "none")
        self._metrics.count_answered(route, status=call.status or 0, seconds=seconds)
        log.event(
            "request",
            request_id=call.request_id,
            method=scope["method"],
            route=route,
            status=call.status,
            owner=call.owner.name,
            seconds=round(seconds, 4),
            **call.counts,
        )


def call_of(scope: Scope) -> HttpCall:
    """The call that a request belongs to."""
    return scope["state"]["call"]


_CLOSE = (b"connection", b"close")


async def _respond(
    call: HttpCall, status: int, body: bytes, headers: Headers, *, is_last: bool = True
) -> None:
    length = [(b"content-length", str(len(body)).encode())] if status != 204 else []
    start = {"type": "http.response.start", "status": status, "headers": [*headers, *length]}
    await call.pass_on(start)
    await call.pass_on({"type": "http.response.body", "body": body, "more_body": not is_last})


def _preflight_headers(headers: Headers) -> Headers:
    """A page that is allowed may send whatever it asks for: clients have headers of their own."""
    asked = dict(headers).get(b"access-control-request-headers", b"")
    allowed: Headers = [
        (b"access-control-allow-methods", b"GET, HEAD, POST"),
        (b"access-control-max-age", b"600"),
    ]
    if _ASKED_HEADERS.fullmatch(asked):
        allowed.append((b"access-control-allow-headers", asked))
    if dict(headers).get(b"access-control-request-private-network") == b"true":
        allowed.append((b"access-control-allow-private-network", b"true"))
    return allowed


def _check_sizes(scope: Scope) -> None:
    headers: Headers = scope["headers"]
    num_bytes = sum(len(name) + len(value) + 4 for name, value in headers)
    num_bytes += len(scope.get("raw_path") or b"") + len(scope["query_string"])
    if len(headers) > MAX_HEADERS or num_bytes > MAX_HEADER_BYTES:
        raise HttpError(
            status=431,
            message=f"the request has {len(headers)} headers of {num_bytes} bytes in all; at most "
            f"{MAX_HEADERS} of {MAX_HEADER_BYTES} bytes are allowed.",
            code="headers_too_large",
        )


def _check_key(owner: Owner | None) -> None:
    if owner is None:
        raise HttpError(
            status=401,
            message="the API key is missing or wrong; send Authorization: Bearer KEY.",
            code="invalid_api_key",
            headers=(("www-authenticate", "Bearer"),),
        )


def _check_form(method: str, headers: Headers) -> None:
    """Only JSON, in the clear: what a page may send without asking is refused by that as well."""
    if method != "POST":
        return
    kind = (_only(headers, b"content-type") or "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise HttpError(
            status=400,
            message=f"Content-Type is {quote(kind)}; it must be application/json.",
            code="unsupported_content_type",
        )
    packed = _only(headers, b"content-encoding")
    if packed not in (None, "identity"):
        raise HttpError(
            status=400,
            message=f"Content-Encoding is {quote(packed)}; send the body as it is.",
            code="unsupported_content_encoding",
        )


def _too_large(most: int) -> HttpError:
    return HttpError(
        status=413,
        message=f"the body is larger than {most} bytes, the most that is allowed.",
        code="body_too_large",
    )


def _only(headers: Iterable[tuple[bytes, bytes]], wanted: bytes) -> str | None:
    """The value of a header that may stand once. Raises: HttpError when it stands twice."""
    values = [value for name, value in headers if name == wanted]
    if len(values) > 1:
        raise HttpError(status=400, message=f"{wanted.decode()} stands twice in the headers.")
    return values[0].decode("latin-1") if values else None


def _unslashed(path: str) -> str:
    """A path without slashes that join nothing."""
    return "".join(f"/{part}" for part in path.split("/") if part)


def _trace_parent(headers: Headers) -> str | None:
    """The span of whoever asks. One that stands twice counts as none, as W3C has it."""
    values = [value for name, value in headers if name == b"traceparent"]
    return values[0].decode("latin-1") if len(values) == 1 else None


def _without_port(host: str) -> str:
    """The name in a Host header, in lower case."""
    name, colon, port = host.rpartition(":")
    has_port = bool(colon) and is_port(port) and (":" not in name or name.endswith("]"))
    return (name if has_port else host).lower()


def _passed_over(call: HttpCall, receive: Receive) -> Receive:
    """Pass over a body that has come with its head. What is returned gives what comes after it.

    To wait for the end of one takes clocks, and costs the connection. Who is refused for want of
    room comes again, best on the same one: a new one costs more than all else of a refusal.
    """
    step, is_there, got = begin(receive())
    if is_there:
        call.is_read = got["type"] == "http.request" and not got.get("more_body", False)
        return receive
    begun = iter((go_on(step, got),))

    async def gone_on() -> AsgiMessage:
        first = next(begun, None)
        return await (receive() if first is None else first)

    return gone_on


def _replayed(body: bytes, receive: Receive) -> Receive:
    """A receive that gives the body at once, then what comes after it."""
    messages = iter(({"type": "http.request", "body": body, "more_body": False},))

    async def replay() -> AsgiMessage:
        return next(messages, None) or await receive()

    return replay
