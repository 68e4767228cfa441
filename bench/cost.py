"""Whether charges are fair: their sum, and what ten times the context costs beside a short one.

    python bench/cost.py [--model smollm2] [--short 400] [--tokens 60] [--rounds 5]

Prints the sum of all charges over the time spent in Engine.step, by a clock outside; and for a
request with ten times the context of another how much more it is charged per token when both run
together, over how much longer its steps take when each runs alone.
"""

from __future__ import annotations

import argparse
import statistics
from time import perf_counter

from cutaway import LLM
from cutaway.blocks.weighed import model_work
from cutaway.core.arithmetic import ModelWork
from cutaway.core.request import Request, SamplingParams
from cutaway.engine.engine import Engine
from cutaway.trace.cost import charged, fitted
from cutaway.trace.ledger import Ledger
from cutaway.trace.records import AnswerRecord

busy = 0.0  # seconds in Engine.step


def run(engine: Engine, lengths: list[int], num_tokens: int, name: str) -> list[AnswerRecord]:
    """Requests of these context lengths together; their records."""
    global busy
    for length in lengths:
        ids = tuple(1000 + (7919 * i + length) % 20_000 for i in range(length))
        params = SamplingParams(max_tokens=num_tokens, temperature=0.0, ignore_eos=True)
        engine.add(Request(request_id=f"{name}-{length}", prompt_token_ids=ids, params=params))
    while engine.has_work:
        began = perf_counter()
        engine.step()
        busy += perf_counter() - began
    found = [ledger_of(engine).find(f"{name}-{length}") for length in lengths]
    return [answer for answer in found if answer is not None]


def ledger_of(engine: Engine) -> Ledger:
    assert engine.ledger is not None
    return engine.ledger


def measured(engine: Engine, answer: AnswerRecord) -> float:
    """Seconds of its median decode step."""
    steps = [ledger_of(engine).step(token.step) for token in answer.tokens[1:]]
    return statistics.median(s.ended - s.began for s in steps if s is not None)


def paid(engine: Engine, answer: AnswerRecord, model: ModelWork) -> float:
    """Seconds that its median decode step in company is charged."""
    ledger = ledger_of(engine)
    costs = {c.number: c for c in charged(ledger, answer, model, fitted(ledger, model))}
    steps = [step for token in answer.tokens[1:] if (step := ledger.step(token.step)) is not None]
    together = [step for step in steps if all(part.count == 1 for part in step.parts)]
    return statistics.median(costs[step.number].seconds for step in together)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--short", type=int, default=400)
    parser.add_argument("--tokens", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    engine = LLM(given.model, prefix_cache=False).engine
    dtype = str(engine.model.cache_dtype).removeprefix("torch.")
    model = model_work(engine.model.transformer, engine.model.facts, dtype)
    lengths = [given.short, 10 * given.short]
    rows: list[tuple[float, float]] = []
    for number in range(given.rounds):
        alone = [run(engine, [n], given.tokens, f"alone{number}")[0] for n in lengths]
        both = run(engine, lengths, given.tokens, f"both{number}")
        short, long = (measured(engine, answer) for answer in alone)
        less, more = (paid(engine, answer, model) for answer in both)
        rows.append((long - short, more - less))
        print(
            f"round {number}: alone {short * 1e3:.2f} and {long * 1e3:.2f} ms a token, together "
            f"charged {less * 1e3:.2f} and {more * 1e3:.2f}: difference {more - less:.5f} s for "
            f"{long - short:.5f} s, {(more - less) / (long - short):.1%}"
        )
    differences = [statistics.median(column) for column in zip(*rows, strict=True)]
    ledger = ledger_of(engine)
    rates = fitted(ledger, model)
    total = sum(c.seconds for a in ledger.answers for c in charged(ledger, a, model, rates))
    print(f"ten times the context: charged {differences[1] / differences[0]:.1%} of what it adds")
    print(f"sum of all charges: {total:.3f} s, {total / busy:.3%} of {busy:.3f} s in steps")
    print(f"recorded steps kept: {len(list(ledger.steps))} of {engine.num_steps}")


if __name__ == "__main__":
    main()
