"""Each reason for a miss, planted in a ledger."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cutaway.core.request import Request, SamplingParams
from cutaway.trace.ledger import Ledger
from cutaway.trace.misses import Miss, miss_of
from cutaway.trace.records import Admission, AnswerRecord, Part, StepRecord


class Past:
    """A ledger that answers are put into, each with one step that computes its prompt."""

    def __init__(self) -> None:
        self.ledger, self.number = Ledger(), 0

    def answer(
        self,
        ids: range | tuple[int, ...],
        *,
        num_hit: int = 0,
        owner: str = "",
        root: bytes = b"",
        **params: Any,
    ) -> AnswerRecord:
        request = Request(
            request_id="r",
            prompt_token_ids=tuple(ids),
            params=SamplingParams(**params),
            owner=owner,
        )
        made = self.ledger.open(request, choice=0, seed=0, max_length=99, cache_root=root)
        made.admissions.append(Admission(num_hit, (), [self.number]))
        part = Part(made.number, num_hit, len(ids) - num_hit, (), 1)
        self.ledger.add_step(StepRecord(self.number, (part,), "plain", 0.0, 0.0, 0.0))
        self.number += 1
        return made

    def miss(self, answer: AnswerRecord, *, has_prefix_cache: bool = True) -> Miss:
        return miss_of(self.ledger, answer, page_size=8, has_prefix_cache=has_prefix_cache)


def test_nothing_like_it_was_asked() -> None:
    past = Past()
    past.answer(range(100, 130))
    past.answer(range(30), owner="somebody else")
    past.answer(range(30), root=b"another salt")
    miss = past.miss(past.answer(range(30)))
    assert (miss.kind, miss.num_hit, miss.num_computed) == ("first", 0, 30)


def test_the_nearest_answer_and_where_it_differs() -> None:
    past = Past()
    past.answer((0, 1, 2, 99))
    near = past.answer((*range(19), 99))
    past.answer(range(100, 120))
    miss = past.miss(past.answer(range(30), num_hit=16))
    assert (miss.kind, miss.nearest, miss.agrees) == ("differs", near.number, 19)
    assert f"the nearest answer, {near.number}, differs from token 19 on" in miss.words


def test_a_page_that_was_there_is_gone() -> None:
    past = Past()
    before = past.answer(range(30))
    miss = past.miss(past.answer(range(30), num_hit=8))
    assert (miss.kind, miss.nearest, miss.num_computed) == ("evicted", before.number, 22)


def test_a_page_that_is_being_computed_is_not_there_yet() -> None:
    past = Past()
    other = past.answer(range(30))
    late = past.answer(range(30))
    late.admissions[0] = replace(late.admissions[0], steps=other.steps)
    miss = past.miss(late)
    assert (miss.kind, miss.nearest) == ("together", other.number)


@pytest.mark.parametrize(("num_hit", "length"), [(24, 30), (24, 32), (0, 8)])
def test_no_more_can_be_found(num_hit: int, length: int) -> None:
    past = Past()
    past.answer(range(length))
    assert past.miss(past.answer(range(length), num_hit=num_hit)).kind == "rest"


def test_what_was_asked_for_or_set_comes_first() -> None:
    past = Past()
    past.answer(range(30))
    assert past.miss(past.answer(range(30), prompt_logprobs=1)).kind == "asked"
    assert past.miss(past.answer(range(30)), has_prefix_cache=False).kind == "off"
