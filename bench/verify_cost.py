"""What a step takes that verifies guesses, in plain steps, and where its time goes.

    PYTHONPATH=src python bench/verify_cost.py [--model smollm2] [--context 200] [--batches 1 4]

Steps of 1 + k tokens for each answer are run over the same pages in turn, so that whatever else the
machine does meets all of them; the ratio is of medians. Below it the share of each operation.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from time import perf_counter

from cutaway.bench.form import form_of
from cutaway.cache.paged import PageTables
from cutaway.core.step import Numbers, ShapePlan, Step
from cutaway.engine.engine import Engine
from cutaway.service.llm import LLM

GUESSES = (0, 1, 2, 3, 4, 6, 8, 12)


def main() -> None:
    """Print a row for each batch size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--context", type=int, default=200)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--rounds", type=int, default=40)
    asked = parser.parse_args()
    engine = LLM(asked.model, cache_tokens=16_384).engine
    print(form_of(engine))
    print("guesses " + " ".join(f"{k:>6}" for k in GUESSES))
    for batch in asked.batches:
        tables = [reserved(engine, asked.context) for _ in range(batch)]
        steps = [step_of(engine, tables, asked.context, k) for k in GUESSES]
        medians = times(engine, steps, asked.rounds)
        told = " ".join(f"{each / medians[0]:>6.2f}" for each in medians)
        print(f"{batch:>2} once {told}   plain {medians[0] * 1e3:.2f} ms")
        for k, numbers in zip(GUESSES, steps, strict=True):
            if k in (0, 4, 12):
                print(f"        {k} guesses: {shares(engine, numbers)}")
        for each in tables:
            engine.cache.release(each)


def reserved(engine: Engine, context: int) -> PageTables:
    """Pages for a context and the longest draft behind it; what they hold plays no part."""
    admitted = engine.cache.admit([1] * context, engine.cache.keys(b""), max_hit=0)
    assert admitted is not None
    assert engine.cache.reserve(admitted[0], context + 1 + max(GUESSES))
    return admitted[0]


def step_of(engine: Engine, tables: Sequence[PageTables], context: int, guesses: int) -> Numbers:
    """One token of each answer and its guesses, all rows wanted."""
    count, batch = 1 + guesses, len(tables)
    groups = range(len(tables[0].groups))
    return Numbers(
        token_ids=[1] * count * batch,
        positions=[*range(context, context + count)] * batch,
        declared_lengths=[engine.max_length] * count * batch,
        logit_rows=range(count * batch),
        plan=ShapePlan((count,) * batch, (context + count,) * batch),
        pages=[[each.groups[group].pages for each in tables] for group in groups],
        slots=[
            [slot for each in tables for slot in each.groups[group].slots(context, count)]
            for group in groups
        ],
    )


def times(engine: Engine, steps: Sequence[Numbers], rounds: int) -> list[float]:
    """Median seconds of each step."""
    took: list[list[float]] = [[] for _ in steps]
    for _ in range(rounds):
        for place, numbers in enumerate(steps):
            began = perf_counter()
            engine.runner.forward(numbers)
            took[place].append(perf_counter() - began)
    return [statistics.median(each) for each in took]


def shares(engine: Engine, numbers: Numbers) -> str:
    """Where a step's time goes, by kind of operation, of ten runs."""
    native = engine.runner._native
    if native is None:
        return "not recorded"
    step = Step.of(numbers, engine.runner.pool.layers, device=engine.model.device)
    spent: dict[str, float] = {}
    for _ in range(10):
        for name, seconds in native.time(step).items():
            spent[name] = spent.get(name, 0.0) + seconds
    whole = sum(spent.values())
    parts = sorted(spent.items(), key=lambda item: -item[1])[:6]
    return ", ".join(f"{name} {value / whole:.0%}" for name, value in parts)


if __name__ == "__main__":
    main()
