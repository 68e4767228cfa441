"""SmolLM2's answers, served together in packed weights on native kernels, come again."""

from __future__ import annotations

import random

import pytest

from cutaway import LLM
from cutaway.core.request import Request, SamplingParams
from cutaway.kernels import capture
from cutaway.replay.recorded_answers import verify_answer
from engines import run

pytestmark = [
    pytest.mark.slow,
    pytest.mark.oracle,
    pytest.mark.skipif(not capture.is_available(), reason="the native kernels are not built"),
]

QUESTIONS = ("What is gravity?", "How do I bake chocolate chip cookies?", "Count to ten.", "Hi")
PREFIX = "You are asked by a person who reads slowly. Be brief, and say what you do not know. " * 3


def requests(llm: LLM, count: int) -> list[Request]:
    """Greedy and sampled, some with a common beginning, of many lengths."""
    chance = random.Random(0)
    made: list[Request] = []
    for number in range(count):
        text = chance.choice(["", PREFIX]) + chance.choice(QUESTIONS) + " " * chance.randrange(3)
        params = SamplingParams(
            temperature=chance.choice([0.0, 0.8, 1.2]),
            top_k=chance.choice([0, 40]),
            top_p=chance.choice([1.0, 0.9]),
            seed=number,
            max_tokens=chance.randint(4, 28),
        )
        ids = tuple(llm.encode_chat([{"role": "user", "content": text}]))
        made.append(Request(request_id=f"q{number}", prompt_token_ids=ids, params=params))
    return made


def test_every_answer_of_smollm2_comes_again() -> None:
    """Prefix hits, chunks and changing company; in the plan served and alone."""
    llm = LLM("smollm2", cache_tokens=208, page_size=8, prefill_chunk=32, max_sequences=8)
    made, chance = requests(llm, 12), random.Random(1)
    run(llm.engine, made, [chance.randrange(30) for _ in made])
    ledger = llm.engine.ledger
    assert ledger is not None
    answers = [answer for answer in ledger.answers if answer.tokens]
    assert len(answers) == 12
    assert any(answer.admissions[0].num_hit for answer in answers), "some found a prefix"
    for answer in answers:
        assert str(verify_answer(llm.engine, answer)).startswith("exact (shape-faithful")
        assert str(verify_answer(llm.engine, answer, level="invariant")).startswith(
            "exact (invariant"
        )
