"""A fleet without engines: the real router over simulated ones, to compare policies in minutes.

    python bench/simulate_fleet.py --requests 4000 --rates 1.7 2.1 2.55
    python bench/simulate_fleet.py --failures 20 --rates 1.7
    python bench/simulate_fleet.py --trace conversation_trace.jsonl --rates 0

Router, prefixes and turns are those of src/cutaway/fleet. A member is a step whose seconds are a
sum: 4.6 ms, 10 us a sequence, 31 ns a token of context, and 1/42,600 s a prompt token, as an 8B
model on an H200 was fitted; its cache is an exact LRU of its size. Load: sessions whose prompts
grow turn by turn, lengths and shares in the shape of the published conversation trace of Mooncake
(input mean 12,035, output mean 343, 37 % of blocks seen before). A trace in its form is read where
one is given; rate 0 takes the trace's own times.
"""

from __future__ import annotations

import argparse
import heapq
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter

from cutaway.fleet.owner_turns import Turns
from cutaway.fleet.prefixes import Prefixes
from cutaway.fleet.routing import (
    BALANCE,
    Binding,
    Cost,
    EngineLoad,
    EngineWanted,
    FleetRouter,
    predicted_seconds,
)

BLOCK = 512  # tokens a key, as in the published trace
STEP, PER_SEQUENCE, PER_CONTEXT, PROMPT_RATE = 4.6e-3, 10e-6, 31e-9, 42_600.0
STEP_TOKENS = 8192


@dataclass(eq=False)
class Job(EngineWanted):
    """One request. Units: seconds."""

    came: float = 0.0
    num_output: int = 1
    first: float = 0.0
    ended: float = 0.0
    produced: int = 0


@dataclass(eq=False)
class Machine:
    """One simulated engine: what it computes, and what is in its cache."""

    load: EngineLoad
    cache: Prefixes
    prefills: list[tuple[Job, Binding, int]] = field(default_factory=list)
    decodes: list[tuple[int, int, Job, Binding]] = field(default_factory=list)  # by last step
    step: int = 0
    context: int = 0
    is_stepping: bool = False
    start: int = 0  # it has been started anew so often
    ending: list[tuple[Job, Binding]] = field(default_factory=list)  # with the step that runs

    def take(self, binding: Binding) -> None:
        job = binding.wanted
        assert isinstance(job, Job)
        found = self.cache.found_tokens("own", job.keys)
        self.prefills.append((job, binding, max(1, job.num_tokens + job.produced - found)))
        self.cache.note("own", job.keys)

    def seconds(self) -> tuple[float, list[tuple[Job, Binding]], list[tuple[Job, Binding]]]:
        """One step: its time, whose prompts it ends, and which answers."""
        left, begun = STEP_TOKENS, list[tuple[Job, Binding]]()
        while self.prefills and left:
            job, binding, missing = self.prefills[0]
            taken = min(left, missing)
            left -= taken
            if taken < missing:
                self.prefills[0] = (job, binding, missing - taken)
                break
            self.prefills.pop(0)
            begun.append((job, binding))
        time = STEP + PER_SEQUENCE * len(self.decodes) + PER_CONTEXT * self.context
        time += (STEP_TOKENS - left) / PROMPT_RATE
        self.step += 1
        self.context += len(self.decodes)
        ended = self.ending = []
        while self.decodes and self.decodes[0][0] <= self.step:
            _, _, job, binding = heapq.heappop(self.decodes)
            self.context -= job.num_tokens + job.num_output
            ended.append((job, binding))
        for number, (job, binding) in enumerate(begun):
            last = self.step + job.num_output - job.produced
            self.context += job.num_tokens + job.produced
            heapq.heappush(self.decodes, (last, id(job) + number, job, binding))
        return time, begun, ended


def load_of(count: int, rate: float, seed: int, members: int) -> list[Job]:
    """Sessions that begin at random and come back with all that was said before."""
    chance = random.Random(seed)
    jobs: list[Job] = []
    now, sessions = 0.0, list[tuple[int, int, float]]()
    number = 0
    while len(jobs) < count:
        now += chance.expovariate(rate * members)
        ready = [s for s in sessions if s[2] <= now]
        if ready and chance.random() < 0.45:
            session = chance.choice(ready)
            sessions.remove(session)
            tree, length = session[0], session[1]
            length += int(chance.lognormvariate(6.5, 1.0))
        else:
            number += 1
            tree, length = number, int(chance.lognormvariate(8.8, 1.05))
        length = max(64, min(length, 120_000))
        output = max(1, min(2000, int(chance.expovariate(1 / 343))))
        system = tree % 7 if tree % 3 else None  # a shared beginning of four blocks
        keys = [
            f"{'s' + str(system) if system is not None and i < 4 else tree}:{i}".encode()
            for i in range(length // BLOCK)
        ]
        owner = str(tree % 20)
        jobs.append(Job(owner, length, keys=keys, came=now, num_output=output))
        sessions.append((tree, length + output, now + chance.expovariate(1 / 40)))
    return jobs


def trace_of(path: Path, count: int, rate: float, members: int) -> list[Job]:
    """Jobs of a trace in Mooncake's form, at its own times or at a rate."""
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()[:count]]
    span = max(1e-9, (lines[-1]["timestamp"] - lines[0]["timestamp"]) / 1000)
    stretch = 1.0 if not rate else len(lines) / (rate * members) / span
    return [
        Job(
            "",
            each["input_length"],
            keys=[str(key).encode() for key in each["hash_ids"][: each["input_length"] // BLOCK]],
            came=each["timestamp"] / 1000 * stretch,
            num_output=max(1, each["output_length"]),
        )
        for each in lines
    ]


class Simulation:
    """Events in order of time: arrivals, ends of steps, deaths of engines."""

    def __init__(
        self,
        cost: Cost,
        members: int,
        cache_tokens: int,
        *,
        steps_ahead: float,
        balance: float,
        failures: int,
    ) -> None:
        index = Prefixes(b"", page_size=BLOCK // 4)
        self.router = FleetRouter(
            index, cost=cost, chance=random.Random(1), steps_ahead=steps_ahead, balance=balance
        )
        self.turns: Turns[EngineWanted] = Turns()
        self.machines: dict[str, Machine] = {}
        self._cache_tokens, self._failures = cache_tokens, failures
        for number in range(members):
            name = str(number)
            load = EngineLoad(name, 256, STEP_TOKENS, rate=PROMPT_RATE)
            self.router.loads[name] = load
            index.join(name, cache_tokens)
            self.machines[name] = Machine(load, self._cache())
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self._now = 0.0
        self.busy = dict.fromkeys(self.machines, 0.0)
        self.num_resumed = 0

    def _cache(self) -> Prefixes:
        made = Prefixes(b"", page_size=BLOCK // 4)
        made.join("own", self._cache_tokens)
        return made

    def _at(self, time: float, what: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._events, (time, self._count, what))

    def run(self, jobs: list[Job]) -> None:
        """All jobs, to their ends."""
        for job in jobs:
            self._at(job.came, lambda job=job: self._come(job))
        chance = random.Random(7)
        for _ in range(self._failures):
            name = chance.choice(list(self.machines))
            self._at(chance.uniform(0, jobs[-1].came), lambda name=name: self._die(name))
        while self._events:
            self._now, _, what = heapq.heappop(self._events)
            what()

    def _come(self, job: Job) -> None:
        self.turns.add(job)
        self._bind()

    def _bind(self) -> None:
        for binding in self.router.bindings(self.turns.in_order(64)):
            self.turns.bind(binding.wanted)
            machine = self.machines[binding.load.name]
            machine.take(binding)
            self._go_on(machine)

    def _go_on(self, machine: Machine) -> None:
        if machine.is_stepping or not (machine.prefills or machine.decodes):
            return
        machine.is_stepping = True
        seconds, begun, ended = machine.seconds()
        self.busy[machine.load.name] += seconds
        start = machine.start
        self._at(self._now + seconds, lambda: self._end_step(machine, start, begun, ended))

    def _end_step(
        self,
        machine: Machine,
        start: int,
        begun: list[tuple[Job, Binding]],
        ended: list[tuple[Job, Binding]],
    ) -> None:
        if machine.start != start:
            return
        machine.is_stepping = False
        machine.ending = []
        for job, binding in begun:
            job.first = job.first or self._now
            self.router.begin(binding)
            found = job.num_tokens - min(job.num_tokens, binding.missing)
            self.router.learn(binding, found)
        for job, binding in ended:
            job.ended = self._now
            self._leave(job, binding)
        if begun or ended:
            self._bind()
        self._go_on(machine)

    def _leave(self, job: Job, binding: Binding) -> None:
        self.router.leave(binding)
        self.turns.release(job)

    def _die(self, name: str) -> None:
        """What it had goes on elsewhere; it is back after 30 seconds, with nothing in its cache."""
        machine, load = self.machines[name], self.router.loads[name]
        if not load.is_open:
            return
        load.is_open = False
        machine.start += 1
        machine.is_stepping = False
        pairs = [(job, binding) for job, binding, _ in machine.prefills]
        for job, binding in machine.ending:
            job.produced = job.num_output - 1
            pairs.append((job, binding))
        machine.ending = []
        for last, _, job, binding in machine.decodes:
            job.produced = max(0, job.num_output - (last - machine.step))
            pairs.append((job, binding))
        machine.prefills, machine.decodes, machine.context = [], [], 0
        machine.cache = self._cache()
        for job, binding in pairs:
            self._leave(job, binding)
            job.has_begun = True
            self.num_resumed += 1
            self.turns.add(job)

        def back() -> None:
            load.is_open = True
            self.router.prefixes.join(name, self._cache_tokens)
            self._bind()

        self._at(self._now + 30, back)
        self._bind()


def policies() -> Iterator[tuple[str, Cost, float]]:
    """Name, cost, and how many steps ahead work is bound."""
    turn = iter(range(10**9))
    yield (
        "round robin",
        lambda load, waiting, missing: float((int(load.name) - next(turn)) % 8),
        1e9,
    )
    yield "least requests", lambda load, waiting, missing: float(load.bound), 1e9
    yield "longest prefix", lambda load, waiting, missing: float(missing), 1e9
    for weight in (1.0, 4.0):
        yield f"predicted, weight {weight:g}", _weighted(weight), 2
    yield "the fleet's own", predicted_seconds, 2


def _weighted(weight: float) -> Cost:
    return lambda load, waiting, missing: (
        (waiting + weight * missing) / load.rate * (1 + load.share)
    )


def percentile(values: list[float], share: float) -> float:
    """The nearest rank."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def main() -> None:
    """Print a table of time to first token per policy and rate."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--members", type=int, default=8)
    parser.add_argument("--requests", type=int, default=4000)
    parser.add_argument("--rates", type=float, nargs="+", default=[1.7, 2.1, 2.55])
    parser.add_argument("--cache-tokens", type=int, default=700_000)
    parser.add_argument("--failures", type=int, default=0, help="engines that die, at random")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--trace", type=Path)
    parser.add_argument("--only", default="", help="policies whose names hold this")
    args = parser.parse_args()
    print(
        f"{args.requests} requests, {args.members} members of {args.cache_tokens} tokens, "
        f"{args.failures} deaths; time to first token in s, p50 / p90 / p99; busiest over mean"
    )
    for name, cost, ahead in policies():
        for rate in args.rates if args.only in name else ():
            if args.trace is None:
                jobs = load_of(args.requests, rate, args.seed, args.members)
            else:
                jobs = trace_of(args.trace, args.requests, rate, args.members)
            began = perf_counter()
            run = Simulation(
                cost,
                args.members,
                args.cache_tokens,
                steps_ahead=ahead,
                balance=BALANCE if cost is predicted_seconds else 0.0,
                failures=args.failures,
            )
            run.run(jobs)
            lost = sum(not job.ended for job in jobs)
            waits = [job.first - job.came for job in jobs if job.ended]
            busiest = max(run.busy.values()) * len(run.busy) / sum(run.busy.values())
            print(
                f"{name:22} {rate:5.2f}/s  "
                f"{percentile(waits, 0.5):6.2f} {percentile(waits, 0.9):6.2f} "
                f"{percentile(waits, 0.99):6.2f}  {busiest:4.2f}  found "
                f"{run.router.estimated_tokens / max(1, sum(j.num_tokens for j in jobs)):4.0%}  "
                f"resumed {run.num_resumed}  lost {lost}  ({perf_counter() - began:.1f} s)"
            )


if __name__ == "__main__":
    main()
