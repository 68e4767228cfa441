"""An answer that one engine began goes on in another as if it had been preempted there."""

from __future__ import annotations

import json
import random
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import pytest

import tiny
from cutaway.core.grammar import Grammar
from cutaway.core.output import Delta, DrawProof, ToldChoice
from cutaway.core.request import Request, SamplingParams
from cutaway.engine.build import build_engine
from cutaway.engine.config import EngineConfig
from cutaway.engine.engine import Engine
from cutaway.kernels import capture
from cutaway.replay.recorded_answers import verify_answer
from engines import Answer, engine, loaded, run, workload

needs_native = pytest.mark.skipif(
    not capture.is_available(), reason="the native kernels are not built: run `make native`"
)


def native(folder: Path, *, chunk: int = 512, **settings: object) -> Engine:
    """An engine whose rows are the same bits in any company; equal folders have equal weights."""
    path = folder / "config.json"
    wide = {"hidden_size": 64, "head_dim": 16, "intermediate_size": 128}
    path.write_text(json.dumps(tiny.config(**wide)), encoding="utf-8")
    own = {"cache_tokens": 4096, "page_size": 8, "prefill_chunk": chunk, **settings}
    made = build_engine(f"random:{path}", EngineConfig(device="cpu", **own))  # type: ignore[arg-type]
    made.tells_draws = True
    return made


class Teller:
    """What was told of requests, and from where another engine goes on."""

    def __init__(self) -> None:
        self.answers: dict[tuple[str, int], Answer] = defaultdict(Answer)
        self.draws: dict[tuple[str, int], list[DrawProof]] = defaultdict(list)
        self.seams: list[bool] = []

    def take(self, delta: Delta) -> None:
        key = (delta.request_id, delta.choice)
        if delta.seam is not None:
            self.seams.append(delta.seam)
        self.draws[key] += delta.draws
        answer = self.answers[key]
        assert answer.last is None, "nothing comes after the end"
        answer.token_ids += delta.token_ids
        answer.texts.append(delta.text)
        answer.logprobs += delta.logprobs
        answer.prompt_logprobs += delta.prompt_logprobs
        if delta.finish_reason is not None:
            answer.last = delta

    def told(self, request: Request) -> tuple[ToldChoice, ...]:
        """The choices of a request that have not ended."""
        keys = [(request.request_id, choice) for choice in range(request.params.n)]
        return tuple(
            ToldChoice(key[1], tuple(self.answers[key].token_ids), tuple(self.draws[key]))
            for key in keys
            if self.answers[key].last is None
        )


def broken_off(first: Engine, second: Engine, requests: list[Request], *, steps: int) -> Teller:
    """So many steps of the first engine, the rest in the second."""
    teller = Teller()
    for request in requests:
        first.add(request)
    for _ in range(steps):
        for delta in first.step():
            teller.take(delta)
    for request in requests:
        told = teller.told(request)
        if told:
            second.add(request, told)
    while second.has_work:
        for delta in second.step():
            teller.take(delta)
    return teller


@needs_native
@pytest.mark.parametrize("seed", range(6))
def test_scale_s18_s20_an_answer_goes_on_as_if_undisturbed(seed: int, tmp_path: Path) -> None:
    requests = workload(seed, count=8)
    alone = run(native(tmp_path), requests)
    steps = random.Random(seed).randint(1, 14)
    teller = broken_off(native(tmp_path), native(tmp_path, chunk=16), requests, steps=steps)
    assert {k: a.essence for k, a in teller.answers.items()} == {
        k: a.essence for k, a in alone.items()
    }
    for key, answer in alone.items():
        assert teller.answers[key].logprobs == answer.logprobs
        assert len(teller.answers[key].prompt_logprobs) == len(answer.prompt_logprobs)
    assert teller.seams, "some went on"
    assert all(teller.seams), "the row at each seam comes out to the bit"


@needs_native
def test_scale_s19_a_grammar_goes_on_where_it_stood(tmp_path: Path) -> None:
    pytest.importorskip("llguidance")
    schema = {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "array", "items": {"type": "null"}}},
        "required": ["a", "b"],
    }
    params = SamplingParams(
        temperature=1.0, seed=5, max_tokens=60, grammar=Grammar("json_schema", json.dumps(schema))
    )
    request = Request(request_id="g", prompt_token_ids=tuple(range(30)), params=params)
    whole = run(native(tmp_path), [request])["g", 0]
    for steps in (2, 5, 9):
        answer = broken_off(native(tmp_path), native(tmp_path), [request], steps=steps)
        assert answer.answers["g", 0].essence == whole.essence
        assert answer.seams in ([], [True])


@needs_native
def test_scale_f7_another_class_says_so_and_goes_on(tmp_path: Path) -> None:
    request = workload(3, count=1)[0]
    request = replace(request, params=SamplingParams(temperature=0.0, max_tokens=20, seed=1))
    other = native(tmp_path, kv_dtype="int8")
    teller = broken_off(native(tmp_path), other, [request], steps=6)
    assert teller.seams == [False]
    answer = teller.answers[request.request_id, 0]
    assert answer.last is not None and answer.last.finish_reason in ("length", "stop")


@needs_native
def test_the_record_of_an_answer_that_went_on_is_whole_and_verifies(tmp_path: Path) -> None:
    request = Request(
        request_id="w",
        prompt_token_ids=tuple(range(40)),
        params=SamplingParams(temperature=0.8, seed=3, max_tokens=20, ignore_eos=True),
    )
    second = native(tmp_path)
    teller = broken_off(native(tmp_path), second, [request], steps=8)
    assert second.ledger is not None
    record = second.ledger.find("w")
    assert record is not None and record.seam is not None and record.seam.is_exact
    assert list(record.tokens.ids) == teller.answers["w", 0].token_ids
    verdict = verify_answer(second, record)
    assert verdict.is_exact and verdict.num_equal == 20


def test_an_answer_without_tokens_begins_anew_and_tells_no_seam() -> None:
    request = workload(1, count=1)[0]
    target = engine(loaded())
    target.add(request, tuple(ToldChoice(choice) for choice in range(request.params.n)))
    deltas = [delta for _ in range(60) if target.has_work for delta in target.step()]
    assert all(delta.seam is None for delta in deltas)
    ended = sum(delta.finish_reason is not None for delta in deltas)
    assert ended == request.params.n


def test_nothing_of_draws_is_told_where_nobody_has_to_go_on() -> None:
    target = engine(loaded())
    target.add(workload(1, count=1)[0])
    while target.has_work:
        assert all(delta.draws == () for delta in target.step())


@needs_native
@pytest.mark.parametrize("seed", range(3))
def test_what_another_server_told_goes_on_to_the_same_tokens(tmp_path: Path, seed: int) -> None:
    """Penalties, stop strings and log-probabilities see what was said before, to the bit."""
    requests = [
        replace(each, params=replace(each.params, n=1, prompt_logprobs=None, max_tokens=20))
        for each in workload(seed, count=8)
    ]
    whole = run(native(tmp_path), requests)
    chance = random.Random(seed)
    target = native(tmp_path, chunk=8)
    cuts = {each.request_id: chance.randint(1, 19) for each in requests}
    told = {r: tuple(whole[r, 0].token_ids[:cut]) for r, cut in cuts.items()}
    going_on = [
        replace(each, continued_token_ids=told[each.request_id])
        for each in requests
        if len(told[each.request_id]) < len(whole[each.request_id, 0].token_ids)
    ]
    assert going_on
    for (name, _), answer in run(target, going_on).items():
        before = whole[name, 0]
        assert answer.token_ids == before.token_ids[len(told[name]) :]
        assert before.text.endswith(answer.text)
        assert answer.logprobs == before.logprobs[len(told[name]) :]
        assert answer.last is not None and before.last is not None
        assert answer.last.finish_reason == before.last.finish_reason
        assert answer.last.usage is not None and before.last.usage is not None
        assert answer.last.usage.completion_tokens == before.last.usage.completion_tokens
    assert target.ledger is not None
    assert all(verify_answer(target, each).is_exact for each in target.ledger.answers)
