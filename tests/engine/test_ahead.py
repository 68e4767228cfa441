"""Steps begun before their tokens are known: the answers are those of steps one after the other."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from cutaway.core.request import Request, SamplingParams
from cutaway.core.step import Step
from cutaway.engine.ahead import Ahead
from cutaway.engine.drafters import Controller
from cutaway.engine.drafting import Drafting
from cutaway.engine.engine import Engine
from cutaway.replay.recorded_answers import verify_answer
from drafters import InTwoMinds, SaidBefore
from engines import engine, loaded, run, workload


@pytest.fixture(scope="module")
def model():
    return loaded()


def ahead_of(target: Engine, *, buckets: tuple[int, ...] = (1, 2, 4, 8, 64)) -> Ahead:
    """Let an engine on a CPU run ahead, by the modules, as a GPU does by its graphs."""
    runner = target.runner

    def run_ahead(numbers, token_ids):
        step = Step.of(numbers, runner.pool.layers, device=runner.device)
        return runner.model(replace(step, token_ids=token_ids.to(torch.int64)))

    runner.run_ahead = torch.inference_mode()(run_ahead)
    runner.bucket = lambda count: next((size for size in buckets if size >= count), None)
    target._ahead = Ahead(runner, target.scheduler)
    return target._ahead


def essences(answers) -> dict:
    return {key: answer.essence for key, answer in answers.items()}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("settings", [{}, {"num_pages": 18}, {"prefill_chunk": 3}], ids=str)
def test_answers_are_those_of_one_step_after_the_other(model, seed: int, settings) -> None:
    # A row whose draw hangs on the token before keeps all others waiting.
    requests = [each for each in workload(seed, 20) if not each.params.has_penalties]
    target = engine(model, **settings)
    ahead = ahead_of(target)
    assert essences(run(target, requests)) == essences(run(engine(model, **settings), requests))
    assert ahead.num_begun >= ahead.num_taken > 0


def greedy(name: str, length: int, **more) -> Request:
    params = SamplingParams(temperature=0.0, max_tokens=length, ignore_eos=True, **more)
    return Request(request_id=name, prompt_token_ids=(5, 6, 7), params=params)


def test_every_step_but_the_first_is_taken_where_nobody_comes_or_ends_unexpectedly(model) -> None:
    target = engine(model)
    ahead = ahead_of(target)
    run(target, [greedy("a", 12), greedy("b", 12)])
    assert ahead.num_taken == ahead.num_begun == target.num_steps - 1


def test_who_comes_while_a_step_is_begun_starts_with_the_next(model) -> None:
    target, alone = engine(model), engine(model)
    ahead = ahead_of(target)
    found = run(target, [greedy("a", 12), greedy("b", 5)], [0, 4])
    assert ahead.num_taken == ahead.num_begun
    assert target.ledger is not None
    first, second = target.ledger.answers
    assert second.steps[0] == 5 and first.steps == list(range(12))
    assert essences(found) == essences(run(alone, [greedy("a", 12), greedy("b", 5)], [0, 4]))


def test_steps_are_begun_while_others_wait_for_a_full_house(model) -> None:
    target = engine(model, max_sequences=2)
    ahead = ahead_of(target)
    requests = [greedy(name, length) for name, length in [("a", 12), ("b", 12), ("c", 6)]]
    found = run(target, requests)
    assert ahead.num_taken == ahead.num_begun == 16  # of 18: each first token is drawn by itself
    assert essences(found) == essences(run(engine(model), requests))


def test_a_light_owner_gets_in_though_steps_are_begun(model) -> None:
    target = engine(model, max_sequences=2)
    ahead_of(target)
    heavy = [replace(greedy(str(number), 40), owner="heavy") for number in range(2)]
    light = replace(greedy("light", 4), owner="light")
    run(target, [*heavy, light], [0, 0, 10])
    assert target.ledger is not None
    came = next(each for each in target.ledger.answers if each.request.request_id == "light")
    assert came.steps[0] <= 12


def test_a_step_in_another_bucket_is_computed_again(model) -> None:
    """A record names the sequences of a step; a replay of it runs in the shape that they give."""
    target = engine(model)
    ahead = ahead_of(target, buckets=(1, 2, 3, 4))
    stopping = SamplingParams(temperature=0.0, max_tokens=12, stop_token_ids=(0,), ignore_eos=True)
    first = run(engine(model), [greedy("a", 12)])
    token = next(iter(first.values())).token_ids[3]
    params = replace(stopping, stop_token_ids=(token,))
    ends = Request(request_id="b", prompt_token_ids=(5, 6, 7), params=params)
    run(target, [greedy("a", 12), ends])
    assert ahead.num_taken == ahead.num_begun - 1


def test_answers_with_penalties_or_a_grammar_wait_for_their_tokens(model) -> None:
    target = engine(model)
    ahead = ahead_of(target)
    run(target, [greedy("a", 6, frequency_penalty=0.5)])
    assert ahead.num_begun == 0


def test_no_step_is_begun_ahead_of_guesses_and_each_is_where_none_pay(model) -> None:
    plain = run(engine(model), [greedy("a", 40), greedy("b", 40)])
    target = engine(model)
    ahead = ahead_of(target)
    target.drafting = Drafting.of(SaidBefore())
    assert essences(run(target, [greedy("a", 40), greedy("b", 40)])) == essences(plain)
    assert ahead.num_begun == 0 and target.num_drafted

    control = Controller()
    target = engine(model)
    ahead = ahead_of(target)
    target.drafting = Drafting.of(SaidBefore(), controller=control)
    for count in (1, 2):
        for _ in range(5):
            control.learn_time(count, 0, 1.0)
        for _ in range(80):
            control.learn_time(count, 1, 2.0)  # each guess costs a step, and none is right
        control.learn_time(count, 0, 1.0)  # and the machine is as it was
    assert essences(run(target, [greedy("a", 40), greedy("b", 40)])) == essences(plain)
    assert ahead.num_taken == ahead.num_begun == target.num_steps - 1 and not target.num_drafted


@pytest.mark.parametrize("settings", [{}, {"num_pages": 18}], ids=str)
def test_steps_that_hang_on_what_was_said_are_launched_before_it_is_told(model, settings) -> None:
    """With guesses, penalties and grammars too; and their replays are exact."""
    requests = workload(4, 8)
    expected = run(engine(model, **settings), requests)
    target = engine(model, drafter=SaidBefore(), **settings)
    ahead = ahead_of(target)
    assert essences(run(target, requests)) == essences(expected)
    assert ahead.num_launched > 10 and target.num_accepted
    assert target.cache_stats.used == 0 and target.ledger is not None
    answers = [answer for answer in target.ledger.answers if answer.tokens]
    assert all(verify_answer(target, answer).is_exact for answer in answers[::3])


def test_a_step_is_launched_while_the_one_before_is_not_told(model) -> None:
    target = engine(model, drafter=SaidBefore())
    ahead = ahead_of(target)
    target.add(greedy("a", 40))
    launched, told = [], 0
    while target.has_work:
        told += sum(len(delta.token_ids) for delta in target.step())
        launched.append(ahead.num_launched)
    assert told == 40
    # Not behind the first token, which may let others in, nor behind the last.
    assert launched == [0, *range(1, len(launched) - 1), len(launched) - 2]


def test_a_launched_step_is_forgotten_when_somebody_leaves_it(model) -> None:
    requests = [greedy(name, 30) for name in "abc"]
    expected = essences(run(engine(model), requests))
    target = engine(model, drafter=SaidBefore())
    ahead = ahead_of(target)
    for each in requests:
        target.add(each)
    said: dict[str, list[int]] = {name: [] for name in "abc"}
    forwards, run_step = [], target.runner.run
    target.runner.run = lambda batch: forwards.append(batch) or run_step(batch)
    steps = 0
    while target.has_work:
        if steps == 3:
            target.abort("b")
        if steps in (4, 6):
            target.hold("c", is_held=steps == 4)
        for delta in target.step():
            said[delta.request_id] += delta.token_ids
        steps += 1
    assert len(forwards) == target.num_steps + 2 and ahead.num_launched  # two were for nothing
    assert said["a"] == expected["a", 0][0] and said["c"] == expected["c", 0][0]
    assert said["b"] == expected["b", 0][0][: len(said["b"])] and len(said["b"]) < 30
    assert target.cache_stats.used == 0


def test_a_launch_that_raises_is_computed_again(model, capfd: pytest.CaptureFixture[str]) -> None:
    expected = run(engine(model), [greedy("a", 20)])
    target = engine(model, drafter=SaidBefore())
    ahead = ahead_of(target)
    launch, faults = ahead.launch, iter([True, False, True])

    def faulty(batch, answers):
        if next(faults, False):
            raise RuntimeError("no room")
        launch(batch, answers)

    ahead.launch = faulty
    assert essences(run(target, [greedy("a", 20)])) == essences(expected)
    assert ahead.num_launched and "it is computed again" in capfd.readouterr().err


def test_who_is_broken_off_by_its_drafter_is_not_told_of_twice(model) -> None:
    target = engine(model, drafter=SaidBefore())
    ahead_of(target)
    target.add(greedy("a", 20))
    target.add(greedy("b", 20))
    for _ in range(3):
        target.step()
    answer = next(iter(target._answers.values()))
    answer.grammar = object()  # whatever is asked of it raises
    news = target.step() + target.step()
    assert [d.finish_reason for d in news if d.request_id == "a"][-1] == "error"
    while target.has_work:
        news += target.step()
    assert target.ledger is not None and target.recorder is not None
    assert sum(d.finish_reason is not None for d in news) == 2


def test_two_ways_of_guesses_are_copied_where_steps_run_ahead(model) -> None:
    requests = [each for each in workload(2, 20) if not each.params.has_penalties]
    plain = engine(model)
    expected = run(plain, requests)
    prompts = {request.request_id: request.prompt_token_ids for request in requests}
    texts = [[*prompts[key[0]], *said.token_ids] for key, said in expected.items()]
    target = engine(model)
    ahead_of(target)
    target.drafting = Drafting.of(InTwoMinds(texts, 3))
    assert essences(run(target, requests)) == essences(expected)
    assert target.num_accepted and target.cache_stats.used == 0


def test_replays_of_steps_that_were_begun_ahead_are_exact(model) -> None:
    target = engine(model)
    ahead = ahead_of(target)
    run(target, [each for each in workload(3, 20) if not each.params.has_penalties])
    assert target.ledger is not None
    answers = [answer for answer in target.ledger.answers if answer.tokens]
    assert ahead.num_taken
    assert answers and all(verify_answer(target, answer).is_exact for answer in answers)
