"""Drafted steps on a GPU: measured speed-up beside the formula, acceptance by script.

    PYTHONPATH=src python bench/gpu_drafted.py [--cases 1:2 1:4 1:7 1:chosen 64:chosen]
    PYTHONPATH=src:tests python bench/gpu_drafted.py --tiny  # on a CPU, to see that it runs

Guesses are random tokens and the rule that judges them is replaced: each guess stands by a chance
of 0.8, whatever the model drew. So steps, rows and pages are those of drafting, and the acceptance
is known. Formula: tokens a step, (1 - a^(k+1)) / (1 - a), as if a step with guesses took no longer
than one without (Leviathan et al. 2023, arXiv 2211.17192, with a drafter that costs nothing).
Rounds of plain and drafted decoding come in turn; k is fixed, or chosen by the controller.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Hashable, Sequence
from dataclasses import replace

import torch
from gpu_decode import random_model, say
from gpu_shapes import COMMON, SHAPES

from cutaway.core.request import Request, SamplingParams
from cutaway.engine import engine as engine_module
from cutaway.engine.config import EngineConfig
from cutaway.engine.drafters import Controller, Draft, GuessSource, Wish
from cutaway.engine.drafting import Drafting
from cutaway.engine.engine import Engine
from cutaway.engine.loading.loaded_model import LoadedModel
from cutaway.host.garbage import hold_off


class AnyGuess:
    """So many guesses at once, whatever was said."""

    only_kind = None
    is_behind = False

    def __init__(self, length: int, size: int) -> None:
        self._length, self._size, self._chance = length, size, random.Random(1)

    def may_guess(self, key: Hashable, token_ids: Sequence[int]) -> bool:
        """It always has some."""
        return True

    def propose(self, wishes: Sequence[Wish]) -> list[Draft]:
        """Random tokens."""
        drawn = self._chance.randrange
        return [
            Draft([drawn(self._size) for _ in range(min(self._length, wish.most))], "any")
            for wish in wishes
        ]

    def finish(self, key: Hashable) -> None:
        """Nothing is kept."""


class Scripted:
    """A rule of acceptance that looks at nothing: each guess stands by a chance."""

    def __init__(self, acceptance: float) -> None:
        self._acceptance, self._chance = acceptance, random.Random(2)

    def __call__(self, sampled: Sequence[int], drafts: Sequence[int]) -> list[int]:
        stood = 0
        while stood < len(drafts) and self._chance.random() < self._acceptance:
            stood += 1
        return [*drafts[:stood], sampled[stood]]


def main() -> None:
    """A line for each number of answers and length."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", choices=list(SHAPES), default="llama3-8b")
    parser.add_argument(
        "--cases", nargs="+", default=["1:2", "1:4", "1:7", "1:chosen", "64:chosen"]
    )
    parser.add_argument("--acceptance", type=float, default=0.8)
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--warm", type=int, default=3, help="rounds in which graphs are captured")
    parser.add_argument("--tiny", action="store_true")
    asked = parser.parse_args()
    if asked.tiny:
        from engines import loaded

        model, asked.context, asked.tokens = loaded(), 24, 40
    else:
        with hold_off():
            model = random_model(SHAPES[asked.shape] | COMMON)
    engine_module.accept = Scripted(asked.acceptance)
    for case in asked.cases:
        batch, length = case.split(":")
        say(**measure(model, int(batch), None if length == "chosen" else int(length), asked))
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def measure(
    model: LoadedModel, batch: int, length: int | None, asked: argparse.Namespace
) -> dict[str, object]:
    """Plain and drafted rounds of one engine. length: None lets the controller choose, up to 7."""
    drafter = AnyGuess(7 if length is None else length, model.facts.vocab_size)
    source = GuessSource(drafter, Controller() if length is None else None)
    pages = 2 + batch * (-(-(asked.context + asked.tokens + 16) // 16) + 1)
    settings = {"device": model.device.type, "max_sequences": batch, "prefix_cache": False}
    if model.device.type == "cuda":
        settings |= {"dtype": "bfloat16", "max_tokens_per_step": 8192, "prefill_chunk": 8192}
    config = EngineConfig(**settings, page_size=16, ledger_bytes=0)
    drafting = Drafting({"ngram": source}, default="off")
    target = Engine(model, config, num_pages=pages, drafting=drafting)
    seconds: dict[str, list[float]] = {"off": [], "ngram": []}
    steps: dict[str, int] = {}
    for number in range(1 - asked.warm, asked.rounds + 1):
        for kind in ("off", "ngram") if number % 2 else ("ngram", "off"):
            took, count = run_round(target, kind, number, batch, asked)
            steps[kind] = count
            if number > 0:
                seconds[kind].append(took)
    ratios = [a / b for a, b in zip(seconds["off"], seconds["ngram"], strict=True)]
    a, k, speedup = asked.acceptance, length, statistics.median(ratios)
    formula = None if k is None else (1 - a ** (k + 1)) / (1 - a)
    return {
        "batch": batch,
        "length": "chosen" if k is None else k,
        "speedup": speedup,
        "least": min(ratios),
        "formula": formula,
        "of_formula": None if formula is None else speedup / formula,
        "steps_plain": steps["off"],
        "steps_drafted": steps["ngram"],
        "kernel": target.runner.kernel,
        "captured": target.runner.num_captured,
        "ms_plain": 1e3 * statistics.median(seconds["off"]) / steps["off"],
        "ms_drafted": 1e3 * statistics.median(seconds["ngram"]) / steps["ngram"],
        "graphs": replayed(target),
    }


def replayed(target: Engine) -> dict[str, float]:
    """Milliseconds of a replay of each graph, by the device's clock: what is left is the host."""
    graphs, found = target.runner._graphs, {}
    for size, captured in {} if graphs is None else graphs._captured.items():
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        before.record()
        for _ in range(10):
            captured.graph.replay()
        after.record()
        after.synchronize()
        name = f"{size.sequences}x{size.longest}, {size.tokens or size.sequences}"
        found[name] = round(before.elapsed_time(after) / 10, 3)
    return found


def run_round(
    target: Engine, kind: str, number: int, batch: int, asked: argparse.Namespace
) -> tuple[float, int]:
    """Seconds and steps from when all prompts are computed to the end of the last answer."""
    chance = random.Random(number)
    params = SamplingParams(temperature=0.0, max_tokens=asked.tokens, ignore_eos=True)
    for each in range(batch):
        prompt = tuple(chance.randrange(200) for _ in range(asked.context))
        target.add(
            Request(
                request_id=f"{kind}{number}-{each}",
                prompt_token_ids=prompt,
                params=replace(params, draft=kind),
            )
        )
    begun: set[str] = set()
    while len(begun) < batch:
        begun |= {delta.request_id for delta in target.step() if delta.token_ids}
    before, began = target.num_steps, time.perf_counter()
    while target.has_work:
        target.step()
    return time.perf_counter() - began, target.num_steps - before


if __name__ == "__main__":
    main()
