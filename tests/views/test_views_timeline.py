"""The timeline against the steps of the ledger, added up by hand."""

from __future__ import annotations

import statistics

import numpy as np
import pytest

import engines
from cutaway.core.errors import ReplayError
from cutaway.core.request import Request, SamplingParams
from cutaway.engine.engine import Engine
from cutaway.replay.look import Look
from cutaway.trace.records import AnswerRecord
from cutaway.views import view_of
from cutaway.views.parts.query import Query
from cutaway.views.timeline import Timeline


def asked(name: str, length: int, tokens: int) -> Request:
    params = SamplingParams(max_tokens=tokens, temperature=0.0, ignore_eos=True)
    ids = tuple((7 * i + length) % 250 for i in range(length))
    return Request(request_id=name, prompt_token_ids=ids, params=params)


def found(engine: Engine, name: str) -> AnswerRecord:
    assert engine.ledger is not None
    answer = engine.ledger.find(name)
    assert answer is not None
    return answer


def timeline(engine: Engine, answer: AnswerRecord, query: Query | None = None) -> Timeline:
    look = Look(engine, answer, encode_seconds=0.25)
    payload = view_of("timeline").show(look.subject, query or Query()).payload
    assert isinstance(payload, Timeline)
    return payload


def test_phases_add_up_and_steps_are_those_of_the_ledger() -> None:
    engine = engines.engine(engines.loaded(), prefill_chunk=16)
    engines.run(engine, [asked("one", 40, 9), asked("two", 20, 5)], arrivals=[0, 4])
    answer = found(engine, "one")
    seen = timeline(engine, answer, Query(top=3))
    assert engine.ledger is not None and answer.timings is not None
    steps = [engine.ledger.step(number) for number in answer.steps]
    kept = [step for step in steps if step is not None]
    assert len(kept) == len(steps) == 3 + 8, "three chunks, then a step per further token"
    zero = kept[0].began - answer.timings.queue - 0.25
    np.testing.assert_allclose(seen.ended, [s.ended - zero for s in kept], rtol=1e-6)
    assert seen.total == pytest.approx(kept[-1].ended - zero)
    assert sum(phase.seconds for phase in seen.phases) == pytest.approx(seen.total)
    assert sum(phase.before for phase in seen.phases) == pytest.approx(seen.first_token)
    by_name = {phase.name: phase for phase in seen.phases}
    forward = sum(step.computed - step.began for step in kept)
    assert by_name["forward"].seconds == pytest.approx(forward)
    assert by_name["template and tokenizer"].before == 0.25
    assert list(seen.is_prefill) == [1, 1, 1] + [0] * 8
    assert list(seen.num_tokens[:4]) == [16, 16, 8, 1] and list(seen.context[:3]) == [16, 32, 40]
    company = [len(step.parts) - 1 for step in kept]
    assert list(seen.others) == company and sum(company) > 0
    assert seen.other_tokens.max() == 16, "a chunk of the other prompt"
    gaps = sorted(right - left for left, right in zip(seen.tokens, seen.tokens[1:], strict=False))
    assert len(gaps) == 8 and seen.gap_p50 == pytest.approx(statistics.median(gaps))
    durations = [step.ended - step.began for step in kept]
    assert seen.slowest[0] == durations.index(max(durations)) and len(seen.slowest) == 3


def test_the_picture_names_stages_and_fits() -> None:
    engine = engines.engine(engines.loaded(), prefill_chunk=16)
    engines.run(engine, [asked("one", 40, 95), asked("two", 20, 5)])
    text = timeline(engine, found(engine, "one"), Query(top=100)).draw().text()
    assert max(map(len, text.splitlines())) <= 100
    for words in ("first token after", "97 passes through 2 layers", "queue", "tokens to text"):
        assert words in text, text
    assert "p50" in text and "the slowest of up to 2 in a column" in text
    assert "1 other answer, 1 token" in text


def test_time_without_pages_is_named() -> None:
    """Two that cannot both stay: the younger waits until the older is done."""
    engine = engines.engine(engines.loaded(), num_pages=9, max_sequences=2)
    engines.run(engine, [asked("old", 20, 40), asked("young", 16, 40)])
    answer = found(engine, "young")
    assert len(answer.admissions) > 1
    seen = timeline(engine, answer)
    by_name = {phase.name: phase.seconds for phase in seen.phases}
    assert by_name["preempted"] > by_name["between steps"]
    assert sum(by_name.values()) == pytest.approx(seen.total)


def test_an_answer_without_steps_says_so() -> None:
    engine = engines.engine(engines.loaded())
    engine.add(asked("one", 9, 2))
    with pytest.raises(ReplayError, match='request "one" has no steps in the ledger'):
        timeline(engine, found(engine, "one"))
