"""What a fleet's front costs beside its engine alone: first tokens, rate, idle streams, a flood.

    python bench/fleet_cost.py [--model smollm2] [--requests 200] [--streams 8] [--rounds 7]
    python bench/fleet_cost.py --calls     # the host's work, on any machine

One engine's process is asked directly and through a fleet of this one engine, in turn, so that both
have the same weights, cache and moment. HTTP is not in it: it is the same before either. Calls are
those of functions, of Python and of C, in this process, from a request to its first token, and to
its end: medians, and they hang on no other work.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from types import FrameType

from cutaway.core.errors import CutawayError
from cutaway.core.request import Request, SamplingParams
from cutaway.fleet.fleet import Fleet
from cutaway.fleet.fleet_config import FleetConfig
from cutaway.service.bounds import FleetShare, TrafficConfig
from cutaway.service.process import ProcessService
from cutaway.service.service import Service

CACHE_TOKENS = 16384
IDLE_STREAMS = 1000
IDLE_SECONDS = 5.0
FLOOD = 400
MANY = TrafficConfig(max_waiting=4000)
NUMBERS = count()


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--model", default="smollm2")
    options.add_argument("--requests", type=int, default=200)
    options.add_argument("--streams", type=int, default=8)
    options.add_argument("--tokens", type=int, default=128)
    options.add_argument("--rounds", type=int, default=7)
    options.add_argument("--calls", action="store_true", help="count functions called, no seconds")
    asyncio.run(measure(options.parse_args()))


async def measure(args: argparse.Namespace) -> None:
    """All of it, one after the other."""
    made: list[ProcessService] = []

    def make(
        name: str, changed: Callable[[], None], secret: bytes, replicas: int
    ) -> ProcessService:
        del name, replicas
        made.append(
            ProcessService(
                args.model,
                traffic=MANY,
                share=FleetShare(page_secret=secret),
                changed=changed,
                cache_tokens=CACHE_TOKENS,
            )
        )
        return made[-1]

    fleet = Fleet(make, FleetConfig(), traffic=MANY)
    await fleet.start()
    try:
        ways: dict[str, Service] = {"alone": made[0], "fleet": fleet}
        for service in ways.values():
            await read(service, asked(64, args.tokens))
        if args.calls:
            await count_calls(ways, args.requests)
            return
        await first_tokens(ways, args.requests)
        await rates(ways, args.streams, args.tokens, args.rounds)
        await idle(fleet)
        await flood(ways)
    finally:
        await fleet.close()


def asked(length: int, max_tokens: int, *, owner: str = "") -> Request:
    """A request that nobody has made before."""
    number = next(NUMBERS)
    begin = (number % 250, number // 250 % 250)
    prompt = (*begin, *((7919 * number + 31 * place) % 250 for place in range(2, length)))
    params = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True, seed=1)
    return Request(request_id=f"r{number}", prompt_token_ids=prompt, params=params, owner=owner)


async def read(service: Service, request: Request) -> tuple[float, int]:
    """Seconds to the first token, and how many came."""
    began, first, tokens = time.perf_counter(), 0.0, 0
    async for delta in service.follow(request):
        if delta.token_ids and not first:
            first = time.perf_counter() - began
        tokens += len(delta.token_ids)
    return first, tokens


async def first_tokens(ways: dict[str, Service], requests: int) -> None:
    """Of one short request after another, asked in turn."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(requests):
        for name, service in ways.items():
            seconds[name].append((await read(service, asked(16, 2)))[0])
    print(f"first token of {requests} requests of 16 tokens, ms")
    print("           p50      p99")
    told = {name: (middle(each), last(each)) for name, each in seconds.items()}
    for name, (p50, p99) in told.items():
        print(f"{name:8} {1e3 * p50:6.3f}   {1e3 * p99:6.3f}")
    more = [1e3 * (b - a) for a, b in zip(told["alone"], told["fleet"], strict=True)]
    print(f"more     {more[0]:6.3f}   {more[1]:6.3f}   (bar: 1 and 3)")


async def count_calls(ways: dict[str, Service], requests: int) -> None:
    """Functions called until a first token, and until the end, of short and of long prompts."""
    for length in (16, 1024):
        for name, service in ways.items():
            found = [await calls_of(service, asked(length, 16)) for _ in range(requests)]
            first, whole = (statistics.median(each) for each in zip(*found, strict=True))
            print(
                f"{length:5} tokens, {name:6} {first:6.0f} calls to the first, {whole:6.0f} in all"
            )


async def calls_of(service: Service, request: Request) -> tuple[int, int]:
    """Functions called until the first token, and until the end."""
    calls, first = 0, 0

    def note(frame: FrameType, event: str, what: object) -> None:
        del frame, what
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        async for delta in service.follow(request):
            if delta.token_ids and not first:
                first = calls
    finally:
        sys.setprofile(None)
    return first, calls


async def rates(ways: dict[str, Service], streams: int, tokens: int, rounds: int) -> None:
    """Tokens a second of several streams at once, in paired rounds."""
    found: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, service in ways.items():
            began = time.perf_counter()
            read_all = (read(service, asked(16, tokens)) for _ in range(streams))
            total = sum(each for _, each in await asyncio.gather(*read_all))
            found[name].append(total / (time.perf_counter() - began))
    ratios = [b / a for a, b in zip(found["alone"], found["fleet"], strict=True)]
    each = {name: f"{statistics.median(rate):.1f}" for name, rate in found.items()}
    print(f"{streams} streams of {tokens} tokens, {rounds} paired rounds, tokens/s: {each}")
    print(
        f"fleet / alone {statistics.median(ratios):.3f} "
        f"({min(ratios):.3f} to {max(ratios):.3f}; bar: 0.97)"
    )


async def idle(fleet: Fleet) -> None:
    """What streams cost this process of which nothing is told."""
    streams = [fleet.follow(asked(16, 2000)) for _ in range(IDLE_STREAMS)]
    waiting = [asyncio.ensure_future(anext(each)) for each in streams]
    await asyncio.sleep(1.0)
    running = [each for each in waiting if each.done()]
    before, began = time.process_time(), time.perf_counter()
    await asyncio.sleep(IDLE_SECONDS)
    share = (time.process_time() - before) / (time.perf_counter() - began)
    print(
        f"{len(waiting) - len(running)} streams that wait, {len(running)} that nobody reads: "
        f"{100 * share:.1f} % of a core (bar: 5)"
    )
    for each in waiting:
        each.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    for each in streams:
        with suppress(CutawayError):
            await each.aclose()


async def flood(ways: dict[str, Service]) -> None:
    """First tokens of one owner beside a flood of another's, and alone."""
    print(f"first token of one owner's requests, ms: alone, and while another has {FLOOD} open")
    for name, service in ways.items():
        alone = [(await read(service, asked(64, 8, owner="bob")))[0] for _ in range(20)]
        crowd = [
            asyncio.ensure_future(read(service, asked(64, 64, owner="alice"))) for _ in range(FLOOD)
        ]
        await asyncio.sleep(1.0)
        beside = [(await read(service, asked(64, 8, owner="bob")))[0] for _ in range(20)]
        left = sum(not each.done() for each in crowd)
        for each in crowd:
            each.cancel()
        await asyncio.gather(*crowd, return_exceptions=True)
        print(
            f"{name:8} alone {1e3 * middle(alone):7.2f}, beside {1e3 * middle(beside):7.2f}, "
            f"{middle(beside) / middle(alone):.2f} times; {left} of the flood were left"
        )


def middle(seconds: list[float]) -> float:
    """The median."""
    return statistics.median(seconds)


def last(seconds: list[float]) -> float:
    """What 99 of 100 stay below."""
    return sorted(seconds)[int(0.99 * (len(seconds) - 1))]


if __name__ == "__main__":
    main()
