"""What requests that come at once cost a server: processor time each, and how late they begin.

    python bench/burst.py [--trees . ../before] [--requests 256] [--prompt-tokens 256] [--rounds 5]
    python bench/burst.py --clock [--trees . ../before] [--answer-tokens 30]

Each tree's server has a tiny random model and is asked in turn with the others, by a client process
of its own: a first burst that is not counted, then the rounds. Told are medians of the rounds, for
each tree: milliseconds of processor time a request in the server's process and in the engine's,
answers of --answer-tokens included, and the first token's median and last.

--clock: in place of an engine each answer has a token every 7 ms as soon as it has come, as on a
GPU. Told is what passes from the first request that the engine has to the last, while the answers
that have begun are written: milliseconds, and those of the event loop's thread; and milliseconds of
processor time a request of the server's process, its answer and the clock included.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from gpu_shapes import COMMON, SHAPES

from cutaway.bench.serve import ServeLoad, run
from cutaway.bench.server import Started, cpu_seconds, start_server

TINY = {
    **{"hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 128, "vocab_size": 32_000},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16},
}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--trees", nargs="+", default=["."], help="checkouts to compare")
    options.add_argument("--requests", type=int, default=256)
    options.add_argument("--prompt-tokens", type=int, default=256)
    options.add_argument("--answer-tokens", type=int, default=2)
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--clock", action="store_true", help="a clock in place of an engine")
    options.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = options.parse_args()
    if args.child:
        asyncio.run(serve_clock(args))
        return
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        shape = SHAPES["qwen3-0.6b"] | COMMON | TINY
        (folder / "config.json").write_text(json.dumps(shape))
        model = f"random:{folder}/config.json"
        servers = {
            tree: stack.enter_context(
                clock_of(tree, args) if args.clock else server_of(tree, model)
            )
            for tree in args.trees
        }
        heard: dict[str, list[dict[str, float]]] = {tree: [] for tree in args.trees}
        for number in range(args.rounds + 1):
            for tree in args.trees[:: 1 if number % 2 else -1]:
                ask = clock_burst if args.clock else burst
                told = ask(servers[tree], args, number)
                heard[tree] += [told] * bool(number)  # the first makes what is made once
    for tree, rounds in heard.items():
        middles = {name: statistics.median(each[name] for each in rounds) for name in rounds[0]}
        print(json.dumps({"tree": tree} | {k: round(v, 3) for k, v in middles.items()}))


@contextlib.contextmanager
def of_tree(tree: str) -> Iterator[None]:
    """Programs that are started run another checkout's code."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = str(Path(tree).resolve() / "src")
    try:
        yield
    finally:
        os.environ.pop("PYTHONPATH")
        os.environ |= {} if before is None else {"PYTHONPATH": before}


@contextlib.contextmanager
def server_of(tree: str, model: str) -> Iterator[Started]:
    """A server of that code."""
    with of_tree(tree), start_server(("--model", model, "--no-prefix-cache")) as server:
        yield server


def load_of(args: argparse.Namespace, seed: int) -> ServeLoad:
    sizes = {"prompt_tokens": args.prompt_tokens, "answer_tokens": args.answer_tokens}
    return ServeLoad(rate=1e6, requests=args.requests, seed=seed, **sizes)


def burst(server: Started, args: argparse.Namespace, seed: int) -> dict[str, float]:
    """One round's numbers in milliseconds."""
    told = run(server.url, load_of(args, seed), pids=server.pids)
    assert told.completed == args.requests, "all are answered"
    each = {
        f"{name}_ms": share * told.seconds * 1e3 / args.requests
        for name, share in told.shares.items()
    }
    first = told.first_token
    return {**each, "first_median_ms": first["p50"], "first_last_ms": first["p99"]}


@contextlib.contextmanager
def clock_of(tree: str, args: argparse.Namespace) -> Iterator[subprocess.Popen[str]]:
    """A server of that code over a clock. Its first line is its address."""
    words = [sys.executable, __file__, "--child", "--requests", str(args.requests)]
    words += ["--answer-tokens", str(args.answer_tokens)]
    with of_tree(tree):
        server = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    try:
        yield server
    finally:
        server.terminate()
        server.wait()


_URLS: dict[int, str] = {}  # of servers over clocks, by process


def clock_burst(
    server: subprocess.Popen[str], args: argparse.Namespace, seed: int
) -> dict[str, float]:
    """One round's numbers, as the server tells them."""
    assert server.stdout is not None, "a pipe was asked for"
    url = _URLS.get(server.pid) or _URLS.setdefault(server.pid, server.stdout.readline().strip())
    before = cpu_seconds(server.pid) or 0.0
    told = run(url, load_of(args, seed), model=("clock", 320))
    assert told.completed == args.requests, "all are answered"
    each = {"server_ms": ((cpu_seconds(server.pid) or 0.0) - before) * 1e3 / args.requests}
    spans = json.loads(server.stdout.readline())
    return {**each, **spans, "first_last_ms": told.first_token["p99"]}


async def serve_clock(args: argparse.Namespace) -> None:
    """Serve from a clock until told to end."""
    from cutaway.server.entry.auth import Keys
    from cutaway.server.route_context import Context
    from cutaway.server.run import listening, serve, url_of
    from cutaway.server.server_config import ServerConfig

    service: Any = Clock(args.requests, args.answer_tokens)
    tokenizer: Any = SimpleNamespace(vocab_size=320)
    context = Context(
        service=service,
        config=ServerConfig(port=0),
        name="clock",
        tokenizer=tokenizer,
        template_source=None,
    )
    listener = listening(context.config)
    await serve(context, listener, keys=Keys(), ready=lambda: print(url_of(listener), flush=True))


class Clock:
    """A service with a token for each of its answers at every tick of 7 ms, sent as an engine's."""

    state, silent_seconds = "ready", 0.0
    model = SimpleNamespace(vocab_size=320, max_length=8192, adapters=())

    def __init__(self, num_requests: int, num_tokens: int) -> None:
        from cutaway.service.bounds import UNBOUNDED
        from cutaway.service.engine_calls import EngineCalls
        from cutaway.service.traffic import Traffic

        self._num_requests, self._num_tokens = num_requests, num_tokens
        self._calls = EngineCalls(lambda: self)
        self._traffic = Traffic(UNBOUNDED, max_sequences=2**20, cache_tokens=2**30)
        self._open: dict[str, int] = {}  # tokens that each has had
        self._came: list[tuple[float, float]] = []

    def refusal(self, owner: str, num_coming: int = 0) -> None:
        """Nobody is refused."""

    def follow(self, request: Any) -> AsyncGenerator[Any]:
        """News of an answer."""
        return self._calls.follow(request, (), lambda: self._traffic.enter(request))

    def say(self, command: Any) -> None:
        """Take what is said to an engine."""
        from cutaway.service.engine_messages import Add, encode_frame

        encode_frame(command)
        if isinstance(command, Add):
            self._open[command.request.request_id] = 0
            self._came.append((time.perf_counter(), time.thread_time()))

    async def start(self) -> None:
        """Let the clock tick."""
        self._ticking = asyncio.create_task(self._tick())

    async def close(self) -> None:
        """Stop the clock."""
        self._ticking.cancel()

    async def drain(self, seconds: float) -> None:
        """Nothing is waited for."""

    async def wait_until_gone(self) -> str:
        """Never."""
        return await asyncio.get_running_loop().create_future()

    async def _tick(self) -> None:
        from cutaway.service.engine_messages import News

        due = time.perf_counter()
        while True:
            due = max(due + 0.007, time.perf_counter() - 0.02)
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            deltas = [self._next(request_id) for request_id in tuple(self._open)]
            if deltas:
                self._calls.hear(News(deltas), None)
            if len(self._came) == self._num_requests and not self._open:
                first, *_, last = self._came
                names = ("to_last_ms", "to_last_loop_ms")
                spans = [round(1e3 * (b - a), 1) for a, b in zip(first, last, strict=True)]
                print(json.dumps(dict(zip(names, spans, strict=True))), flush=True)
                self._came = []

    def _next(self, request_id: str) -> Any:
        from cutaway.core.output import Delta, Timings, Usage

        self._open[request_id] += 1
        if self._open[request_id] < self._num_tokens:
            return Delta(request_id, 0, (5,), " ab")
        del self._open[request_id]
        usage, timings = Usage(1, self._num_tokens, 0), Timings(0, 0, 0, 0, 0)
        ends: dict[str, Any] = {"finish_reason": "length", "usage": usage, "timings": timings}
        return Delta(request_id, 0, (5,), " ab", **ends)


if __name__ == "__main__":
    main()
