"""Faults planted at the k-th call of every place of the engine, beside answers, looks and counts.

The server's side and the engine's side run as they serve, over their socket, but as threads of one
process, so that any function can be made to raise. Each run is the same workload with one fault.
Only the thing whose work raised may end; every other answer has the tokens of an undisturbed run,
pages come back, nothing is left waiting, and the next request is answered.

    python bench/faults.py                      # 2,000 faults, a seed of its own
    python bench/faults.py --faults 300 --seed 5 --place Running.take
    python bench/faults.py --memory             # every page and every tensor of a fixed workload
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib
import io
import json
import os
import random
import socket
import tempfile
import threading
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from cutaway.core.errors import CutawayError
from cutaway.core.grammar import Grammar
from cutaway.core.looks import ComparisonRequest, EventRequest, ViewRequest
from cutaway.core.request import Request, SamplingParams
from cutaway.engine.build import build_engine
from cutaway.engine.config import EngineConfig
from cutaway.engine.engine import Engine
from cutaway.engine.recorder import Recorder
from cutaway.service import child, spawn
from cutaway.service.process import ProcessService
from cutaway.trace.ledger import Ledger

SECRET = "planted: what a user wrote"
KINDS: tuple[type[Exception], ...] = (RuntimeError, MemoryError)
RECORDING = ("Recorder.", "Ledger.")
# Module, and a function or a class's method in it.
PLACES = tuple(
    (f"cutaway.{module}", name)
    for module, names in {
        "engine.engine": "Engine.add Engine.step Engine._settle Engine._tell Engine._close "
        "Engine._compute Engine.abort Engine._draft Engine._end_the_late "
        "Engine._take_compiled Engine._schedule accept build_batch draw score_prompts",
        "engine.recorder": "Recorder.open_answer Recorder.note_plan Recorder.add_tokens "
        "Recorder.end_step Recorder.close_answer Recorder.number_of",
        "trace.ledger": "Ledger.open Ledger.add_token Ledger.add_step Ledger.close Ledger.step",
        "stream.text": "TextStream.advance TextStream.finish",
        "stream.detokenize": "Detokenizer.push",
        "engine.running": "Running.rows Running.take Running.delta Running._usage",
        "engine.runner": "Runner.run",
        "sampling.sampler": "Sampler.sample",
        "sampling.grammars.grammar_state": "GrammarState.masks GrammarState.completes "
        "GrammarState.longest_allowed",
        "engine.scheduler": "Scheduler.schedule Scheduler.complete Scheduler.finish Scheduler.add",
        "engine.admission.waiting": "WaitingQueue.first WaitingQueue.pop WaitingQueue.add",
        "engine.admission.prerequisites": "AdmissionQueue.open AdmissionQueue.add "
        "AdmissionQueue.release AdmissionQueue.discard AdmissionQueue.take_compiled",
        "cache.paged": "PagedCache.admit PagedCache.reserve PagedCache.commit "
        "PagedCache.truncate PagedCache.release",
        "cache.allocator": "PageAllocator.take",
        "service.child": "Child._do Child._say Child._tell Child._pass_on "
        "decode_command encode_frame",
        "service.outbox": "Outbox.put",
        "service.engine_loop": "take_in",
        "service.card": "stats_of",
        "service.snapshot": "snapshot_of",
        "service.feeds": "Feeds.open Feeds.more Feeds.leave Feeds.step",
        "service.view_queue": "ViewQueue.add ViewQueue.compare ViewQueue.leave ViewQueue.step "
        "frame_view view_of",
        "compare.trials": "Trials.open Trials.leave Trials.step",
        "service.answer_events": "Teller.events_of",
        "service.process": "ProcessService._hear",
        "service.spawn": "decode_report",
    }.items()
    for name in names.split()
)


@dataclass
class Planter:
    """Makes the k-th call of a place raise while it is armed, and counts the calls of all."""

    place: str = ""
    k: int = 0
    kind: type[Exception] = RuntimeError
    is_armed: bool = False
    has_fired: bool = False
    calls: Counter[str] = field(default_factory=Counter[str])

    def arm(self, place: str = "", k: int = 0, kind: type[Exception] = RuntimeError) -> None:
        self.place, self.k, self.kind, self.has_fired = place, k, kind, False
        self.calls.clear()
        self.is_armed = True

    def around(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def planted(*arguments: Any, **named: Any) -> Any:
            if self.is_armed:
                self.calls[name] += 1
                if name == self.place and self.calls[name] == self.k:
                    self.has_fired = True
                    raise self.kind(SECRET)
            return function(*arguments, **named)

        return planted

    @contextlib.contextmanager
    def everywhere(self) -> Iterator[None]:
        """Around all places."""
        with contextlib.ExitStack() as stack:
            for module, name in PLACES:
                owner: Any = importlib.import_module(module)
                *within, last = name.split(".")
                for part in within:
                    owner = getattr(owner, part)
                around = self.around(name, getattr(owner, last))
                stack.enter_context(mock.patch.object(owner, last, around))
            yield


class Nothing:
    """Of no use: the engine's lines go to this process's stderr."""

    def close(self) -> None: ...


class InThread:
    """The engine's side in a thread, as a process that asyncio started."""

    pid = 2**30  # nobody has it

    def __init__(self, link: socket.socket) -> None:
        self.returncode: int | None = None
        self.child = child.Child(link, Nothing())  # pyright: ignore
        self._link = link
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.child.run()
        except BaseException as fault:
            child.note("the engine's side ended.", fault)
        self.returncode = 1
        with contextlib.suppress(OSError):
            self._link.shutdown(socket.SHUT_RDWR)

    async def wait(self) -> None:
        """Until it has ended."""
        self.child._commands.put(None)
        await asyncio.to_thread(self._thread.join)
        self._link.close()


def config(folder: Path, **changes: Any) -> str:
    """The name of a tiny model with random weights."""
    sizes = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": 300,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "rope_theta": 10000.0,
        "eos_token_id": 256,
        **changes,
    }
    (folder / "config.json").write_text(json.dumps(sizes), encoding="utf-8")
    return f"random:{folder / 'config.json'}"


def requests(run: int) -> list[Request]:
    """The answers of a run, each of another kind."""
    plain: dict[str, Any] = {"temperature": 0.0, "max_tokens": 8, "ignore_eos": True}
    drawn = {**plain, "temperature": 0.9, "seed": 3}
    digits = Grammar.regex("[0-9]{3,6}")
    kinds: dict[str, tuple[range, dict[str, Any]]] = {
        "plain": (range(20, 44), plain),
        "long": (range(60, 120), plain),
        "choices": (range(7, 27), {**drawn, "n": 2, "logprobs": 2}),
        "scored": (range(30, 50), {**drawn, "prompt_logprobs": 1, "presence_penalty": 0.5}),
        "grammar": (range(9, 20), {**drawn, "grammar": digits}),
        "stopped": (range(5, 30), {**plain, "stop": ("zzzz",)}),
    }
    return [
        Request(
            request_id=f"{name}-{run}",
            prompt_token_ids=tuple(ids),
            params=SamplingParams(**params),
            owner=name,
        )
        for name, (ids, params) in kinds.items()
    ]


@dataclass
class Ran:
    """What came of a run: tokens of each answer's choices, and what failed with which words."""

    tokens: dict[str, dict[int, list[int]]] = field(default_factory=dict[str, Any])
    failed: dict[str, str] = field(default_factory=dict[str, str])


class Trial:
    """One engine behind its service, and the workload over it."""

    def __init__(self, service: ProcessService, engine_side: InThread) -> None:
        self.service, self.side = service, engine_side
        assert engine_side.child._engine is not None
        self.engine: Engine = engine_side.child._engine
        self.planter = Planter()
        self.number = 0

    async def run(self, place: str = "", k: int = 0, kind: type[Exception] = RuntimeError) -> Ran:
        """The workload once, with a fault. Raises: AssertionError for what the fault left."""
        self._record_again()
        self.number += 1
        ran = Ran()
        base = f"base-{self.number}"
        ids, params = tuple(range(40, 60)), SamplingParams(temperature=0.0, max_tokens=4)
        await self._answer(ran, Request(request_id=base, prompt_token_ids=ids, params=params))
        self.planter.arm(place, k, kind)
        try:
            async with asyncio.timeout(60):
                await asyncio.gather(*self._things(ran, base))
        finally:
            self.planter.is_armed = False
        await self._check_left()
        return ran

    def _things(self, ran: Ran, base: str) -> Iterator[Any]:
        for request in requests(self.number):
            yield self._answer(ran, request)
        left = Request(
            request_id=f"left-{self.number}",
            prompt_token_ids=tuple(range(80, 100)),
            params=SamplingParams(temperature=0.0, max_tokens=200, ignore_eos=True),
        )
        yield self._leave(ran, left)
        of: dict[str, Any] = {"request_id": base, "choice": 0, "owner": ""}
        most: dict[str, Any] = {"max_bytes": 2**28, "max_flops": 10**12}
        asked = ViewRequest(**of, **most, view="residual", places={}, is_json=False, is_cost=False)
        tried = ComparisonRequest(
            **of, **most, change="seed=1", num_runs=1, price=None, max_tokens=None
        )
        service = self.service
        yield self._look(ran, "view", service.view(asked))
        yield self._look(ran, "count", service.stats())
        yield self._look(ran, "snapshot", service.snapshot("plain"))
        yield self._look(ran, "compare", _all(service.compare(tried)))
        yield self._look(ran, "events", _all(service.listen(EventRequest(**of))))

    async def _answer(self, ran: Ran, request: Request) -> None:
        name = request.request_id.rpartition("-")[0]
        tokens = ran.tokens[name] = {choice: list[int]() for choice in range(request.params.n)}
        try:
            async for delta in self.service.follow(request):
                tokens[delta.choice] += delta.token_ids
                if delta.error is not None:
                    ran.failed[name] = str(delta.error)
        except CutawayError as error:
            ran.failed[name] = str(error)

    async def _leave(self, ran: Ran, request: Request) -> None:
        try:
            async with contextlib.aclosing(self.service.follow(request)) as deltas:
                async for delta in deltas:
                    if delta.error is not None:
                        raise delta.error
                    if delta.token_ids:
                        break
        except CutawayError as error:
            ran.failed["left"] = str(error)

    async def _look(self, ran: Ran, name: str, asked: Any) -> None:
        try:
            await asked
        except CutawayError as error:
            ran.failed[name] = str(error)

    def _record_again(self) -> None:
        """Recording that switched itself off stays off; here every run begins with it."""
        assert self.engine.ledger is not None
        ledger = self.engine.ledger = Ledger(2**20)
        ledger._first_step = self.engine.num_steps
        self.engine.recorder = Recorder(ledger, page_size=self.engine.config.page_size)

    async def _check_left(self) -> None:
        engine, service = self.engine, self.service
        ends = time.monotonic() + 60
        while engine.has_work or self.side.child._view_queue.has_work:  # pyright: ignore
            assert time.monotonic() < ends, "something works on for nobody"
            await asyncio.sleep(0.001)
        assert service.state == "ready" and self.side.returncode is None, "the engine ended"
        stats = await service.stats()
        assert (stats.running, stats.waiting, stats.pages_used) == (0, 0, 0), f"held: {stats}"
        assert stats.restarts == 0
        calls = service._calls  # pyright: ignore
        waiting = (calls.open, calls.feeds, calls._looks, calls._counts, calls._adapted)  # pyright: ignore
        assert not any(waiting), f"somebody waits: {waiting}"
        assert not engine._answers and not engine._suspects, "answers are left"
        assert not self.side.child._feeds.num_open, "listeners are left"  # pyright: ignore


async def _all(batches: AsyncGenerator[Any]) -> list[Any]:
    return [batch async for batch in batches]


def judge(ran: Ran, golden: Ran, place: str, said: str) -> None:
    """Raises: AssertionError where more than one thing ended, or another has other tokens."""
    looks = {"view", "compare", "events"}
    may_fail = looks if place.startswith(RECORDING) else set[str]()
    ended = {name for name in ran.failed if name not in may_fail}
    assert len(ended) <= 1, f"{ended} ended: {ran.failed}"
    for name, tokens in golden.tokens.items():
        if name not in ended:
            assert ran.tokens[name] == tokens, f"{name} has {ran.tokens[name]}, not {tokens}"
    assert SECRET not in said, "stderr has the message"
    assert not any(SECRET in words for words in ran.failed.values()), "an error has the message"


@contextlib.asynccontextmanager
async def trial(folder: Path) -> AsyncGenerator[Trial]:
    """A service whose engine's side is a thread."""
    sides: list[InThread] = []

    async def start(link: socket.socket, _: object) -> InThread:
        sides.append(InThread(socket.socket(fileno=os.dup(link.fileno()))))
        return sides[-1]

    with (
        mock.patch.object(spawn, "_spawn", start),
        mock.patch.object(spawn.EngineProcess, "_signal", lambda *_: None),
        mock.patch.object(child, "_end", lambda *_: None),  # the thread ends by itself
    ):
        service = ProcessService(
            config(folder), cache_tokens=1024, page_size=8, prefill_chunk=16, draft="ngram"
        )
        await service.start()
        try:
            yield Trial(service, sides[0])
        finally:
            await service.close()


async def plant(num_faults: int, seed: int, only: str = "") -> Counter[str]:
    """How many faults ended an answer, a look, or nothing, and at how many places."""
    totals: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        async with trial(Path(folder)) as one:
            golden = await one.run()
            assert not golden.failed, golden.failed
            with one.planter.everywhere():
                assert (await one.run()).tokens == golden.tokens
                calls = {name: one.planter.calls[name] for _, name in PLACES if only in name}
                rng = random.Random(seed)
                rounds = [(name, kind) for name in calls if calls[name] for kind in KINDS]
                totals["places"] = len(rounds) // len(KINDS)
                for number in range(num_faults):
                    name, kind = rounds[number % len(rounds)]
                    k = rng.randint(1, calls[name])
                    said = io.StringIO()
                    with contextlib.redirect_stderr(said):
                        try:
                            ran = await one.run(name, k, kind)
                            judge(ran, golden, name, said.getvalue())
                        except BaseException as error:
                            words = f"{name}, call {k}, {kind.__name__}: {error!r}"
                            raise AssertionError(f"{words}\n{said.getvalue()[-4000:]}") from error
                    totals["fired"] += one.planter.has_fired
                    totals["faults"] += 1
                    answers = set(ran.failed) & (set(golden.tokens) | {"left"})
                    totals["an answer" if answers else "a look" if ran.failed else "nothing"] += 1
    return totals


class _NthTensor(TorchDispatchMode):
    """Counts what torch makes, and lets memory run out at the k-th."""

    def __init__(self, k: int) -> None:
        super().__init__()
        self.k, self.count = k, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        if self.count == self.k:
            raise torch.OutOfMemoryError("planted: out of memory")
        return func(*args, **(kwargs or {}))


def memory(most: int | None = None) -> Counter[str]:
    """Let every page and every tensor of a fixed workload be the one that memory has no room for.

    most: of each kind, spread evenly; None takes all.
    """
    totals: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        settings = EngineConfig.of(
            {"dtype": "float64", "cache_tokens": 512, "page_size": 8, "prefill_chunk": 16}
        )
        engine = build_engine(config(Path(folder)), settings)
        golden, _ = _served(engine, 0, contextlib.nullcontext())
        planter = Planter()

        def tensors(k: int) -> tuple[dict[str, list[int]], set[str], int]:
            mode = _NthTensor(k)
            tokens, failed = _served(engine, k, mode)
            return tokens, failed, mode.count

        def pages(k: int) -> tuple[dict[str, list[int]], set[str], int]:
            planter.arm("PageAllocator.take", k, MemoryError)
            tokens, failed = _served(engine, k, contextlib.nullcontext())
            planter.is_armed = False
            return tokens, failed, planter.calls["PageAllocator.take"]

        with planter.everywhere(), contextlib.redirect_stderr(io.StringIO()):
            for what, run in (("tensors", tensors), ("pages", pages)):
                total = run(0)[2]
                step = 1 if most is None else max(1, total // most)
                for k in range(1, total + 1, step):
                    tokens, failed, _ = run(k)
                    assert len(failed) <= 1, f"{what} {k}: {failed} ended"
                    for name in golden.keys() - failed:
                        assert tokens[name] == golden[name], f"{what} {k}: {name} is another"
                    assert engine.cache_stats.used == 0, f"{what} {k}: pages are held"
                    totals[what] += 1
                    totals[f"{what}, an answer ended"] += len(failed)
    return totals


def _served(
    engine: Engine, run: int, around: contextlib.AbstractContextManager[Any]
) -> tuple[dict[str, list[int]], set[str]]:
    """Tokens of a fixed workload's answers, and which of them ended in an error."""
    tokens: dict[str, list[int]] = {}
    failed: set[str] = set()
    engine.ledger = Ledger(2**20)
    engine.ledger._first_step = engine.num_steps
    engine.recorder = Recorder(engine.ledger, page_size=engine.config.page_size)
    for name, ids, params in (
        ("greedy", range(20, 40), {"temperature": 0.0}),
        ("drawn", range(5, 25), {"temperature": 0.9, "seed": 1, "logprobs": 1}),
        ("late", range(50, 60), {"temperature": 0.7, "seed": 2}),
    ):
        tokens[name] = []
        params = SamplingParams(max_tokens=4, ignore_eos=True, **params)
        # A salt of its own: what another run has cached would leave fewer pages to be taken.
        asked = Request(
            request_id=name, prompt_token_ids=tuple(ids), params=params, cache_salt=str(run)
        )
        engine.add(asked)
    with around:
        while engine.has_work:
            for delta in engine.step():
                tokens[delta.request_id] += delta.token_ids
                if delta.error is not None:
                    failed.add(delta.request_id)
    return tokens, failed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--faults", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    parser.add_argument("--place", default="", help="only places that have this in their name")
    parser.add_argument("--memory", action="store_true", help="every page and every tensor")
    options = parser.parse_args()
    began = time.perf_counter()
    if options.memory:
        totals = memory()
    else:
        totals = asyncio.run(plant(options.faults, options.seed, options.place))
        print(f"seed {options.seed}")
    for what, count in totals.items():
        print(f"{what:28s} {count}")
    print(f"{time.perf_counter() - began:.0f} s; nobody else ended, all other tokens equal")


if __name__ == "__main__":
    main()
