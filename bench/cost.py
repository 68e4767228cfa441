"""Whether charges are fair: their sum, and what ten times the context costs beside a short one.

    python bench/cost.py [--model smollm2] [--short 400] [--rounds 60]

Three engines of one model: one runs a short request alone, one a request of ten times its context
alone, one both together. They take turns, one decode step each a round in an order that changes,
so whatever else the machine does meets all three alike. Of each round: how much more the long
request is charged for the step that both shared, over how much longer its step took alone. Medians
over the rounds, and what 90 % of draws of as many rounds say. The third engine answered other
requests before, as any engine has: its rates are fitted to all that it recorded.
"""

from __future__ import annotations

import argparse
import random
import statistics
from time import perf_counter

from cutaway import LLM
from cutaway.bench.form import form_of
from cutaway.blocks.weighed import model_work
from cutaway.core.request import Request, SamplingParams
from cutaway.engine.build import num_pages
from cutaway.engine.engine import Engine
from cutaway.trace.cost import charge, fit_rates
from cutaway.trace.ledger import Ledger
from cutaway.trace.records import StepRecord

_MORE = 20  # decode steps of what the third engine answered before
_DRAWS = 2000


class Timed:
    """An engine whose steps a clock outside adds up."""

    def __init__(self, engine: Engine) -> None:
        assert engine.ledger is not None
        self.engine, self.ledger = engine, engine.ledger
        self.busy = 0.0
        dtype = str(engine.model.cache_dtype).removeprefix("torch.")
        self.model = model_work(engine.model.transformer, engine.model.facts, dtype)

    def add(self, length: int, num_tokens: int, name: str) -> None:
        ids = tuple(1000 + (7919 * i + length) % 20_000 for i in range(length))
        params = SamplingParams(max_tokens=num_tokens, temperature=0.0, ignore_eos=True)
        self.engine.add(Request(request_id=name, prompt_token_ids=ids, params=params))

    def step(self) -> StepRecord:
        number, began = self.engine.num_steps, perf_counter()
        self.engine.step()
        self.busy += perf_counter() - began
        found = self.ledger.step(number)
        assert found is not None
        return found

    def until(self, *names: str) -> None:
        """Step until all of these have their first token."""
        while not all((a := self.ledger.find(name)) and a.tokens for name in names):
            self.step()

    def charges(self, name: str) -> dict[int, float]:
        """Seconds that a request is charged, by step."""
        answer = self.ledger.find(name)
        assert answer is not None
        rates = fit_rates(self.ledger.steps, self.model)
        costs = charge(self.ledger, answer, self.model, rates)
        return {cost.number: cost.seconds for cost in costs}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--short", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=60)
    given = parser.parse_args()
    short, long, rounds = given.short, 10 * given.short, given.rounds
    first = LLM(given.model, cache_tokens=12 * short + 4 * (rounds + _MORE)).engine
    print(form_of(first))
    room = num_pages(first.model, first.config)
    more = (Engine(first.model, first.config, num_pages=room) for _ in range(2))
    low, high, both = (Timed(engine) for engine in (first, *more))
    low.add(short, rounds + 2, "short")
    high.add(long, rounds + 2, "long")
    low.until("short")
    high.until("long")
    for length in (short, long):
        both.add(length, _MORE, f"before {length}")
        while both.engine.has_work:
            both.step()
    both.add(short, rounds + 9, "short")
    both.add(long, rounds + 9, "long")
    both.until("short", "long")
    report(*interleaved(low, high, both, rounds))
    total = sum(_charged(each) for each in (low, high, both))
    busy = sum(each.busy for each in (low, high, both))
    print(f"sum of all charges: {total:.3f} s, {total / busy:.3%} of {busy:.3f} s in steps")
    spent, steps = both.engine.recorder, sum(s.ended - s.began for s in both.ledger.steps)
    assert spent is not None
    print(f"inside the recorder: {spent.seconds / steps:.3%} of the third engine's steps")


def interleaved(
    low: Timed, high: Timed, both: Timed, rounds: int
) -> tuple[list[float], list[float]]:
    """Of each round the difference alone, and the difference of charges. Units: seconds."""
    chance = random.Random(0)
    alone: list[float] = []
    shared: list[int] = []
    for _ in range(rounds):
        steps: dict[Timed, StepRecord] = {}
        for each in chance.sample((low, high, both), 3):
            steps[each] = each.step()
        assert len(steps[both].parts) == 2, "both decode"
        alone.append(_seconds(steps[high]) - _seconds(steps[low]))
        shared.append(steps[both].number)
    less, more = both.charges("short"), both.charges("long")
    return alone, [more[number] - less[number] for number in shared]


def report(alone: list[float], charges: list[float]) -> None:
    chance, count = random.Random(1), len(alone)
    ratios: list[float] = []
    for _ in range(_DRAWS):
        drawn = [chance.randrange(count) for _ in range(count)]
        left = statistics.median(charges[i] for i in drawn)
        ratios.append(left / statistics.median(alone[i] for i in drawn))
    ratios.sort()
    difference, charge = statistics.median(alone), statistics.median(charges)
    print(
        f"{count} rounds: alone {difference * 1e3:.2f} ms more a token, charged "
        f"{charge * 1e3:.2f} ms more: {charge / difference:.1%}, of as many rounds drawn anew "
        f"90 % lie from {ratios[_DRAWS // 20]:.1%} to {ratios[-_DRAWS // 20]:.1%}"
    )


def _charged(each: Timed) -> float:
    ledger: Ledger = each.ledger
    rates = fit_rates(ledger.steps, each.model)
    return sum(
        cost.seconds
        for answer in ledger.answers
        for cost in charge(ledger, answer, each.model, rates)
    )


def _seconds(step: StepRecord) -> float:
    return step.ended - step.began


if __name__ == "__main__":
    main()
