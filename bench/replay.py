"""How many served answers of SmolLM2 come again, row for row, in the plan served and alone."""

from __future__ import annotations

import argparse
import random
from time import perf_counter

from cutaway import LLM
from cutaway.bench.form import form_of
from cutaway.core.request import Request, SamplingParams
from cutaway.engine.engine import Engine
from cutaway.replay.plan import Level
from cutaway.replay.recorded_answers import verify_answer
from cutaway.trace.records import AnswerRecord

QUESTIONS = ("What is gravity?", "How do I bake chocolate chip cookies?", "Count to ten.", "Hi")
PREFIX = "You are asked by a person who reads slowly. Be brief, and say what you do not know. " * 3


def main() -> None:
    """Serve a mixed load in little memory, then verify every answer twice."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=200)
    count = parser.parse_args().count
    llm = LLM("smollm2", cache_tokens=256, page_size=8, prefill_chunk=32, max_sequences=8)
    print(form_of(llm.engine))
    began = perf_counter()
    answers = served(llm, count)
    print(
        f"{len(answers)} answers, {sum(len(a.tokens) for a in answers)} tokens in "
        f"{llm.engine.num_steps} steps, {perf_counter() - began:.0f} s; "
        f"{sum(a.admissions[0].num_hit > 0 for a in answers)} found a prefix, "
        f"{sum(len(a.admissions) > 1 for a in answers)} were preempted, "
        f"{sum(a.request.params.temperature == 0 for a in answers)} greedy"
    )
    for level in ("shape-faithful", "invariant"):
        verify(llm.engine, answers, level)


def served(llm: LLM, count: int) -> list[AnswerRecord]:
    """Records of answers that kept one another company, arriving a few steps apart."""
    chance, engine = random.Random(0), llm.engine
    for number in range(count):
        engine.add(request(llm, number, chance))
        for _ in range(chance.randrange(6)):
            engine.step()
    while engine.has_work:
        engine.step()
    assert engine.ledger is not None, "an engine records unless told otherwise"
    return list(engine.ledger.answers)


def request(llm: LLM, number: int, chance: random.Random) -> Request:
    """Greedy or sampled, some with a common beginning, of many lengths."""
    text = chance.choice(["", PREFIX]) + chance.choice(QUESTIONS) + " " * chance.randrange(3)
    params = SamplingParams(
        temperature=chance.choice([0.0, 0.8, 1.2]),
        top_k=chance.choice([0, 40]),
        top_p=chance.choice([1.0, 0.9]),
        seed=number,
        max_tokens=chance.randint(4, 40),
        ignore_eos=True,
    )
    ids = tuple(llm.encode_chat([{"role": "user", "content": text}]))
    return Request(request_id=f"q{number}", prompt_token_ids=ids, params=params)


def verify(engine: Engine, answers: list[AnswerRecord], level: Level) -> None:
    """Print how many are exact, and each that is not."""
    began = perf_counter()
    verdicts = [verify_answer(engine, answer, level=level) for answer in answers]
    exact = sum(verdict.is_exact for verdict in verdicts)
    print(f"{level}: {exact} of {len(verdicts)} exact, {perf_counter() - began:.0f} s")
    for verdict in verdicts:
        if not verdict.is_exact:
            print("  ", verdict)


if __name__ == "__main__":
    main()
