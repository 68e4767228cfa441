"""What large pages of memory do for weights: steps of two engines in one process, in turn.

One keeps its packed weights on large pages, as always, the other on small ones. Ratios are of
slices side by side, on a quiet machine.

    python bench/large_pages.py --model experts
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from unittest import mock

from cutaway.bench import model_files
from cutaway.bench.form import form_of
from cutaway.bench.peers.question_loop import token_ids
from cutaway.core.request import Request, SamplingParams
from cutaway.engine.engine import Engine
from cutaway.kernels import capture, hardware
from cutaway.kernels.native import large_pages
from cutaway.service.llm import LLM

MODELS: dict[str, Callable[[], Path]] = {
    "experts": model_files.random_experts,
    "1b": model_files.random_1b,
    "q4_1": model_files.smollm2,
}
_WARM, _SLICE = 10, 3  # steps
_IDS = count()


def load(path: Path, *, has_large_pages: bool) -> Engine:
    """An engine over weights on pages of either size, with one answer that goes on."""
    with mock.patch.object(large_pages, "_has_large_pages", lambda: has_large_pages):
        engine = LLM(str(path), cache_tokens=16384).engine
    params = SamplingParams(temperature=0.0, max_tokens=4000, ignore_eos=True)
    prompt = tuple(token_ids(16))
    engine.add(Request(request_id=str(next(_IDS)), prompt_token_ids=prompt, params=params))
    for _ in range(_WARM):
        engine.step()
    return engine


def time_slice(engine: Engine) -> float:
    """Seconds of a step, after one that is not counted: the other's weights fill the caches."""
    engine.step()
    began = time.perf_counter()
    for _ in range(_SLICE):
        engine.step()
    return (time.perf_counter() - began) / _SLICE


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=MODELS, default="experts")
    parser.add_argument("--threads", type=int, default=hardware.available_threads())
    parser.add_argument("--rounds", type=int, default=40)
    options = parser.parse_args()
    path = MODELS[options.model]()
    small, large = load(path, has_large_pages=False), load(path, has_large_pages=True)
    capture.set_num_threads(options.threads)
    print(f"{options.model}: {form_of(large)}")
    pairs: list[tuple[float, float]] = []
    for number in range(options.rounds):
        if number % 2:
            after, before = time_slice(large), time_slice(small)
        else:
            before, after = time_slice(small), time_slice(large)
        pairs.append((before, after))
    medians = [statistics.median(side) * 1e3 for side in zip(*pairs, strict=True)]
    print(f"ms a step, medians: {medians[0]:.2f} on small pages, {medians[1]:.2f} on large ones")
    low, middle, high = statistics.quantiles([before / after for before, after in pairs], n=4)
    print(f"small / large: quartiles {low:.2f} to {high:.2f}, median {middle:.2f}")
    bandwidth = hardware.read_bandwidth(num_bytes=path.stat().st_size)
    print(f"read bandwidth of as many bytes, on large pages: {bandwidth / 1e9:.1f} GB/s")


if __name__ == "__main__":
    main()
