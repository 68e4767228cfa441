"""What the host works for a decode step that a GPU runs: microseconds a sequence, without a GPU.

    python bench/host_ahead.py [--sequences 256] [--steps 60] [--profile]
    python bench/host_ahead.py --guesses 4 [--sequences 1] [--ledger]

--guesses: steps with so many guesses for each answer, which hang on what was said. What counts then
is the time for which a GPU waits: from when it has drawn until its next graph is replayed, with the
copy into static tensors; and beside it all of the host's work, most of which it does not wait for.

The device is a stand-in: steps are begun ahead as on a GPU, their logits are always the same and
the sampler's kernels give one row of numbers for all. What is left is the host: plan, places,
sampler settings, text, deltas, records. Processor time of the thread; quartiles of many steps.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import statistics
import sys
import time
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from gpu_drafted import AnyGuess, Scripted

from cutaway.core.request import Request, SamplingParams
from cutaway.engine import engine as engine_module
from cutaway.engine.ahead import Ahead
from cutaway.engine.captured import graphs
from cutaway.engine.config import EngineConfig
from cutaway.engine.drafters import Controller, GuessSource
from cutaway.engine.drafting import Drafting
from cutaway.engine.engine import Engine
from cutaway.engine.runner import Runner
from cutaway.host.garbage import hold_off
from cutaway.sampling import logprobs, sampler
from engines import loaded

TOKEN, PROMPT = 97, 600
BUCKETS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)


class NoDevice:
    """Takes the place of a runner's forward: places are laid out, nothing is computed."""

    def __init__(self, runner: Runner, vocab_size: int) -> None:
        self._runner = runner
        self._logits = torch.zeros(BUCKETS[-1] * 4, vocab_size)
        runner.forward = self.forward  # type: ignore[method-assign]
        runner.run_ahead = self.run_ahead  # type: ignore[method-assign]
        runner.bucket = self.bucket  # type: ignore[method-assign]

    def forward(self, numbers: Any, sink: Any = None, is_over: Any = None) -> Tensor:
        return self._logits[: len(numbers.logit_rows)]

    def run_ahead(self, numbers: Any, token_ids: Tensor) -> Tensor:
        return self._logits[: len(token_ids)]

    def bucket(self, count: int) -> int | None:
        return next((size for size in BUCKETS if size >= count), None)


def sample(logits: Tensor, choices: Tensor, **cuts: bool) -> Tensor:
    row = torch.tensor([TOKEN, 1.0, 1.0, 1.0, 2.0**35, 1.0, 1.0], dtype=torch.float64)
    return row.expand(len(logits), 7)


class NoEvent:
    """Nothing is awaited."""

    def record(self) -> None: ...

    def synchronize(self) -> None: ...


class NoGraphs(graphs.DecodeGraphs):
    """Graphs that compute nothing, over static tensors on the host.

    waits: seconds from when draws were there to the next replay, by the thread's own time.
    """

    def __init__(self, engine: Engine, sequences: int) -> None:
        model, self.runner = engine.model, engine.runner
        super().__init__(
            model.transformer,
            self.runner.pool.layers,
            device=model.device,
            dtype=model.dtype,
            max_sequences=sequences,
            max_tokens=8192,
            max_pages=300,
        )
        self._can_capture = self._has_one_width = True
        self._none = torch.zeros(4096, model.facts.vocab_size)
        self.waits: list[float] = []
        self.drawn_at = 0.0
        self.runner._graphs = self
        self._eager, self.runner.model = self.runner.model, self.no_model

    def no_model(self, step: Any) -> Tensor:
        return self._none[: len(step.logit_rows)]

    def _capture(self, size: Any, inputs: Any) -> Any:
        return graphs._Captured(self, self._none[: size.tokens or size.sequences], None)

    def replay(self) -> None:
        self.waits.append(time.thread_time() - self.drawn_at)


def measure_guesses(sequences: int, args: argparse.Namespace) -> None:
    """How long a GPU waits between two steps with guesses, and all that the host works."""
    model = loaded(num_hidden_layers=1, max_position_embeddings=8192)
    source = GuessSource(AnyGuess(args.guesses, 250), Controller() if args.control else None)
    config = EngineConfig(
        max_sequences=sequences,
        max_tokens_per_step=8192,
        prefill_chunk=8192,
        prefix_cache=False,
        ledger_bytes=2**26 if args.ledger else 0,
    )
    drafting = Drafting({"ngram": source}, default="ngram")
    length = PROMPT + (args.steps + 20) * (args.guesses + 1)
    pages = 2 + sequences * (length // 16 + 2)
    parts = logprobs.Sent.parts
    with (
        mock.patch.object(torch.Tensor, "pin_memory", lambda tensor: tensor),
        mock.patch.object(torch.cuda, "Event", NoEvent),
        mock.patch.object(torch.cuda, "graph_pool_handle", lambda: None),
        mock.patch.object(engine_module, "accept", Scripted(0.8)),
        hold_off(),
    ):
        engine = Engine(model, config, num_pages=pages, drafting=drafting)
        device = NoGraphs(engine, sequences)
        engine._ahead = Ahead(engine.runner, engine.scheduler)

        def read(sent: Any) -> Any:
            device.drawn_at = time.thread_time()
            return parts(sent)

        params = SamplingParams(temperature=0.0, max_tokens=length - PROMPT, ignore_eos=True)
        with mock.patch.object(logprobs.Sent, "parts", read):
            for number in range(sequences):
                ids = tuple(torch.randint(0, 256, (PROMPT,)).tolist())
                engine.add(Request(request_id=str(number), prompt_token_ids=ids, params=params))
            for _ in range(10):
                engine.step()
            device.waits.clear()
            all_work: list[float] = []
            profile = cProfile.Profile()
            for _ in range(args.steps):
                before = time.thread_time()
                engine.step()
                all_work.append(time.thread_time() - before)
            waits = list(device.waits)
            if args.profile:
                profile.runcall(lambda: [engine.step() for _ in range(5)])
                pstats.Stats(profile).sort_stats("tottime").print_stats(45)
    told = [[round(1e6 * us) for us in statistics.quantiles(t, n=4)] for t in (waits, all_work)]
    print(
        f"{sequences:4d} sequences, {args.guesses} guesses each: us of a step that a GPU waits for"
        f" {told[0]}, least {1e6 * min(waits):.0f}; all of the host's {told[1]} (quartiles)",
        flush=True,
    )


def engine_of(sequences: int) -> Engine:
    model = loaded(num_hidden_layers=1, max_position_embeddings=4096)
    config = EngineConfig(
        max_sequences=sequences, max_tokens_per_step=8192, prefill_chunk=8192, prefix_cache=False
    )
    engine = Engine(model, config, num_pages=2 + sequences * 120)
    NoDevice(engine.runner, model.facts.vocab_size)
    engine._ahead = Ahead(engine.runner, engine.scheduler)
    params = SamplingParams(temperature=0.0, max_tokens=1000, ignore_eos=True)
    for number in range(sequences):
        ids = tuple(torch.randint(0, 256, (PROMPT,)).tolist())
        engine.add(Request(request_id=str(number), prompt_token_ids=ids, params=params))
    while not all(each.num_output_tokens for each in engine.scheduler.running) or (
        engine.scheduler.num_waiting
    ):
        engine.step()
    for _ in range(5):
        engine.step()
    return engine


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--sequences", type=int, nargs="*", default=[8, 64, 256])
    options.add_argument("--steps", type=int, default=60)
    options.add_argument("--profile", action="store_true")
    options.add_argument("--guesses", type=int)
    options.add_argument("--control", action="store_true", help="let the controller choose fewer")
    options.add_argument("--ledger", action="store_true", help="record, as a server does")
    args = options.parse_args()
    with (
        mock.patch.object(sampler, "takes", lambda logits: True),
        mock.patch.object(sampler, "sample", sample),
    ):
        for count in args.sequences:
            if args.guesses:
                measure_guesses(count, args)
                continue
            with hold_off():
                engine = engine_of(count)
            began_taken = engine._ahead.num_taken
            times: list[float] = []
            for _ in range(args.steps):
                before = time.thread_time()
                engine.step()
                times.append((time.thread_time() - before) * 1e6 / count)
            low, middle, high = statistics.quantiles(times, n=4)
            taken = engine._ahead.num_taken - began_taken
            print(
                f"{count:4d} sequences: us a sequence and step {low:.1f} {middle:.1f} {high:.1f}"
                f" (quartiles of {args.steps} steps, {taken} begun ahead)",
                flush=True,
            )
            if args.profile:
                profile = cProfile.Profile()
                profile.enable()
                for _ in range(20):
                    engine.step()
                profile.disable()
                pstats.Stats(profile).sort_stats("tottime").print_stats(45)


if __name__ == "__main__":
    main()
