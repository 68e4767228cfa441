"""For how long each view and comparison holds the engine at the most, and how views were priced.

python bench/pieces.py MODEL [--tokens 3000] [--of views|comparisons]     MODEL as for `cutaway run`

Every view is asked for at its heaviest places of one answer, three times each, so that its own pace
is learned; of the last the longest piece is told, beside the longest step without a view, and what
only_cost said of it beside what it took. CPU time stands beside wall time, all threads together:
what is longer by the wall alone waited for the machine, and is no holding of ours.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from statistics import median
from time import perf_counter, process_time
from typing import Any

from cutaway import LLM
from cutaway.bench.form import form_of
from cutaway.core.looks import ComparisonRequest, ViewRequest
from cutaway.core.request import Request, SamplingParams
from cutaway.engine.engine import Engine
from cutaway.host.garbage import hold_off
from cutaway.service.view_queue import ViewQueue
from cutaway.views import VIEWS

TEXTS = ("a" * 9_999, "word and " * 1_100)
FURTHER: tuple[dict[str, Any], ...] = (
    {"layer": 1},
    {"layer": 1, "head": 1},
    {"top": 1_000},
    *({"text": text} for text in TEXTS),
)

CHANGES = ("temperature=1.5", "token@2=65", "batch=64", "ablate=1", "window=64")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--tokens", type=int, default=3_000, help="of the prompt")
    parser.add_argument("--of", choices=("views", "comparisons"), help="both, if left out")
    given = parser.parse_args()
    with hold_off():  # as a served engine: else a walk of the collector is taken for a piece
        engine = LLM(given.model, cache_tokens=2 * given.tokens + 1_024).engine
    print(form_of(engine))
    plain = served(engine, given.tokens)
    print(
        f"longest step without a view: {max(plain[1:]) * 1e3:.1f} ms, median {median(plain):.4f} s"
    )
    if given.of != "comparisons":
        tell_views(engine)
    if given.of != "views":
        tell_comparisons(engine)


def tell_views(engine: Engine) -> None:
    """A line for each view and place."""
    print("| view | places | pieces | longest, ms | CPU, ms | took, s | foreseen, s | answer |")
    print("|---|---|---|---|---|---|---|---|")
    for view in VIEWS:
        for places in ({}, *FURTHER):
            if set(places) <= set(view.takes):
                print(line(engine, view.name, places), flush=True)


def tell_comparisons(engine: Engine) -> None:
    """A line for each change: the ones whose steps would be longest."""
    print("| change | pieces | longest, ms | CPU, ms | took, s | end |")
    print("|---|---|---|---|---|---|")
    for change in CHANGES:
        view_queue, told = ViewQueue(engine), list[object]()
        asked = ComparisonRequest(
            request_id="one",
            choice=0,
            owner="",
            change=change,
            num_runs=1,
            price=None,
            max_tokens=32,
            max_bytes=2**32,
            max_flops=10**16,
        )
        view_queue.compare(1, asked, told.append)
        pieces = timed(view_queue)
        walls, cpus = zip(*pieces, strict=True)
        end = told[-1] if isinstance(told[-1], Exception) else "done"
        numbers = f"{len(pieces)} | {max(walls) * 1e3:.1f} | {max(cpus) * 1e3:.1f}"
        print(f"| {change} | {numbers} | {sum(walls):.1f} | {str(end)[:60]} |", flush=True)


def served(engine: Engine, num_tokens: int) -> list[float]:
    """Make the answer; seconds of each step."""
    text = "The quick brown fox jumps over the lazy dog and thinks about gravity. " * num_tokens
    prompt = tuple(engine.model.tokenizer.encode(text[: 6 * num_tokens])[:num_tokens])
    params = SamplingParams(max_tokens=200, temperature=0.7, seed=1, ignore_eos=True)
    engine.add(Request(request_id="one", prompt_token_ids=prompt, params=params))
    seconds: list[float] = []
    while engine.has_work:
        began = perf_counter()
        engine.step()
        seconds.append(perf_counter() - began)
    return seconds


def line(engine: Engine, view: str, places: Mapping[str, Any]) -> str:
    """What one view took, the pace of its like known."""
    view_queue = ViewQueue(engine)
    for number in range(2):
        looked(view_queue, view, places, number)
    _, priced = looked(view_queue, view, places, 2, is_cost=True)
    pieces, answer = looked(view_queue, view, places, 2)
    walls, cpus = zip(*pieces, strict=True)
    foreseen = json.loads(priced)["seconds"] if isinstance(priced, bytes) else 0.0
    told = f"{len(answer):,} bytes" if isinstance(answer, bytes) else str(answer)[:40]
    shown = ", ".join(f"{name} {str(value)[:8]}" for name, value in places.items())
    longest, computed = max(walls) * 1e3, max(cpus) * 1e3
    numbers = f"{len(pieces)} | {longest:.1f} | {computed:.1f} | {sum(walls):.3f} | {foreseen:.3f}"
    return f"| {view} | {shown} | {numbers} | {told} |"


def looked(
    view_queue: ViewQueue,
    view: str,
    places: Mapping[str, Any],
    number: int,
    *,
    is_cost: bool = False,
) -> tuple[list[tuple[float, float]], object]:
    """Seconds of each piece, by the wall and of all threads' CPU; and what was told."""
    told: list[object] = []
    asked = ViewRequest(
        request_id="one",
        choice=0,
        owner="",
        view=view,
        places=places,
        is_json=True,
        is_cost=is_cost,
        max_bytes=2**28 - number,  # another bound is another look: nothing is there already
        max_flops=2 * 10**13,
    )
    view_queue.add(1, asked, told.append)
    return timed(view_queue), told[0]


def timed(view_queue: ViewQueue) -> list[tuple[float, float]]:
    """Run what waits, and give the seconds of each piece, by the wall and of all threads."""
    pieces: list[tuple[float, float]] = []
    while view_queue.has_work:
        began, computed = perf_counter(), process_time()
        view_queue.step()
        pieces.append((perf_counter() - began, process_time() - computed))
    return pieces


if __name__ == "__main__":
    main()
