"""Charges add up to the steps, and follow what planted rates say of company and context."""

from __future__ import annotations

import random
from typing import Literal

import pytest

import engines
from cutaway.blocks.weighed import model_work
from cutaway.core.layout import FULL, Window
from cutaway.core.request import Request, SamplingParams
from cutaway.core.work import CacheReads, Matrices, ModelWork, Work
from cutaway.trace.cost import Rates, charge, fit_rates, works_of
from cutaway.trace.ledger import Ledger
from cutaway.trace.records import Admission, AnswerRecord, Part, StepRecord

Device = Literal["host", "device"]

# Shaped as a small model is: a step reads 100 MB, a token of context 20 KB.
MODEL = ModelWork(
    row_bytes=2000.0,
    attention=Matrices(40_000_000, 40_000_000),
    mlp=Matrices(50_000_000, 50_000_000),
    unembedding=Matrices(10_000_000, 10_000_000),
    cache_reads=(CacheReads(FULL, 30, 600, 1200), CacheReads(Window(64, 4), 2, 600, 1200)),
)
PLANTED = Rates((8e-11, 2e-10, 2e-11, 6e-11))


def answers_of(ledger: Ledger, count: int) -> list[AnswerRecord]:
    made: list[AnswerRecord] = []
    for number in range(count):
        request = Request(request_id=f"r{number}", prompt_token_ids=(1, 2), params=SamplingParams())
        answer = ledger.open(request, choice=0, seed=0, max_length=99, cache_root=b"")
        answer.admissions.append(Admission(0, ()))
        made.append(answer)
    return made


def filled(seed: int, *, noise: float) -> tuple[Ledger, list[AnswerRecord]]:
    """Steps of prefills and decodes in changing company that take what the planted rates say."""
    chance, ledger = random.Random(seed), Ledger()
    answers, clock = answers_of(ledger, 6), 0.0
    for number in range(300):
        parts: list[Part] = []
        for answer in chance.sample(answers, chance.randint(1, 5)):
            start, count = chance.randrange(4000), chance.choice([1, 1, 1, 1, 64, 200])
            parts.append(Part(answer.number, start, count, (), chance.choice([1, 1, 0])))
            answer.admissions[-1].steps.append(number)
        step = StepRecord(number, tuple(parts), "plain", clock, clock, clock)
        works = (work for stages in works_of(step, MODEL) for work in stages)
        seconds = PLANTED.predict_seconds(sum(works, Work()))
        seconds *= 1 + noise * chance.random() + 5 * (noise > 0 and chance.random() < 0.03)
        after = seconds * 0.1
        ledger.add_step(step._replace(computed=clock + seconds, ended=clock + seconds + after))
        clock += seconds + after + 0.001
    return ledger, answers


@pytest.mark.parametrize("where", ["host", "device"])
def test_charges_add_up_to_the_steps(where: Device) -> None:
    is_device = where == "device"
    ledger, answers = filled(0, noise=0.3)
    rates = fit_rates(ledger.steps, MODEL, is_device=is_device)
    costs = [charge(ledger, each, MODEL, rates, is_device=is_device) for each in answers]
    total = sum(cost.seconds for each in costs for cost in each)
    assert total == pytest.approx(sum(step.ended - step.began for step in ledger.steps))
    works = [works_of(step, MODEL) for step in ledger.steps]
    num_bytes = sum(work.num_bytes for step in works for stages in step for work in stages)
    assert sum(cost.num_bytes for each in costs for cost in each) == pytest.approx(num_bytes)


def test_rates_are_found_again_and_disturbed_steps_do_not_move_them_far() -> None:
    clear = fit_rates(filled(1, noise=0.0)[0].steps, MODEL)
    for found, planted in zip(clear.seconds, PLANTED.seconds, strict=True):
        assert found == pytest.approx(planted, rel=0.15)
    disturbed = fit_rates(filled(1, noise=0.1)[0].steps, MODEL)
    for work in (MODEL.alone(99, 100), MODEL.alone(2999, 3000), MODEL.alone(0, 200)):
        # What noise adds on average, and no more.
        ratio = disturbed.predict_seconds(work) / PLANTED.predict_seconds(work)
        assert 0.95 < ratio < 1.15


def test_ten_times_the_context_is_charged_what_it_adds_alone() -> None:
    ledger, (short, long, *_) = filled(2, noise=0.0)
    rates = fit_rates(ledger.steps, MODEL)
    number, clock = 300, 1e6
    parts = (Part(short.number, 299, 1, (), 1), Part(long.number, 2999, 1, (), 1))
    step = StepRecord(number, parts, "plain", clock, clock, clock)
    together = PLANTED.predict_seconds(
        sum((work for stages in works_of(step, MODEL) for work in stages), Work())
    )
    ledger.add_step(step._replace(computed=clock + together, ended=clock + together))
    for answer in (short, long):
        answer.admissions[-1].steps.append(number)
    paid = [charge(ledger, answer, MODEL, rates)[-1].seconds for answer in (short, long)]
    alone = [PLANTED.predict_seconds(MODEL.alone(start, start + 1)) for start in (299, 2999)]
    assert paid[1] - paid[0] == pytest.approx(alone[1] - alone[0], rel=0.05)
    assert sum(paid) == pytest.approx(together)


def test_an_engines_charges_are_its_busy_time() -> None:
    engine = engines.engine(engines.loaded(), num_pages=30, prefill_chunk=16)
    engines.run(engine, engines.workload(3), arrivals=[0, 1, 2, 9, 9, 12])
    ledger = engine.ledger
    assert ledger is not None
    model = model_work(engine.model.transformer, engine.model.facts, "float64")
    rates = fit_rates(ledger.steps, model)
    total = sum(
        cost.seconds for answer in ledger.answers for cost in charge(ledger, answer, model, rates)
    )
    assert total == pytest.approx(sum(step.ended - step.began for step in ledger.steps))


def test_nothing_recorded_still_gives_rates() -> None:
    assert min(fit_rates((), MODEL).seconds) > 0
