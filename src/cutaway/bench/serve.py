"""Load on a running server: Poisson arrivals, first tokens, gaps, goodput at a stated promise.

It speaks plain HTTP over sockets of its own, so that the client costs little beside the server. It
knows nothing of the engine: what it measures is what a client would. Another engine's server that
speaks OpenAI's completions is measured by the same client, once it is told what it serves.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from time import perf_counter
from types import MappingProxyType
from typing import Any

import msgspec

from cutaway.bench.server import cpu_seconds
from cutaway.core.errors import ConfigError
from cutaway.host.ports import split_url

REQUEST_SECONDS = 600
_READ_BYTES = 1 << 16
_PERCENTILES = (50, 90, 99)


@dataclass(frozen=True, kw_only=True)
class ServeLoad:
    """What is asked of a server, and what it is to promise.

    rate:          requests per second on average; gaps are exponential, so arrivals are Poisson.
    promise_first: milliseconds to the first token that count as kept.
    promise_token: milliseconds per further token, on average over an answer, that count as kept.
    """

    rate: float = 1
    requests: int = 60
    prompt_tokens: int = 128
    answer_tokens: int = 64
    seed: int = 0
    promise_first: float = 1000
    promise_token: float = 100

    def __post_init__(self) -> None:
        for name in ("rate", "requests", "prompt_tokens", "answer_tokens"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be above 0.")


@dataclass
class ClientRecord:
    """What a client heard of one request. Seconds from its sending."""

    status: int = 0
    events: list[float] = field(default_factory=list[float])  # when text came
    num_tokens: int = 0
    is_whole: bool = False
    late: float = 0  # how long after its time the client sent it: a client too slow shows here

    @property
    def per_token(self) -> float:
        """Seconds per token after the first."""
        return (self.events[-1] - self.events[0]) / max(1, self.num_tokens - 1)


@dataclass(frozen=True)
class ServeReport:
    """Numbers of one run. Times are milliseconds: mean and percentiles by name."""

    requests: int
    completed: int
    refused: int  # 429 and 503
    failed: int
    seconds: float
    requests_per_second: float
    tokens_per_second: float
    goodput: float  # requests per second that kept both promises
    kept: float  # their share of all that were sent
    first_token: dict[str, float]
    between_events: dict[str, float]
    per_token: dict[str, float]
    whole: dict[str, float]
    client_late: dict[str, float]
    shares: dict[str, float]  # of one core, by process, where the server is this one's own

    def as_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


def run(
    url: str,
    load: ServeLoad,
    *,
    key: str = "",
    pids: Mapping[str, int] = MappingProxyType({}),
    model: tuple[str, int] | None = None,
) -> ServeReport:
    """Put the load on the server at a URL such as http://127.0.0.1:8000.

    pids:  processes whose share of a core is told.
    model: name and size of vocabulary, where another engine's server does not tell them.
    Raises: ConfigError when no server answers there.
    """
    parts = split_url(url, "url", schemes=("http",), example="http://127.0.0.1:8000")
    assert parts.hostname is not None, "what was split has a host"
    server = _ServerClient(parts.hostname, parts.port or 80, key)
    return asyncio.run(_run(server, load, pids, model))


def report_of(
    heard: Sequence[ClientRecord],
    seconds: float,
    load: ServeLoad,
    *,
    shares: Mapping[str, float] = MappingProxyType({}),
) -> ServeReport:
    """The numbers of a run."""
    whole = [each for each in heard if each.is_whole and each.events]
    kept = [each for each in whole if _keeps(each, load)]
    gaps = [b - a for each in whole for a, b in zip(each.events, each.events[1:], strict=False)]
    refused = sum(each.status in (429, 503) for each in heard)
    return ServeReport(
        requests=len(heard),
        completed=len(whole),
        refused=refused,
        failed=len(heard) - len(whole) - refused,
        seconds=seconds,
        requests_per_second=len(whole) / seconds,
        tokens_per_second=sum(each.num_tokens for each in whole) / seconds,
        goodput=len(kept) / seconds,
        kept=len(kept) / len(heard),
        first_token=_spread([each.events[0] for each in whole]),
        between_events=_spread(gaps),
        per_token=_spread([each.per_token for each in whole if each.num_tokens > 1]),
        whole=_spread([each.events[-1] for each in whole]),
        client_late=_spread([each.late for each in heard]),
        shares=dict(shares),
    )


def _keeps(heard: ClientRecord, load: ServeLoad) -> bool:
    is_prompt = heard.events[0] * 1000 <= load.promise_first
    return is_prompt and heard.per_token * 1000 <= load.promise_token


def _spread(seconds: Sequence[float]) -> dict[str, float]:
    """Mean and percentiles in milliseconds; empty where nothing was measured."""
    if not seconds:
        return {}
    ordered = sorted(seconds)
    # The nearest rank: a percentile is a time that was measured, never one between two.
    ranks = {f"p{p}": ordered[-(-p * len(ordered) // 100) - 1] for p in _PERCENTILES}
    spread = {"mean": sum(ordered) / len(ordered), **ranks}
    return {name: 1000 * value for name, value in spread.items()}


async def _run(
    server: _ServerClient,
    load: ServeLoad,
    pids: Mapping[str, int],
    named: tuple[str, int] | None,
) -> ServeReport:
    model, vocab_size = named or await server.model()
    wanted = _bodies(load, model, vocab_size, has_usage=named is not None)
    before = _used(pids)
    began = perf_counter()
    tasks: list[asyncio.Task[ClientRecord]] = []
    for body, seconds in wanted:
        due = began + seconds
        await asyncio.sleep(max(0.0, due - perf_counter()))
        tasks.append(asyncio.create_task(_ask(server, body, due)))
    heard = await asyncio.gather(*tasks)
    seconds, after = perf_counter() - began, _used(pids)
    # An engine that was started again is another process, and is left out.
    shares = {name: (after[name] - before[name]) / seconds for name in before if name in after}
    return report_of(heard, seconds, load, shares=shares)


def _bodies(
    load: ServeLoad, model: str, vocab_size: int, *, has_usage: bool
) -> list[tuple[bytes, float]]:
    """What is sent, and after how many seconds: made before the clock runs, which is the server's.

    has_usage: where no timings come with an answer, its usage is asked for.
    """
    draw, due = random.Random(load.seed), 0.0
    bodies: list[tuple[bytes, float]] = []
    for _ in range(load.requests):
        # No two prompts share a beginning, so that no prefix is found in the cache.
        prompt = [draw.randrange(vocab_size) for _ in range(load.prompt_tokens)]
        fields = {"max_tokens": load.answer_tokens, "ignore_eos": True, "stream": True}
        body: dict[str, Any] = {"model": model, "prompt": prompt, "temperature": 0, **fields}
        if has_usage:
            body["stream_options"] = {"include_usage": True}
        bodies.append((json.dumps(body).encode(), due))
        due += draw.expovariate(load.rate)
    return bodies


def _used(pids: Mapping[str, int]) -> dict[str, float]:
    """Seconds of a core that each process has used so far."""
    used = {name: cpu_seconds(pid) for name, pid in pids.items()}
    return {name: seconds for name, seconds in used.items() if seconds is not None}


async def _ask(server: _ServerClient, body: bytes, due: float) -> ClientRecord:
    """One request. Time runs from when it was due: a client that lags hides no waiting."""
    heard = ClientRecord(late=max(0.0, perf_counter() - due))
    try:
        async with asyncio.timeout(REQUEST_SECONDS):
            async for data in server.stream("/v1/completions", body, heard):
                if data == "[DONE]":
                    heard.is_whole = True
                    continue
                event = _EVENTS.decode(data)
                if any(choice.text for choice in event.choices):
                    heard.events.append(perf_counter() - due)
                usage = event.usage or _UsageHeard()
                told = event.timings.predicted_n or usage.completion_tokens
                heard.num_tokens = told or heard.num_tokens
    except (OSError, EOFError, TimeoutError, ValueError, msgspec.MsgspecError):
        heard.is_whole = False
    return heard


class _ChoiceHeard(msgspec.Struct):
    text: str | None = None


class _TimingsHeard(msgspec.Struct, frozen=True):
    predicted_n: int = 0


class _UsageHeard(msgspec.Struct, frozen=True):
    completion_tokens: int = 0


class _EventHeard(msgspec.Struct):
    """What is read of an event."""

    choices: tuple[_ChoiceHeard, ...] = ()
    timings: _TimingsHeard = _TimingsHeard()
    usage: _UsageHeard | None = None


_EVENTS = msgspec.json.Decoder(_EventHeard)


class _ServerClient:
    """A server at an address, asked by HTTP/1.1, one connection per request."""

    def __init__(self, host: str, port: int, key: str) -> None:
        self._host, self._port, self._key = host, port, key

    async def model(self) -> tuple[str, int]:
        """Name and size of vocabulary. Raises: ConfigError when nobody answers so."""
        heard = ClientRecord()
        try:
            data = [part async for part in self._exchange("GET", "/tokenizer_info", b"", heard)]
            info = json.loads(b"".join(data))
            return info["model"], info["vocab_size"]
        except (OSError, EOFError, ValueError, KeyError) as error:
            raise ConfigError(
                f"no server of Cutaway answers at {self._host}:{self._port} (status "
                f"{heard.status or 'none'}, {type(error).__name__}). Start one with cutaway serve; "
                "where it asks for a key, set CUTAWAY_API_KEY."
            ) from None

    async def stream(self, path: str, body: bytes, heard: ClientRecord) -> AsyncGenerator[str]:
        """The data of each event of an answer."""
        rest = b""
        async for part in self._exchange("POST", path, body, heard):
            *events, rest = (rest + part).split(b"\n\n")
            for event in events:
                if event.startswith(b"data: "):
                    yield event[6:].decode()

    async def _exchange(
        self, method: str, path: str, body: bytes, heard: ClientRecord
    ) -> AsyncGenerator[bytes]:
        """The body of an answer, in parts as they come."""
        reader, writer = await asyncio.open_connection(self._host, self._port, limit=1 << 22)
        try:
            key = f"Authorization: Bearer {self._key}\r\n" if self._key else ""
            writer.write(
                f"{method} {path} HTTP/1.1\r\nHost: {self._host}:{self._port}\r\n{key}"
                f"Connection: close\r\nContent-Type: application/json\r\n"
                f"Content-Length: {len(body)}\r\n\r\n".encode()
                + body
            )
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
            heard.status = int(head.split(" ", 2)[1])
            if "transfer-encoding: chunked" not in head:
                yield await reader.read(-1)
                return
            rest = bytearray()
            while True:
                if not (come := await reader.read(_READ_BYTES)):
                    raise EOFError
                rest += come
                parts, is_last = _whole_chunks(rest)
                if parts:
                    yield parts
                if is_last:
                    return
        finally:
            writer.close()


def _whole_chunks(come: bytearray) -> tuple[bytes, bool]:
    """What whole chunks hold, taken away from what has come; and whether the last was there."""
    parts: list[bytes] = []
    start = 0
    while (line := come.find(b"\r\n", start)) >= 0:
        size = int(come[start:line], 16)
        if not size:
            return b"".join(parts), True
        past = line + 2 + size
        if len(come) < past + 2:
            break
        parts.append(bytes(come[line + 2 : past]))
        start = past + 2
    del come[:start]
    return b"".join(parts), False


def rows_of(report: ServeReport) -> list[tuple[str, ...]]:
    """A table of the times: name, mean and percentiles in milliseconds."""
    names = {
        "first token": report.first_token,
        "between events": report.between_events,
        "per token": report.per_token,
        "whole answer": report.whole,
        "sent late by": report.client_late,
    }
    columns = ("mean", *(f"p{p}" for p in _PERCENTILES))
    return [
        (name, *(f"{spread[c]:,.1f}" for c in columns)) for name, spread in names.items() if spread
    ]
