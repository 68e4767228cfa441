"""An answer that repeats itself ends there in an engine, however its tokens come."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from test_engine_resume import broken_off, native, needs_native

from cutaway.core.request import RepetitionDetection, Request, SamplingParams
from cutaway.engine.drafters import NGramDrafter
from cutaway.replay.recorded_answers import verify_answer
from cutaway.stream.loops import RepetitionDetector
from engines import Answer, engine, loaded, run

ASKED = RepetitionDetection(max_pattern_size=12, min_pattern_size=2, min_count=3)


def request(detection: RepetitionDetection | None = None, **changes: object) -> Request:
    """Greedy among three tokens, so it comes into a loop soon."""
    told = {"temperature": 0.0, "max_tokens": 120, "ignore_eos": True, "seed": 1, **changes}
    told["logit_bias"] = dict.fromkeys((65, 66, 67), 100)
    params = SamplingParams(repetition_detection=detection, **told)  # type: ignore[arg-type]
    return Request(request_id="r", prompt_token_ids=tuple(range(30)), params=params)


def cut(whole: Answer) -> list[int]:
    """As far as an answer goes when it ends for repeating itself."""
    detector = RepetitionDetector(ASKED)
    places = [detector.push(each) for each in whole.token_ids]
    assert any(places), "it repeats itself"
    return whole.token_ids[: places.index(True) + 1]


@pytest.mark.parametrize("drafter", [None, NGramDrafter])
def test_it_ends_at_the_same_token_with_guesses_and_without(drafter: type | None) -> None:
    model = loaded()
    whole = run(engine(model), [request()])["r", 0]
    target = engine(model, drafter=None if drafter is None else drafter())
    others = [replace(request(), request_id=f"o{n}") for n in range(3)]
    answers = run(target, [request(ASKED), *others])
    answer = answers["r", 0]
    assert answer.token_ids == cut(whole)
    assert answer.last is not None and answer.last.finish_reason == "repetition"
    assert answer.last.stopped_by == "repetition_detected"
    assert whole.text.startswith(answer.text)
    assert answers["o0", 0].essence == whole.essence, "nobody else ends"
    if drafter is not None:
        assert target.num_accepted > 0


def test_what_was_recorded_of_it_runs_again() -> None:
    target = engine(loaded())
    answer = run(target, [request(ASKED)])["r", 0]
    assert target.ledger is not None
    record = target.ledger.find("r")
    assert record is not None and record.finish_reason == "repetition"
    assert len(record.tokens.ids) == len(answer.token_ids)
    assert verify_answer(target, record).is_exact


@needs_native
def test_it_goes_on_in_another_engine_with_what_the_first_had_counted(tmp_path: Path) -> None:
    whole = run(native(tmp_path), [request(ASKED)])["r", 0]
    assert whole.last is not None and whole.last.finish_reason == "repetition"
    for steps in (2, len(whole.token_ids) - 1):
        teller = broken_off(native(tmp_path), native(tmp_path), [request(ASKED)], steps=steps)
        assert teller.answers["r", 0].essence == whole.essence
