"""Our own engine, whole: scheduler, step, sampling, text.

run_cutaway.py MODEL THREADS
"""

from __future__ import annotations

import statistics
import sys
import time
from itertools import count

from cutaway.bench.form import form_of
from cutaway.bench.peers.question_loop import answers, serve, token_ids
from cutaway.core.request import Request, SamplingParams
from cutaway.kernels import capture, hardware
from cutaway.service.llm import LLM


class Cutaway:
    """Decoding goes through Engine.step; prompts are cached, so that a round starts at once."""

    def __init__(self, model: str, threads: int) -> None:
        from cutaway import __version__

        self._engine = LLM(model, cache_tokens=16384).engine
        capture.set_num_threads(threads)
        self._ids = count()
        self.versions = f"cutaway {__version__}, {form_of(self._engine)}"

    def bandwidth(self, num_bytes: int = 0) -> float:
        """Bytes per second that this machine reads from memory; see hardware.read_bandwidth."""
        return hardware.read_bandwidth(num_bytes=num_bytes)

    def prefill(self, tokens: int) -> float:
        """Seconds to compute a new prompt and its first token."""
        # Never the same prompt twice: it would be found in the cache.
        name = self._add(token_ids(tokens, seed=next(self._ids)), max_tokens=1)
        began = time.perf_counter()
        while self._engine.has_work:
            self._engine.step()
        seconds = time.perf_counter() - began
        assert name
        return seconds

    def decode(self, context: int, sequences: int, steps: int) -> float:
        """Median seconds per step of the decoding sequences."""
        return statistics.median(self._steps(context, sequences, steps))

    def stretch(self, context: int, sequences: int, steps: int) -> float:
        """Mean seconds per step of the decoding sequences, stalls among them."""
        return statistics.fmean(self._steps(context, sequences, steps))

    def _steps(self, context: int, sequences: int, steps: int) -> list[float]:
        names = [self._add(token_ids(context, seed=-1 - i), steps + 8) for i in range(sequences)]
        started: set[str] = set()
        while len(started) < sequences:  # prompts
            started |= {delta.request_id for delta in self._engine.step()}
        times: list[float] = []
        for _ in range(steps):
            began = time.perf_counter()
            self._engine.step()
            times.append(time.perf_counter() - began)
        for name in names:
            self._engine.abort(name)
        while self._engine.has_work:
            self._engine.step()
        return times

    def _add(self, prompt: list[int], max_tokens: int) -> str:
        params = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
        name = str(next(self._ids))
        self._engine.add(Request(request_id=name, prompt_token_ids=tuple(prompt), params=params))
        return name


if __name__ == "__main__":
    kept = answers()
    serve(Cutaway(sys.argv[1], int(sys.argv[2])), kept)
