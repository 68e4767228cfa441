"""One checkout's engine, asked by bench/engines_against.py over a pipe: slices of steps, timed.

    engine_side.py MODEL THREADS CORE CLOCK

It imports only what every checkout since capture has, so that an old one can be asked too. CORE is
the one that the process stays on, or "any".
"""

from __future__ import annotations

import os
import sys
import time
from itertools import count

from question_loop import answers, serve, token_ids  # the script's folder is put on the path

from cutaway.core.request import Request, SamplingParams
from cutaway.kernels import capture, hardware
from cutaway.service.llm import LLM

CLOCKS = {"wall": time.perf_counter, "thread": time.thread_time}


class Side:
    """Sequences that go on decoding from slice to slice, and prompts that nobody saw before."""

    def __init__(self, model: str, threads: int, clock: str) -> None:
        self._engine = LLM(model, cache_tokens=32768).engine
        capture.set_num_threads(threads)
        self._ids, self._now = count(), CLOCKS[clock]
        self._running: list[str] = []
        self.start(8, 1)  # a step, so that the runner knows its kernel
        kernel = self._engine.runner.kernel
        self.versions = f"{kernel}, {hardware.instruction_sets()[0]}, {threads} threads"
        self.start(8, 0)

    def start(self, context: int, sequences: int) -> float:
        """Let so many sequences decode from now on, in the place of those that did."""
        for name in self._running:
            self._engine.abort(name)
        while self._engine.has_work:
            self._engine.step()
        self._running = [
            self._add(token_ids(context, seed=-1 - each), 700) for each in range(sequences)
        ]
        started: set[str] = set()
        while len(started) < sequences:
            started |= {delta.request_id for delta in self._engine.step()}
        return 0.0

    def steps(self, number: int) -> float:
        """Seconds of so many steps of the decoding sequences, after two that fill the caches.

        Another process had the core: its weights and its code are in them.
        """
        for _ in range(2):
            self._engine.step()
        began = self._now()
        for _ in range(number):
            self._engine.step()
        return self._now() - began

    def calls(self, number: int) -> float:
        """How many functions a step calls, of Python and of C, over so many steps."""
        counted = {"call": 0, "c_call": 0}

        def count_call(_frame: object, event: str, _argument: object) -> None:
            if event in counted:
                counted[event] += 1

        sys.setprofile(count_call)
        try:
            for _ in range(number):
                self._engine.step()
        finally:
            sys.setprofile(None)
        return (sum(counted.values()) - 1) / number  # setprofile itself is the one

    def prompt(self, tokens: int) -> float:
        """Seconds of a new prompt and its first token."""
        self._add(token_ids(tokens, seed=next(self._ids)), 1)
        began = self._now()
        while self._engine.has_work:
            self._engine.step()
        return self._now() - began

    def _add(self, prompt: list[int], max_tokens: int) -> str:
        params = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
        name = str(next(self._ids))
        self._engine.add(Request(request_id=name, prompt_token_ids=tuple(prompt), params=params))
        return name


if __name__ == "__main__":
    kept = answers()
    model, threads, core, clock = sys.argv[1:]
    if core != "any":
        os.sched_setaffinity(0, {int(core)})
    serve(Side(model, int(threads), clock), kept)  # pyright: ignore
