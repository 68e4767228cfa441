"""Drafted steps on a GPU: measured speed-up beside the formula, acceptance by script.

    PYTHONPATH=src python bench/gpu_drafted.py [--cases 1:2 1:4 1:7 1:chosen 64:chosen]
    PYTHONPATH=src python bench/gpu_drafted.py --cases 1:4 --profile  # kernels of each graph
    PYTHONPATH=src:tests python bench/gpu_drafted.py --tiny  # on a CPU, to see that it runs

Guesses are random tokens and the rule that judges them is replaced: each guess stands by a chance
of 0.8, whatever the model drew. So steps, rows and pages are those of drafting, and the acceptance
is known. Formula: tokens a step, (1 - a^(k+1)) / (1 - a), as if a step with guesses took no longer
than one without (Leviathan et al. 2023, arXiv 2211.17192, with a drafter that costs nothing).
Rounds of plain and drafted decoding come in turn; k is fixed, or chosen by the controller.
Told too, in microseconds: what a replay takes the host; how much longer than the graph's own time
it is from there until the host sees its end, on an idle device; and how long it is from when a
step's draws are there until the next graph has been handed over (median of a drafted round).
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import replace
from itertools import pairwise

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
from cutaway.sampling.logprobs import Sent


class AnyGuess:
    """So many guesses at once, whatever was said."""

    only_kind = None
    heeds_bounds = False
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
    parser.add_argument("--profile", action="store_true")
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
    waited = handing_over(target, batch, asked)
    if asked.profile:
        tell_kernels(target)
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
        "host_us": {**launched(target), "from draws to replay": waited},
    }


def replayed(target: Engine) -> dict[str, float]:
    """Milliseconds of a replay of each graph, by the device's clock: what is left is the host."""
    return {name: round(1e3 * seconds_of(graph), 3) for name, graph in graphs_of(target)}


def seconds_of(graph: torch.cuda.CUDAGraph) -> float:
    """Of one replay, by the device's clock: of ten in a row, so that no launch is waited for."""
    before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    before.record()
    for _ in range(10):
        graph.replay()
    after.record()
    after.synchronize()
    return before.elapsed_time(after) / 1e4


def graphs_of(target: Engine) -> list[tuple[str, torch.cuda.CUDAGraph]]:
    """Each captured graph, by sequences, tokens of one at most and of all."""
    graphs = target.runner._graphs
    captured = {} if graphs is None else graphs._captured
    return [
        (f"{size.sequences}x{size.longest}, {size.tokens or size.sequences}", each.graph)
        for size, each in captured.items()
    ]


def launched(target: Engine) -> dict[str, float]:
    """Of the latest graph: what replay() takes the host, and a replay beyond the graph's time."""
    graphs = graphs_of(target)
    if not graphs:
        return {}
    graph, calls, whole = graphs[-1][1], list[float](), list[float]()
    for _ in range(20):
        torch.cuda.synchronize()
        began = time.perf_counter()
        graph.replay()
        calls.append(time.perf_counter() - began)
        torch.cuda.synchronize()
        whole.append(time.perf_counter() - began)
    beyond = statistics.median(whole) - seconds_of(graph)
    return {"replay": round(1e6 * statistics.median(calls), 1), "beyond": round(1e6 * beyond, 1)}


def handing_over(target: Engine, batch: int, asked: argparse.Namespace) -> float | None:
    """Microseconds from when draws are there until a graph is handed over, median of a round."""
    graphs, marks = target.runner._graphs, list[tuple[str, float]]()
    if graphs is None:
        return None
    parts, run = Sent.parts, graphs.run

    def read(sent: Sent) -> object:
        if sent._arrived is not None:
            sent._arrived.synchronize()
        marks.append(("read", time.perf_counter()))
        return parts(sent)

    def replay(*given: object, **named: object) -> object:
        logits = run(*given, **named)  # type: ignore[arg-type]
        marks.append(("run", time.perf_counter()))
        return logits

    Sent.parts, graphs.run = read, replay  # type: ignore[assignment,method-assign]
    try:
        run_round(target, "ngram", asked.rounds + 1, batch, asked)
    finally:
        Sent.parts = parts
        del graphs.run
    spans = [
        after - before
        for (first, before), (second, after) in pairwise(marks)
        if (first, second) == ("read", "run")
    ]
    return round(1e6 * statistics.median(spans), 1) if spans else None


def tell_kernels(target: Engine) -> None:
    """Of a replay of each graph of up to 8 tokens: microseconds and calls of each kernel."""
    from torch.profiler import ProfilerActivity, profile

    for name, graph in graphs_of(target):
        if int(name.split(", ")[1]) > 8:
            continue
        graph.replay()
        torch.cuda.synchronize()
        with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as taken:
            graph.replay()
            torch.cuda.synchronize()
        spent, calls = Counter[str](), Counter[str]()
        for event in taken.events():
            if event.device_type == torch.autograd.DeviceType.CUDA:
                spent[event.name[:60]] += event.self_device_time_total
                calls[event.name[:60]] += 1
        kernels = {key: [round(us, 1), calls[key]] for key, us in spent.most_common(14)}
        say(graph=name, sum_us=round(sum(spent.values()), 1), kernels_us=kernels)


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
