"""Engines for the paper table, and how its rows drive them: first tokens, and decode steps."""

from __future__ import annotations

import json
import random
import tempfile
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Unpack

import torch

from cutaway.core.request import Request, SamplingParams
from cutaway.core.step import Step
from cutaway.engine.batch import build_batch
from cutaway.engine.engine import Engine
from cutaway.engine.engine_settings import EngineSettings
from cutaway.kernels import capture, hardware
from cutaway.service.llm import LLM


class Driver:
    """Times one engine from outside, through add and step."""

    def __init__(self, model: str, **settings: Unpack[EngineSettings]) -> None:
        self.engine = LLM(model, **settings).engine
        threads = hardware.chosen_threads()
        torch.set_num_threads(threads)
        if capture.is_available():
            capture.set_num_threads(threads)
        self._names = count()
        self._seeds = count(1)

    def tokens(self, number: int) -> list[int]:
        """Random ids that were never given before."""
        chosen = random.Random(next(self._seeds))
        top = self.engine.model.facts.vocab_size
        return [chosen.randrange(1, top) for _ in range(number)]

    def first_token(self, prompt: Sequence[int]) -> tuple[float, int]:
        """Seconds to the first token of an answer, and how many prompt tokens were found cached."""
        began = time.perf_counter()
        self._add(prompt, max_tokens=1)
        last = None
        while self.engine.has_work:
            for delta in self.engine.step():
                last = delta
        seconds = time.perf_counter() - began
        assert last is not None and last.usage is not None, "one token ends the answer"
        return seconds, last.usage.cached_tokens

    def decode(self, context: int, batch: int, steps: int) -> float:
        """Seconds of a step in which `batch` sequences of about `context` tokens go on."""
        names = [
            self._add(self.tokens(context), max_tokens=steps + batch + 64) for _ in range(batch)
        ]
        started: set[str] = set()
        while len(started) < batch:
            started |= {delta.request_id for delta in self.engine.step()}
        seconds: list[float] = []
        for _ in range(steps):
            began = time.perf_counter()
            self.engine.step()
            seconds.append(time.perf_counter() - began)
        for name in names:
            self.engine.abort(name)
        while self.engine.has_work:
            self.engine.step()
        return fastest(seconds)

    def held_pages(self, context: int) -> int:
        """Pages of all groups that a sequence holds whose prompt has been computed."""
        name = self._add(self.tokens(context), max_tokens=8)
        while not self.engine.step():
            pass
        used = self.engine.cache_stats.used
        self.engine.abort(name)
        while self.engine.has_work:
            self.engine.step()
        return used

    def _add(self, prompt: Sequence[int], max_tokens: int) -> str:
        params = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
        name = str(next(self._names))
        self.engine.add(Request(request_id=name, prompt_token_ids=tuple(prompt), params=params))
        return name


def fastest(seconds: Sequence[float]) -> float:
    """The least of some times: other work on a machine adds to a time and never takes from it."""
    return min(seconds)


@contextmanager
def write_model(config: Mapping[str, object]) -> Generator[str]:
    """The name of random weights of a configuration, while it lies in a file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        path.write_text(json.dumps(config), encoding="utf-8")
        yield f"random:{path}"


def attention_engine(length: int, *, heads: int, groups: int, head_size: int) -> Engine:
    """One layer of a shape, with room for a prompt in one step."""
    config: dict[str, object] = {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": heads * head_size,
        "intermediate_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": heads,
        "num_key_value_heads": groups,
        "head_dim": head_size,
        "vocab_size": 320,
        "max_position_embeddings": length + 16,
    }
    with write_model(config) as model:
        return LLM(
            model,
            cache_tokens=length + 16,
            max_tokens_per_step=length,
            prefill_chunk=length,
            max_sequences=1,
        ).engine


def prompt_step(engine: Engine, length: int) -> Step:
    """The step that computes a whole prompt; the engine does not run it."""
    chosen = random.Random(length)
    prompt = tuple(chosen.randrange(1, 256) for _ in range(length))
    params = SamplingParams(temperature=0.0, max_tokens=1)
    engine.add(Request(request_id="prompt", prompt_token_ids=prompt, params=params))
    scheduled = engine.scheduler.schedule()
    return build_batch(scheduled, engine.runner.pool.layers, device=engine.model.device).step
