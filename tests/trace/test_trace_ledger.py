"""The ledger: bounded, the oldest out first, and each answer for its owner alone."""

from __future__ import annotations

import math
import random
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutaway.core.errors import ReplayError
from cutaway.core.request import Request, SamplingParams
from cutaway.trace.ledger import Ledger, find_recorded
from cutaway.trace.records import (
    Admission,
    AnswerRecord,
    Part,
    Parts,
    StepRecord,
    TokenRecord,
    TokenRecords,
)


def opened(ledger: Ledger, number: int, *, owner: str = "") -> AnswerRecord:
    request = Request(
        request_id=f"r{number}", prompt_token_ids=(1, 2), params=SamplingParams(), owner=owner
    )
    answer = ledger.open(request, choice=0, seed=number, max_length=99, cache_root=b"")
    answer.admissions.append(Admission(0, ()))
    return answer


def stepped(ledger: Ledger, number: int, answers: list[AnswerRecord]) -> None:
    for answer in answers:
        answer.admissions[-1].steps.append(number)
        ledger.add_token(answer, TokenRecord(7, number, 0, None, 0.0, 0.0, 0))
    parts = tuple(Part(answer.number, number, 1, (), 1) for answer in answers)
    ledger.add_step(StepRecord(number, parts, "plain", 0.0, 0.0, 0.0))


def closed(ledger: Ledger, answer: AnswerRecord) -> None:
    ledger.close(answer, reason="stop", usage=None, timings=None)


def test_an_answer_is_its_owners() -> None:
    ledger = Ledger()
    mine, theirs = opened(ledger, 1, owner="a"), opened(ledger, 1, owner="b")
    assert ledger.find("r1", owner="a") is mine and ledger.find("r1", owner="b") is theirs
    assert ledger.find("r1") is None and ledger.find("r2", owner="a") is None
    assert ledger.find("r1", 1, owner="a") is None, "there is no second choice"


def test_the_latest_of_an_id_is_found() -> None:
    ledger = Ledger()
    opened(ledger, 1)
    latest = opened(ledger, 1)
    assert ledger.find("r1") is latest


def test_choices_are_counted_over_all_prompts_of_a_request() -> None:
    ledger = Ledger()
    made: dict[tuple[int, int], AnswerRecord] = {}
    for prompt in range(3):
        request = Request(
            request_id=f"cmpl-x-{prompt}", prompt_token_ids=(1,), params=SamplingParams(n=2)
        )
        for choice in range(2):
            made[prompt, choice] = ledger.open(
                request, choice=choice, seed=0, max_length=9, cache_root=b""
            )
    for number, own in enumerate(made.values()):
        assert ledger.find_choice("cmpl-x", number, owner="") is own
    assert ledger.find_choice("cmpl-x", 6, owner="") is None
    assert ledger.find_choice("cmpl-x", 0, owner="someone") is None
    assert ledger.find_choice("cmpl-x-1", 1, owner="") is made[1, 1]
    ledger._drop(made[0, 0])  # the numbers of the others stay
    assert ledger.find_choice("cmpl-x", 2, owner="") is made[1, 0]
    with pytest.raises(ReplayError, match='no record of answer "cmpl-x", choice 0'):
        find_recorded(ledger, "cmpl-x", 0, owner="")


def test_alternatives_of_tokens_count() -> None:
    ledger = Ledger()
    answer = opened(ledger, 1)
    ledger.add_token(answer, TokenRecord(7, 0, 0, None, 0.0, 0.0, 0))
    plain = ledger.num_bytes
    ledger.add_token(answer, TokenRecord(7, 0, 0, None, 0.0, 0.0, 0, 1, ((7, -0.1), (8, -2.0))))
    assert ledger.num_bytes - plain > 60 + 200
    ledger._drop(answer)
    assert ledger.num_bytes == 0


@given(st.integers(0, 2**32), st.integers(3_000, 40_000))
def test_it_stays_within_its_memory(seed: int, max_bytes: int) -> None:
    """Ended answers go first; a running one loses steps only when nothing else is left."""
    chance = random.Random(seed)
    ledger, number = Ledger(max_bytes), 0
    running: list[AnswerRecord] = []
    for index in range(60):
        running.append(opened(ledger, index))
        for _ in range(chance.randrange(4)):
            stepped(ledger, number, running)
            number += 1
        if len(running) > 3:
            closed(ledger, running.pop(chance.randrange(len(running))))
        least = sum(2016 + 320 * len(answer.tokens) for answer in ledger.answers)
        assert ledger.num_bytes <= max(max_bytes, least + 250 * 5 * 60)
        for answer in running:
            assert answer in list(ledger.answers)
        for answer in ledger.answers:
            assert answer.is_whole == all(ledger.step(number) for number in answer.steps)


def test_the_oldest_that_ended_goes_first() -> None:
    ledger = Ledger(30_000)
    runs_on = opened(ledger, 0)
    for number in range(1, 40):
        answer = opened(ledger, number)
        stepped(ledger, number - 1, [runs_on, answer])
        closed(ledger, answer)
    numbers = [answer.number for answer in ledger.answers]
    assert numbers[0] == runs_on.number, "it has not ended"
    assert numbers[1:] == list(range(numbers[1], 40)), "the latest are kept, without a gap"
    assert ledger.num_dropped == 40 - len(numbers) > 10


def test_it_needs_no_torch() -> None:
    code = "import sys, cutaway.trace.ledger; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_parts_kept_as_columns_are_the_parts() -> None:
    plain = (Part(3, 17, 4, (8, 9), 3), Part(5, 0, 200, (), 0), Part(7, 2**20, 1, (), 1))
    parts = Parts([3, 5, 7], [17, 0, 2**20], [4, 200, 1], [3, 0, 1], {0: (8, 9)})
    assert tuple(parts) == plain and parts == plain and parts[1:] == plain[1:]
    assert parts[-1] == plain[2] and len(parts) == 3 and parts.index(plain[1]) == 1
    with pytest.raises(IndexError):
        parts[3]


def test_tokens_kept_as_columns_are_the_tokens() -> None:
    plain = (
        TokenRecord(7, 3, 0, None, -0.5, 2.25, 2**64 - 1),
        TokenRecord(2**31, 4, 1, 2**32 - 1, math.nan, math.inf, 0, 2, ((7, -0.1), (8, -2.0))),
        TokenRecord(0, 5, 0, 0, 0.0, 0.0, 9, 1),
    )
    tokens = TokenRecords(plain)
    assert repr(tuple(tokens)) == repr(plain) and repr(tokens[1:]) == repr(plain[1:])
    assert tokens[-1] == plain[2] and len(tokens) == 3 and tokens.num_alternatives == 2
    with pytest.raises(IndexError):
        tokens[3]
