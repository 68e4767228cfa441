"""What further rows of a step take beside one, by kind of operation: the price of a guess on a CPU.

    PYTHONPATH=src python bench/drafted_steps.py [--context 300] [--answers 1] [--rounds 200]
    PYTHONPATH=src python bench/drafted_steps.py --books [--answers 1] [--rounds 700]

Steps of SmolLM2 over its pages, one thread, the counts of rows in turn. Seconds are the thread's
own, so that busy neighbours add little; medians, and the lower quartile of the ratio to a step with
one row for each answer.

Books: what a whole step of the engine takes where n-grams rest, and where they are sought and none
is found, beside one without. One engine, whose drafting is exchanged before each step: of two
equal engines one may be 1 % slower by where its buffers lie. Medians of the differences, and their
standard error by 200 samples with replacement; the second plain kind tells what is chance.
"""

from __future__ import annotations

import argparse
import random
import statistics
from collections.abc import Sequence
from time import thread_time

from cutaway.core.request import SamplingParams
from cutaway.core.step import Numbers, ShapePlan
from cutaway.engine.drafters import Controller, Draft, NGramDrafter
from cutaway.engine.drafting import Drafting
from cutaway.service.llm import LLM


def main() -> None:
    """Print a line for each number of rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--context", type=int, default=300)
    parser.add_argument("--answers", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 2, 3, 4, 5, 6, 8, 9, 13])
    parser.add_argument("--kinds", action="store_true", help="and what each operation takes")
    parser.add_argument("--books", action="store_true", help="what a step does for guesses, alone")
    asked = parser.parse_args()
    if asked.books:
        tell_books(asked.answers, asked.rounds)
        return
    llm = LLM("smollm2", cache_tokens=(asked.context + 64) * asked.answers + 64)
    runner = llm.engine.runner
    steps = {rows: numbers_of(llm, asked.context, rows, asked.answers) for rows in asked.rows}
    took: dict[int, list[float]] = {rows: [] for rows in steps}
    for number in range(asked.rounds + 3):
        for rows, numbers in steps.items():
            began = thread_time()
            runner.forward(numbers)
            if number >= 3:
                took[rows].append(thread_time() - began)
    for rows, times in took.items():
        ratios = [a / b for a, b in zip(times, took[1], strict=True)]
        print(
            f"{rows:3} rows: {1e3 * statistics.median(times):6.3f} ms, "
            f"least {1e3 * min(times):6.3f}, ratio {statistics.median(ratios):.3f} "
            f"({min(times) / min(took[1]):.3f} of the least)"
        )
    if asked.kinds:
        tell_kinds(llm, steps)


def tell_kinds(llm: LLM, steps: dict[int, Numbers]) -> None:
    """Microseconds of each kind of operation, the least of thirty steps."""
    native = llm.engine.runner._native
    assert native is not None
    for rows, numbers in steps.items():
        step = llm.engine.runner._step(numbers)
        least: dict[str, float] = {}
        for _ in range(30):
            for kind, seconds in native.time(step).items():
                least[kind] = min(seconds, least.get(kind, seconds))
        told = sorted(least.items(), key=lambda each: -each[1])
        print(f"{rows:3}", ", ".join(f"{kind} {1e6 * s:.0f}" for kind, s in told if s > 5e-6))


class Resting(Controller):
    """Has found that guesses do not pay, for as long as anybody asks."""

    def may_pay(self, num_answers: int, num_asking: int) -> bool:
        return False

    def skip(self, num_answers: int) -> int:
        return 15


class Seeking(Controller):
    """Has guesses sought in every step, and takes none."""

    def may_pay(self, num_answers: int, num_asking: int) -> bool:
        return super().may_pay(num_answers, num_asking) or True

    def lengths(self, drafts: Sequence[tuple[object, Draft]], *, num_answers: int) -> list[int]:
        return [0] * len(drafts)


def tell_books(answers: int, rounds: int) -> None:
    """Print a line for each kind of drafting."""
    kinds = {
        "none": None,
        "none again": None,
        "resting": Drafting.of(NGramDrafter(), controller=Resting()),
        "sought": Drafting.of(NGramDrafter(), controller=Seeking()),
    }
    tokens = len(kinds) * (rounds + 4) + 2
    llm = LLM("smollm2", cache_tokens=(tokens + 256) * answers)
    prompt = llm.encode_chat([{"role": "user", "content": "What is gravity?"}])
    params = [SamplingParams(max_tokens=tokens, ignore_eos=True, seed=n) for n in range(answers)]
    for request in llm.requests([prompt] * answers, params, control=False, lora=None):
        llm.engine.add(request)
    llm.engine.step()
    for sequence in llm.engine.scheduler.running:
        for drafting in kinds.values():
            if drafting is not None:
                drafting.begin(sequence)
    took: dict[str, list[float]] = {kind: [] for kind in kinds}
    chance = random.Random(0)
    for number in range(rounds + 3):
        for kind in chance.sample(list(kinds), len(kinds)):
            llm.engine.drafting = kinds[kind]
            began = thread_time()
            llm.engine.step()
            if number >= 3:
                took[kind].append(thread_time() - began)
    for kind, times in took.items():
        more = [a - b for a, b in zip(times, took["none"], strict=True)]
        samples = [statistics.median(chance.choices(more, k=len(more))) for _ in range(200)]
        middle, error = 1e6 * statistics.median(more), 1e6 * statistics.stdev(samples)
        step = 1e3 * statistics.median(times)
        print(f"{kind}: {step:.3f} ms, {middle:.0f} us more (+- {error:.0f})")


def numbers_of(llm: LLM, context: int, rows: int, answers: int) -> Numbers:
    """A step of some answers, with so many rows each behind so many tokens."""
    pool, size = llm.engine.runner.pool, llm.engine.config.page_size
    per_answer = -(-(context + rows) // size)
    all_pages = [
        list(range(1 + each * per_answer, 1 + (each + 1) * per_answer)) for each in range(answers)
    ]
    places = range(context, context + rows)
    slots = [pages[p // size] * size + p % size for pages in all_pages for p in places]
    groups = 1 + max(cache.group for cache in pool.layers)
    total = rows * answers
    return Numbers(
        token_ids=[11 + 7 * place for place in range(total)],
        positions=[p for _ in range(answers) for p in places],
        declared_lengths=[context + rows] * total,
        logit_rows=list(range(total)),
        plan=ShapePlan((rows,) * answers, (context + rows,) * answers),
        pages=[all_pages] * groups,
        slots=[slots] * groups,
        adapters=[],
    )


if __name__ == "__main__":
    main()
