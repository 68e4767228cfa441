"""What one request gets: limits at the door, ends, choices, log-probabilities, faults."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from cutaway.core.errors import ContextLengthError, NumericsError, RequestError
from cutaway.core.request import Request, SamplingParams
from cutaway.core.step import Step
from engines import END, Answer, engine, loaded, run


@pytest.fixture(scope="module")
def model():
    return loaded()


def request(prompt: Sequence[int] = (65, 66, 67), *, name: str = "r", **params: object) -> Request:
    return Request(request_id=name, prompt_token_ids=tuple(prompt), params=SamplingParams(**params))


def answer(target, asked: Request) -> Answer:
    return run(target, [asked])[(asked.request_id, 0)]


GREEDY = {"temperature": 0.0}


def test_d01_a_prompt_longer_than_the_context_is_refused_with_both_numbers(model) -> None:
    target = engine(model)
    for length in (256, 300):
        with pytest.raises(ContextLengthError, match=f"{length} tokens .* 256 tokens") as caught:
            target.add(request([65] * length))
        assert caught.value.code == "context_length_exceeded"
    assert not target.has_work


def test_d02_max_tokens_left_out_takes_what_is_left(model) -> None:
    prompt = [65] * 250
    target = engine(model)
    got = answer(target, request(prompt, ignore_eos=True, **GREEDY))
    assert (len(got.token_ids), got.last.finish_reason) == (6, "length")
    assert len(answer(target, request(prompt, max_tokens=6, ignore_eos=True)).token_ids) == 6
    for asked in (7, 10**9):
        with pytest.raises(ContextLengthError, match=f"max_tokens is {asked}") as caught:
            target.add(request(prompt, max_tokens=asked))
        assert caught.value.param == "max_tokens"


def test_d03_no_tokens_at_all_scores_the_prompt(model) -> None:
    got = answer(engine(model), request([65, 66, 67, 68], max_tokens=0, prompt_logprobs=1))
    assert (got.token_ids, got.text, got.last.finish_reason) == ([], "", "length")
    assert got.last.usage.completion_tokens == 0
    assert len(got.prompt_logprobs) == 4
    with pytest.raises(RequestError, match="max_tokens is 0"):
        SamplingParams(max_tokens=0)


def test_d04_the_limit_is_what_the_cache_can_hold(model) -> None:
    target = engine(model, num_pages=5)  # four pages of eight
    assert target.max_length == 32
    with pytest.raises(ContextLengthError, match="32 tokens"):
        target.add(request([65] * 32))
    assert len(answer(target, request([65] * 20, ignore_eos=True)).token_ids) == 12


def test_e09_a_request_that_cannot_fit_does_not_hold_up_the_others(model) -> None:
    target = engine(model, num_pages=9)
    small = [request([65 + i] * 5, name=f"small{i}", max_tokens=4) for i in range(3)]
    with pytest.raises(ContextLengthError):
        target.add(request([65] * 70, name="large"))
    assert len(run(target, small)) == 3


@pytest.mark.parametrize("bad", [-1, 320, 2**40])
def test_token_ids_outside_the_vocabulary_are_refused(model, bad: int) -> None:
    target = engine(model)
    with pytest.raises(RequestError, match="ids go from 0 to 319"):
        target.add(request([65, bad]))
    if bad >= 0:
        for field in ({"logit_bias": {bad: 1.0}}, {"stop_token_ids": (bad,)}):
            with pytest.raises(RequestError, match="ids go from 0 to 319"):
                target.add(request(**field))
    assert not target.has_work


def test_c10_bias_forces_and_bans(model) -> None:
    target = engine(model)
    forced = answer(target, request(logit_bias={90: 100.0}, max_tokens=3, **GREEDY))
    assert forced.token_ids == [90] * 3
    banned = answer(target, request(logit_bias={90: 100.0, 91: -100.0}, max_tokens=1, **GREEDY))
    assert banned.token_ids == [90]


def test_c11_choices_differ_repeat_and_do_not_depend_on_their_number(model) -> None:
    def choices(n: int) -> list[list[int]]:
        got = run(engine(model), [request(n=n, seed=7, temperature=2.0, max_tokens=16)])
        return [got[("r", choice)].token_ids for choice in range(n)]

    four = choices(4)
    assert len({tuple(ids) for ids in four}) == 4
    assert choices(4) == four
    assert choices(2) == four[:2]


def test_choices_after_the_first_find_the_prompt_in_the_cache(model) -> None:
    got = run(engine(model), [request([65] * 33, n=3, max_tokens=2)])
    assert [got[("r", c)].last.usage.cached_tokens for c in range(3)] == [0, 32, 32]


def test_c12_two_requests_without_a_seed_differ(model) -> None:
    asked = [request(name=str(i), temperature=3.0, max_tokens=20) for i in range(2)]
    got = run(engine(model), asked)
    assert got[("0", 0)].token_ids != got[("1", 0)].token_ids


def ending(model, *ids: int):
    """The model with other ending tokens."""
    return replace(model, end_token_ids=frozenset(ids))


def test_b10_every_ending_token_ends(model) -> None:
    for end in (END, 106):
        target = engine(ending(model, END, 106))
        got = answer(target, request(logit_bias={end: 100.0}, **GREEDY))
        assert (got.token_ids, got.text) == ([end], "")
        assert (got.last.finish_reason, got.last.stopped_by) == ("stop", end)


def test_b10_ignore_eos_leaves_the_users_own_stops(model) -> None:
    target = engine(ending(model, 106))
    forced = {"logit_bias": {106: 100.0}, "ignore_eos": True, "max_tokens": 3, **GREEDY}
    assert answer(target, request(**forced)).token_ids == [106] * 3
    stopped = answer(target, request(stop_token_ids=(106,), **forced))
    assert (stopped.token_ids, stopped.last.finish_reason) == ([106], "stop")


def test_b07_the_text_of_an_ordinary_stop_token_is_left_out_or_kept(model) -> None:
    forced = {"logit_bias": {106: 100.0}, "stop_token_ids": (106,), **GREEDY}
    assert answer(engine(model), request(**forced)).text == ""
    assert answer(engine(model), request(include_stop=True, **forced)).text == "j"


def test_b11_no_end_and_no_stop_before_min_tokens(model) -> None:
    target = engine(ending(model, 106))
    forced = {"logit_bias": {106: 100.0, 90: 50.0}, "max_tokens": 9, **GREEDY}
    got = answer(target, request(min_tokens=4, **forced))
    assert got.token_ids == [90] * 4 + [106]
    got = answer(target, request(min_tokens=4, stop=("Z",), **forced))
    assert len(got.token_ids) >= 4


def test_c14_prompt_logprobs_are_those_of_the_raw_distribution(model) -> None:
    prompt = [65, 66, 67, 68, 69]
    settings = {"temperature": 0.7, "repetition_penalty": 1.3, "logit_bias": {66: 5.0}}
    got = answer(engine(model), request(prompt, prompt_logprobs=2, max_tokens=1, **settings))
    with torch.no_grad():
        logits = model.transformer(Step.without_cache([prompt])).float()
    expected = torch.log_softmax(logits, -1)
    first, *rest = got.prompt_logprobs
    assert first is None
    for row, score in enumerate(rest):
        assert score.token_id == prompt[row + 1]
        assert score.logprob == pytest.approx(expected[row, prompt[row + 1]].item(), abs=1e-5)
        assert [i for i, _ in score.top] == expected[row].topk(2).indices.tolist()


def test_c07_logprobs_do_not_depend_on_the_temperature(model) -> None:
    def first(temperature: float):
        asked = request(temperature=temperature, logprobs=3, max_tokens=1, seed=1)
        return answer(engine(model), asked).logprobs[0]

    assert first(0.0).top == first(0.5).top == first(2.0).top
    assert first(0.0).logprob == first(0.0).top[0][1]


def test_nan_fails_its_own_request_alone() -> None:
    """A row of NaN ends one answer with an error; its batch mates and its pages' heirs go on."""
    model = loaded()
    poison = 200
    with torch.no_grad():
        table = model.transformer.embedding.table.weight
        table[poison] = float("nan")
    asked = [request([65 + i] * 12, name=f"good{i}", max_tokens=8, **GREEDY) for i in range(3)]
    bad = request([70] * 11 + [poison], name="bad", max_tokens=8, **GREEDY)
    target = engine(model, num_pages=9)
    expected = {r.request_id: run(engine(model), [r])[(r.request_id, 0)].token_ids for r in asked}
    got = run(target, [bad, *asked])
    assert got[("bad", 0)].last.finish_reason == "error"
    assert isinstance(got[("bad", 0)].last.error, NumericsError)
    for name, token_ids in expected.items():
        assert got[(name, 0)].token_ids == token_ids
    # The pages are used again, and the same prompt is not answered from what was stored.
    again = run(target, asked)
    assert {key[0]: a.token_ids for key, a in again.items()} == expected
    assert all(
        torch.isfinite(p).all() for c in target.runner.pool.layers for p in c.fields.values()
    )
    assert target.cache_stats.used == 0


def test_an_aborted_request_frees_its_pages_and_says_so(model) -> None:
    target = engine(model)
    target.add(request([65] * 20, name="a", max_tokens=100, n=2))
    target.add(request([66] * 20, name="b", max_tokens=3))
    target.step()
    target.abort("a")
    rest = []
    while target.has_work:
        rest += target.step()
    ended = {(d.request_id, d.choice): d.finish_reason for d in rest if d.finish_reason}
    assert ended == {("a", 0): "abort", ("a", 1): "abort", ("b", 0): "length"}
    assert target.cache_stats.used == 0


def test_other_owners_never_share_pages(model) -> None:
    target = engine(model)
    prompt = tuple([65] * 40)
    for salt, cached in ((b"a", 0), (b"b", 0), (b"a", 32)):
        asked = Request(
            request_id="r",
            prompt_token_ids=prompt,
            params=SamplingParams(max_tokens=1),
            cache_salt=salt,
        )
        assert answer(target, asked).last.usage.cached_tokens == cached


def test_d10_other_declared_lengths_never_share_pages_of_a_dynamic_base() -> None:
    scaling = {"rope_type": "dynamic", "factor": 2.0}
    model = loaded(max_position_embeddings=64, rope_scaling=scaling)
    target = engine(model)
    assert target.max_length == 128
    for max_tokens, cached in ((4, 0), (20, 32), (60, 0), (60, 32), (61, 0)):
        asked = request([65] * 40, max_tokens=max_tokens, ignore_eos=True)
        assert answer(target, asked).last.usage.cached_tokens == cached, max_tokens
