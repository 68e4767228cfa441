"""Whole-engine truths: an answer depends on its request alone, token for token."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from cutaway.core.request import Request, SamplingParams
from cutaway.engine.drafters import NGramDrafter
from cutaway.engine.engine import Engine
from drafters import EachAlone
from engines import Answer, engine, loaded, run, workload

SEEDS = range(3)


@pytest.fixture(scope="module")
def model():
    return loaded()


def alone(model, requests: list[Request], **settings) -> dict[tuple[str, int], Answer]:
    """Each request in a fresh engine, without prefix cache: the simplest run there is."""
    answers: dict[tuple[str, int], Answer] = {}
    for request in requests:
        answers |= run(engine(model, prefix_cache=False, **settings), [request])
    return answers


def assert_same(ours: dict[tuple[str, int], Answer], theirs: dict[tuple[str, int], Answer]) -> None:
    assert ours.keys() == theirs.keys()
    for key, answer in ours.items():
        assert answer.essence == theirs[key].essence, key
        assert_scores_equal(answer.logprobs, theirs[key].logprobs)
        assert_scores_equal(answer.prompt_logprobs, theirs[key].prompt_logprobs)


def assert_scores_equal(ours: list, theirs: list) -> None:
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        if a is None or b is None:
            assert a is b
            continue
        assert (a.token_id, a.rank) == (b.token_id, b.rank)
        assert a.logprob == pytest.approx(b.logprob, abs=1e-5)
        assert [t for t, _ in a.top] == [t for t, _ in b.top]


def assert_pages_returned(target: Engine) -> None:
    stats = target.cache_stats
    assert stats.used == 0, "at the end every page is free or held by the prefix index alone"
    assert stats.free + stats.cached == target.cache.allocators[0].num_pages - 1


@pytest.mark.parametrize("seed", SEEDS)
def test_c13_batched_equals_alone(model, seed: int) -> None:
    requests = workload(seed)
    arrivals = [random.Random(seed).randint(0, 12) for _ in requests]
    target = engine(model, prefix_cache=False)
    assert_same(run(target, requests, arrivals), alone(model, requests))
    assert_pages_returned(target)


@pytest.mark.parametrize("seed", SEEDS)
def test_cached_equals_uncached(model, seed: int) -> None:
    requests = workload(seed)
    target = engine(model)
    expected = alone(model, requests)
    assert_same(run(target, requests), expected)
    again = run(target, requests)
    assert_same(again, expected)
    hits = {key: answer.last.usage.cached_tokens for key, answer in again.items()}
    by_id = {request.request_id: request for request in requests}
    for (request_id, _), cached in hits.items():
        request = by_id[request_id]
        # E12: prompt log-probabilities are recomputed; else all full pages before the last token
        full = (len(request.prompt_token_ids) - 1) // 8 * 8
        assert cached == (0 if request.params.prompt_logprobs is not None else full)
    assert_pages_returned(target)


@pytest.mark.parametrize("chunk", [1, 3, 16, 17, 64])
@pytest.mark.parametrize("seed", [1])
def test_e11_chunked_equals_whole(model, seed: int, chunk: int) -> None:
    requests = workload(seed)
    target = engine(model, prefill_chunk=chunk)
    assert_same(run(target, requests), alone(model, requests))
    assert_pages_returned(target)


@pytest.mark.parametrize("seed", SEEDS)
def test_e08_preempted_equals_not(model, seed: int) -> None:
    requests = crowded(seed)
    target = engine(model, num_pages=12, prefill_chunk=16)
    assert_same(run(target, requests), alone(model, requests))
    assert target.scheduler.num_preemptions > 0, "the pool is too large to test anything"
    assert_pages_returned(target)


def crowded(seed: int) -> list[Request]:
    """Short prompts and long answers: all are admitted, then the pages run out."""
    return [
        replace(
            request,
            prompt_token_ids=request.prompt_token_ids[:12],
            params=replace(request.params, min_tokens=30, max_tokens=36),
        )
        for request in workload(seed, count=4)
    ]


class RandomDrafter(EachAlone):
    """Right, wrong and half-right guesses in turn, without knowing the model."""

    def __init__(self, answers: list[list[int]], seed: int) -> None:
        self._answers = answers
        self._chance = random.Random(seed)

    def guess(self, token_ids) -> list[int]:
        known = next((a for a in self._answers if a[: len(token_ids)] == list(token_ids)), [])
        drafts = known[len(token_ids) : len(token_ids) + self._chance.randint(0, 5)]
        if drafts and self._chance.random() < 0.5:
            drafts[self._chance.randrange(len(drafts))] = self._chance.randrange(256)
        return drafts


@pytest.mark.parametrize("seed", SEEDS)
def test_f04_several_query_tokens_with_rollback_equal_one_by_one(model, seed: int) -> None:
    requests = workload(seed)
    expected = alone(model, requests)
    prompts = {request.request_id: list(request.prompt_token_ids) for request in requests}
    complete = [prompts[key[0]] + answer.token_ids for key, answer in expected.items()]
    target = engine(model, drafter=RandomDrafter(complete, seed))
    assert_same(run(target, requests), expected)
    assert_pages_returned(target)


@pytest.mark.parametrize("seed", [0])
def test_drafted_under_preemption_equals_plain(model, seed: int) -> None:
    requests = crowded(seed)
    expected = alone(model, requests)
    prompts = {request.request_id: list(request.prompt_token_ids) for request in requests}
    complete = [prompts[key[0]] + answer.token_ids for key, answer in expected.items()]
    target = engine(model, num_pages=12, drafter=RandomDrafter(complete, seed), prefill_chunk=16)
    assert_same(run(target, requests), expected)
    assert target.scheduler.num_preemptions > 0
    assert_pages_returned(target)


def test_ngram_drafts_save_steps_and_change_nothing(model) -> None:
    text = tuple(b"one two three one two three one two three one two")
    params = SamplingParams(temperature=0.0, max_tokens=60)
    request = Request(request_id="a", prompt_token_ids=text, params=params)
    plain, drafted = engine(model), engine(model, drafter=NGramDrafter())
    assert_same(run(drafted, [request]), run(plain, [request]))


@pytest.mark.parametrize("seed", SEEDS)
def test_streamed_equals_not_streamed(model, seed: int) -> None:
    requests = [r for r in workload(seed) if not r.params.stop]
    for answer in run(engine(model), requests).values():
        shown = answer.token_ids
        if answer.last.stopped_by is not None:
            shown = shown[:-1]
        whole = model.tokenizer.decode(shown)
        assert answer.text == whole
        assert all("\ufffd" not in text for text in answer.texts) or "\ufffd" in whole
