"""One hostile request in a batch changes no bit of what the others are told."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

import tiny
from cutaway import LLM
from cutaway.core.errors import CutawayError
from cutaway.core.grammar import Grammar
from cutaway.core.request import Request, SamplingParams
from cutaway.engine.engine import Engine
from cutaway.kernels import capture
from engines import workload
from trials import IN_FULL, patience, ran, seed, trials

pytestmark = pytest.mark.skipif(
    not capture.is_available(), reason="the native kernels are not built: run `make native`"
)

VOCAB, LONGEST, BIG = 320, 256, 2**63 - 1
SIZES = {"hidden_size": 64, "intermediate_size": 96, "head_dim": 16}
DEEP = json.loads('{"items":' * 20 + "true" + "}" * 20)

# Parameters of a hostile request, beside a prompt as long as its benign twin's.
PARAMS: tuple[dict[str, Any], ...] = (
    {"temperature": 5.0, "seed": -(2**63)},
    {"temperature": 1e-5, "top_p": 1e-300, "seed": BIG},
    {"temperature": 5e-324},
    {"top_k": 2**31 - 1, "min_p": 1.0},
    {"top_p": 0.0, "top_k": -1},
    {"repetition_penalty": 5e-324},
    {"repetition_penalty": 10.0, "presence_penalty": 2.0, "frequency_penalty": 2.0},
    {"repetition_penalty": 10, "presence_penalty": -2, "frequency_penalty": -2},
    {"logit_bias": {i: -100 for i in range(VOCAB)}},
    {"logit_bias": {i: 100.0 for i in range(VOCAB)}},
    {"logit_bias": {VOCAB - 1: 100, 0: -100}, "temperature": 0.0},
    {"logit_bias": {VOCAB: 1}},
    {"logit_bias": {BIG: 1}},
    {"stop_token_ids": tuple(range(128))},
    {"stop_token_ids": (VOCAB,)},
    {"stop_token_ids": (10**30,)},
    {"stop": tuple(chr(97 + i) * 256 for i in range(16))},
    {"stop": ("\x00", "\ufffd", "\U0010ffff")},
    {"n": 128, "max_tokens": 2},
    {"n": 17, "logprobs": 20, "prompt_logprobs": 20},
    {"prompt_logprobs": 20, "max_tokens": 0},
    {"min_tokens": 20, "max_tokens": 20, "stop": ("e",), "temperature": 0.0},
    {"min_tokens": BIG, "max_tokens": BIG},
    {"max_tokens": BIG},
    {"max_tokens": 200, "ignore_eos": True},
    {"grammar": Grammar.regex("(a|aa)*b{1,1000}")},
    {"grammar": Grammar.regex("((((((x{1,99}){1,99}){1,99}){1,99}){1,99}){1,99})")},
    {"grammar": Grammar.regex("(")},
    {"grammar": Grammar.lark("start: start start | start")},
    {"grammar": Grammar.lark("start: nothing")},
    {"grammar": Grammar.choice(["\u00e9" * 60, "\U0001f642"])},
    {"grammar": Grammar.choice([f"{i:09d}" for i in range(1024)]), "n": 3},
    {"grammar": Grammar.json_schema(DEEP), "max_tokens": 9},
    {"grammar": Grammar.json_schema({"$ref": "#/definitely/absent"})},
    {"grammar": Grammar.json_schema({"enum": []})},
    {"grammar": Grammar.json_object(), "logit_bias": {i: -100 for i in range(VOCAB)}},
    {"grammar": Grammar.choice(["yes"]), "min_tokens": 9, "max_tokens": 9},
)


def prompted(prompt: Callable[[list[int]], list[int]]) -> Callable[[Request], Request]:
    """A hostile prompt made of a benign one."""
    return lambda twin: replace(twin, prompt_token_ids=tuple(prompt(list(twin.prompt_token_ids))))


PROMPTS = (
    prompted(lambda ids: [VOCAB - 1] * len(ids)),
    prompted(lambda ids: [*ids[1:], VOCAB]),
    prompted(lambda ids: [-1, *ids[1:]]),
    prompted(lambda ids: [*ids[1:], 2**64]),
    prompted(lambda ids: [0] * (LONGEST - 1)),
    prompted(lambda ids: [0] * LONGEST),
    prompted(lambda ids: [0] * 100_000),
    lambda twin: replace(twin, deadline=1e-9),
    lambda twin: replace(twin, deadline=1e-3, params=replace(twin.params, max_tokens=None)),
    lambda twin: replace(twin, owner="\x00" * 1000, cache_salt=b"\xff" * 1000),
)


def with_params(changes: dict[str, Any]) -> Callable[[Request], Request]:
    base = {"max_tokens": 8, "seed": 1}
    return lambda twin: replace(twin, params=SamplingParams(**{**base, **changes}))


HOSTILE = (*PROMPTS, *map(with_params, PARAMS))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    path: Path = tmp_path_factory.mktemp("hostile") / "config.json"
    path.write_text(json.dumps(tiny.config(vocab_size=VOCAB, **SIZES)))
    return f"random:{path}"


def opened(model: str) -> Engine:
    """An engine with few places and pages, so that they are used again and again."""
    settings = {"cache_tokens": 1024, "page_size": 8, "max_sequences": 12, "prefill_chunk": 32}
    return LLM(model, **settings).engine


def batch(number: int) -> list[Request]:
    """Eight short benign requests, whose log-probabilities are wanted."""
    return [
        replace(
            each,
            params=replace(
                each.params, logprobs=1, n=1, max_tokens=min(10, each.params.max_tokens or 10)
            ),
        )
        for each in workload(number, count=8)
    ]


def told(engine: Engine, requests: list[Request], slot: int, leaves_after: int) -> dict[str, Any]:
    """What the others are told to the bit, while one is refused, left after some steps, or ends."""
    said: dict[str, list[Any]] = {}
    for number, request in enumerate(requests):
        try:
            engine.add(request)
        except CutawayError:
            assert number == slot, "benign requests are taken in"
    steps = 0
    while engine.has_work:
        steps += 1
        if steps == leaves_after:
            engine.abort(requests[slot].request_id)
        for delta in engine.step():
            said.setdefault(delta.request_id, []).append(
                (delta.token_ids, delta.text, delta.logprobs, delta.finish_reason)
            )
    assert engine.cache_stats.used == 0
    said.pop(requests[slot].request_id, None)
    return said


def run_batches(model: str, numbers: range) -> None:
    """Batches with a hostile request, and the same with its benign twin, by their numbers."""
    hostile, benign = opened(model), opened(model)
    for number in numbers:
        chance = Random(number)
        twins = batch(number)
        slot, leaves_after = chance.randrange(8), chance.choice([0, 0, 1, 2, 9])
        bad = [*twins]
        bad[slot] = HOSTILE[number % len(HOSTILE)](twins[slot])
        expected = told(benign, twins, slot, leaves_after)
        assert len(expected) == 7
        assert told(hostile, bad, slot, leaves_after) == expected, f"batch {number}"


def test_there_are_enough_kinds_of_hostility() -> None:
    assert len(HOSTILE) >= 40


def test_every_kind_of_hostile_request_leaves_its_neighbours_alone(model: str) -> None:
    run_batches(model, range(len(HOSTILE)))


@pytest.mark.slow
@pytest.mark.parametrize("first", (1000, 1100))
def test_200_batches_with_a_hostile_request_leave_the_others_alone(model: str, first: int) -> None:
    """A quarter of them in CI; the test above has had every kind."""
    run_batches(model, range(first, first + patience(100, in_ci=25)))


@pytest.mark.skipif(not IN_FULL, reason="the tests above in full: bench/reliability.py 6")
def test_batches_of_the_plan_leave_the_others_alone(model: str) -> None:
    first = 10_000 * seed(0)
    run_batches(model, range(first, first + trials(0)))
    ran(trials(0))
