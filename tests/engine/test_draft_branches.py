"""Guesses in two versions: the same answers, along the one that stands longer; pages returned."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

import tiny
from cutaway import LLM
from cutaway.core.grammar import Grammar
from cutaway.core.request import Request, SamplingParams
from cutaway.engine.drafters import Controller, Draft, NGramDrafter, Wish
from cutaway.engine.drafters.controller import OTHER
from cutaway.engine.drafting import Drafting
from cutaway.engine.engine import Engine
from cutaway.engine.scheduler import Scheduled
from cutaway.kernels import capture
from cutaway.replay.recorded_answers import verify_answer
from drafters import InTwoMinds
from engines import engine, loaded, run, workload

GRAMMAR = Grammar.regex("(ab|cd){3,9}")


def answered(target: Engine, requests: Sequence[Request]) -> dict[tuple[str, int], tuple]:
    return {key: (*each.essence, each.logprobs) for key, each in run(target, requests).items()}


def in_two_minds(
    plain: Engine, drafted: Engine, requests: Sequence[Request], seed: int
) -> list[bool]:
    """Compare; which of the steps with two versions went on along the second."""
    expected = answered(plain, requests)
    prompts = {request.request_id: request.prompt_token_ids for request in requests}
    texts = [[*prompts[key[0]], *said[0]] for key, said in expected.items()]
    drafted.drafting = Drafting.of(InTwoMinds(texts, seed))
    took: list[bool] = []
    learn = drafted.drafting.learn

    def noted(item, *, right: int) -> None:
        if item.is_forked:
            took.append(item.took_other)
        learn(item, right=right)

    drafted.drafting.learn = noted
    assert answered(drafted, requests) == expected
    assert drafted.cache_stats.used == plain.cache_stats.used == 0
    return took


@pytest.mark.parametrize("seed", range(4))
def test_two_versions_change_no_answer(seed: int) -> None:
    """Greedy and drawn, stops, caps, penalties, choices, a grammar, pages that run out."""
    model = loaded()
    requests = workload(seed, count=5)
    requests[0] = replace(requests[0], params=replace(requests[0].params, grammar=GRAMMAR, stop=()))
    settings = {
        "num_pages": (14, 20, 200, 200)[seed],
        "prefill_chunk": (4, 16, 512, 16)[seed],
    }
    took = in_two_minds(engine(model, **settings), engine(model, **settings), requests, seed)
    if settings["num_pages"] == 200:
        assert True in took and False in took


@pytest.mark.skipif(not capture.is_available(), reason="the native kernels are not built")
def test_native_steps_give_the_same_bits_and_are_replayed(tmp_path: Path) -> None:
    sizes = {"hidden_size": 64, "intermediate_size": 96, "head_dim": 16}
    (tmp_path / "config.json").write_text(json.dumps(tiny.config(vocab_size=320, **sizes)))
    given = {"cache_tokens": 4096, "page_size": 8, "dtype": "auto"}
    plain, drafted = (LLM(f"random:{tmp_path}/config.json", **given).engine for _ in range(2))
    requests = workload(5, count=6)
    took = in_two_minds(plain, drafted, requests, 5)
    assert True in took and False in took
    assert plain.ledger is not None and drafted.ledger is not None
    sums = [
        {(a.request.request_id, a.choice): [t.checksum for t in a.tokens] for a in ledger.answers}
        for ledger in (plain.ledger, drafted.ledger)
    ]
    assert sums[0] == sums[1], "every row is the same bits along either way"
    for answer in drafted.ledger.answers:
        if answer.tokens:
            assert verify_answer(drafted, answer).is_exact


def test_no_second_version_is_computed_while_somebody_waits() -> None:
    params = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True)
    requests = [
        Request(request_id=str(first), prompt_token_ids=(first, 2, 3), params=params)
        for first in (1, 2)
    ]
    model = loaded()
    texts = [
        [*each.prompt_token_ids, *run(engine(model), [each])[each.request_id, 0].token_ids]
        for each in requests
    ]
    target = engine(model, max_sequences=1)
    target.drafting = Drafting.of(InTwoMinds(texts, 1))
    schedule, forked = target.scheduler.schedule, {True: 0, False: 0}

    def noted() -> list[Scheduled]:
        waits, steps = bool(target.scheduler.waiting), schedule()
        forked[waits] += any(item.is_forked for item in steps)
        return steps

    target.scheduler.schedule = noted
    run(target, requests)
    assert forked[False] > 0 and forked[True] == 0


def test_n_grams_propose_what_followed_elsewhere() -> None:
    #       the latest place that agrees longest is followed by 5, an earlier one by 4
    text = [1, 2, 3, 4, 9, 1, 2, 3, 5, 8, 1, 2, 3]
    (draft,) = NGramDrafter().propose([Wish(0, text, 3)])
    assert draft.token_ids == [5, 8, 1] and draft.other_token_ids == [4, 9, 1]
    (draft,) = NGramDrafter().propose([Wish(1, [1, 2, 3, 4, 1, 2, 3], 3)])
    assert draft.token_ids == [4, 1, 2] and draft.other_token_ids == []
    assert draft.first(2, num_other=1).token_ids == [4, 1]


def test_the_controller_takes_a_second_version_where_it_pays() -> None:
    control = Controller()
    draft = Draft([1, 2], "ngram", other_token_ids=[3, 4])
    for _ in range(20):
        control.learn_time(1, 0, 1.0)
        for further in (2, 5):
            control.learn_time(1, further, 1.0, right=1)
    said = {"length": 2, "num_answers": 1, "further": 2}
    for _ in range(50):
        control.learn(0, "ngram", tried=1, right=0)
        control.learn(0, OTHER, tried=1, right=1)
    assert control.takes_other(0, draft, **said), "tokens cost nothing here"
    for _ in range(100):
        control.learn(0, OTHER, tried=1, right=0)
        control.learn_time(1, 5, 3.0)
    assert not control.takes_other(0, draft, **said)
