"""What recording costs: time inside the recorder over the time of the steps, in one run.

    python bench/recorder.py [--model smollm2] [--tokens 200]

Prints for 1, 8 and 32 sequences the recorder's share of step time, its microseconds per step, and
the bytes that the ledger says it holds per token, beside what Python's allocator counts.
"""

from __future__ import annotations

import argparse
import tracemalloc
from time import perf_counter

from cutaway import LLM
from cutaway.bench.form import form_of
from cutaway.core.request import Request, SamplingParams
from cutaway.engine.engine import Engine
from cutaway.trace.ledger import Ledger


def run(engine: Engine, count: int, num_tokens: int) -> tuple[float, float, int]:
    """Seconds in steps, seconds in the recorder, steps."""
    assert engine.recorder is not None
    for number in range(count):
        params = SamplingParams(max_tokens=num_tokens, ignore_eos=True, seed=number)
        prompt = tuple(range(100 + number, 164 + number))
        engine.add(Request(request_id=f"{count}-{number}", prompt_token_ids=prompt, params=params))
    inside, steps, began = engine.recorder.seconds, engine.num_steps, perf_counter()
    while engine.has_work:
        engine.step()
    seconds = perf_counter() - began
    return seconds, engine.recorder.seconds - inside, engine.num_steps - steps


def ledger_of(engine: Engine) -> Ledger:
    assert engine.ledger is not None
    return engine.ledger


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--tokens", type=int, default=200)
    given = parser.parse_args()
    engine = LLM(given.model).engine
    print(form_of(engine))
    print("sequences   share of step time   us per step")
    for count in (1, 8, 32):
        seconds, inside, steps = run(engine, count, given.tokens)
        print(f"{count:9d}   {inside / seconds:18.2%}   {inside / steps * 1e6:11.1f}")
    ledger = ledger_of(engine)
    tracemalloc.start()
    said, before = ledger.num_bytes, tracemalloc.get_traced_memory()[0]
    run(engine, 8, given.tokens)
    counted = tracemalloc.get_traced_memory()[0] - before
    tokens = 8 * given.tokens
    print(
        f"bytes per token: {(ledger.num_bytes - said) / tokens:.0f} by the ledger, "
        f"{counted / tokens:.0f} by the allocator"
    )


if __name__ == "__main__":
    main()
