"""What the host works between two decoding steps, and where: processor time of the engine's thread.

A step is the native program and the host's work before and after it. The first is taken off, the
rest is what Python costs after caches were swept by all weights; warm it takes half. Quartiles of
many steps, on one thread, since a busy machine takes the wall's time away.

    python bench/host_work.py --sequences 8
    python bench/host_work.py --parts    # each in a run of its own: a clock costs 14 us here
    python bench/host_work.py --against CHECKOUT    # its engine and this one, in turn
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest import mock

import cutaway
from cutaway.bench import model_files
from cutaway.bench.peers.question_loop import token_ids
from cutaway.core.request import Request, SamplingParams
from cutaway.engine import engine, runner, running, scheduler
from cutaway.kernels import capture
from cutaway.kernels.native import program
from cutaway.sampling import sampler
from cutaway.service.llm import LLM

PARTS: tuple[tuple[str, Any, str], ...] = (
    ("what to compute", scheduler.Scheduler, "schedule"),
    ("lay out the step", engine, "build_batch"),
    ("run it, program apart", runner.Runner, "run"),
    ("draw, all", engine, "draw"),
    ("rows to sample", running.Running, "rows"),
    ("sample", sampler, "sample_native"),
    ("native sampling, Python too", sampler.native.RowSampler, "run"),
    ("take the token, all", engine.Engine, "_settle"),
    ("tell of the token, all", engine.Engine, "_tell"),
    ("text", running.Running, "take"),
)
SAMPLERS = {
    "greedy": SamplingParams(temperature=0.0, max_tokens=4000, ignore_eos=True),
    "drawn": SamplingParams(temperature=0.8, top_p=0.95, seed=1, max_tokens=4000, ignore_eos=True),
}


class Clock:
    """Seconds spent inside a function, those of another taken off."""

    def __init__(self, other: Clock | None = None) -> None:
        self.seconds, self._other = 0.0, other

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any, **named: Any) -> Any:
            other = self._other.seconds if self._other else 0.0
            began = time.thread_time()
            result = function(*arguments, **named)
            self.seconds += time.thread_time() - began
            self.seconds -= self._other.seconds - other if self._other else 0.0
            return result

        return timed


def measure(
    params: SamplingParams, sequences: int, steps: int, part: tuple[Any, str] | None = None
) -> list[float]:
    """Milliseconds of each step: of all the host's work, or of one part."""
    llm = LLM(str(model_files.smollm2()), cache_tokens=16384).engine
    capture.set_num_threads(1)
    assert llm.runner.torch_calls == (), "the native program is what is taken off"
    for index in range(sequences):
        prompt = tuple(token_ids(32, seed=index))
        llm.add(Request(request_id=str(index), prompt_token_ids=prompt, params=params))
    for _ in range(10):
        llm.step()
    native = Clock()
    inner = Clock(native)
    owner, name = part or (engine.Engine, "step")
    with ExitStack() as patches:
        for method in ("run", "run_until"):  # in parts where others may come; not of old checkouts
            if function := getattr(program.Program, method, None):
                patched = mock.patch.object(program.Program, method, native.around(function))
                patches.enter_context(patched)
        patches.enter_context(mock.patch.object(owner, name, inner.around(getattr(owner, name))))
        spent: list[float] = []
        for _ in range(steps):
            before = inner.seconds
            llm.step()
            spent.append((inner.seconds - before) * 1e3)
    return spent


def compare(checkout: Path, options: argparse.Namespace) -> None:
    """Print both sides' medians over rounds, and quartiles of new over old of single rounds.

    Each measures in a process of its own, with its checkout's code and script.
    """
    here = Path(cutaway.__file__).parents[2]
    rounds: list[dict[Path, dict[str, float]]] = []
    for number in range(options.rounds):
        order = (checkout, here) if number % 2 else (here, checkout)
        rounds.append({each: _quartiles_of(each, options) for each in order})
    print(
        f"{options.sequences} sequences, {options.steps} steps, {options.rounds} rounds; ms of the"
    )
    print("lower quartile, median of rounds: old, new; new / old: lower quartile, median, upper")
    for label in SAMPLERS:
        old, new = ([each[side][label] for each in rounds] for side in (checkout, here))
        ratios = [after / before for before, after in zip(old, new, strict=True)]
        told = " ".join(f"{each:7.3f}" for each in statistics.quantiles(ratios, n=4))
        print(f"{label:10s} {statistics.median(old):7.3f} {statistics.median(new):7.3f}   {told}")


def _quartiles_of(checkout: Path, options: argparse.Namespace) -> dict[str, float]:
    """The lower quartile of each sampler's steps."""
    script = checkout / "bench" / Path(__file__).name  # its own: names have moved
    command = [sys.executable, str(script), "--sequences", str(options.sequences)]
    environment = {**os.environ, "PYTHONPATH": str(checkout / "src")}
    told = subprocess.run(
        [*command, "--steps", str(options.steps)],
        **{"env": environment, "stdout": subprocess.PIPE, "text": True, "check": True},
    )
    lines = [line.split() for line in told.stdout.splitlines()]
    return {line[0]: float(line[1]) for line in lines if line[0] in SAMPLERS}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sequences", type=int, default=1)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--parts", action="store_true", help="of greedy steps, one by one")
    parser.add_argument("--against", type=Path, help="a checkout, with its library built")
    parser.add_argument("--rounds", type=int, default=5, help="of both, where there are two")
    options = parser.parse_args()
    if options.against:
        return compare(options.against.resolve(), options)
    print(f"{options.sequences} sequences, {options.steps} steps; ms: lower quartile, median")
    runs: list[tuple[str, SamplingParams, tuple[Any, str] | None]] = [
        (name, params, None) for name, params in SAMPLERS.items()
    ]
    if options.parts:
        runs += [(label, SAMPLERS["greedy"], (owner, name)) for label, owner, name in PARTS]
    for label, params, part in runs:
        low, middle, _ = statistics.quantiles(
            measure(params, options.sequences, options.steps, part), n=4
        )
        print(f"{label:28s} {low:7.3f} {middle:7.3f}", flush=True)


if __name__ == "__main__":
    main()
