"""Several who follow requests of one engine: whoever makes a step loses nobody's news."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest

from cutaway.core.errors import RequestError
from cutaway.core.output import Delta
from cutaway.core.request import Request, SamplingParams
from cutaway.engine.engine import Engine
from engines import engine, loaded


@pytest.fixture
def target() -> Engine:
    return engine(loaded(), prefix_cache=False)


def request(name: str, *, num: int = 12, n: int = 1, **fields: Any) -> Request:
    params = SamplingParams(temperature=0.0, max_tokens=num, ignore_eos=True, n=n)
    prompt = tuple(range(3, 3 + len(name) + 4))
    return Request(request_id=name, prompt_token_ids=prompt, params=params, **fields)


def tokens(news: list[Delta]) -> list[int]:
    return [token_id for delta in news for token_id in delta.token_ids]


def alone(target: Engine, name: str) -> list[int]:
    return tokens([d for news in target.follower.follow([request(name)]) for d in news])


def test_two_who_take_turns_get_all_of_their_own(target: Engine) -> None:
    expected = {name: alone(target, name) for name in ("one", "three")}
    loops = {name: target.follower.follow([request(name)]) for name in expected}
    got: dict[str, list[Delta]] = {name: [] for name in expected}
    while loops:
        for name, loop in list(loops.items()):
            news = next(loop, None)
            if news is None:
                del loops[name]
            else:
                got[name] += news
    assert {name: tokens(news) for name, news in got.items()} == expected
    assert all(d.request_id == name for name, news in got.items() for d in news)


def test_one_who_runs_to_the_end_keeps_the_others_news(target: Engine) -> None:
    expected = alone(target, "slow")
    slow = target.follower.follow([request("slow")])
    first = next(slow)
    quick = tokens([d for news in target.follower.follow([request("quick")]) for d in news])
    assert len(quick) == 12
    assert tokens(first + [d for news in slow for d in news]) == expected


def test_leaving_early_ends_the_requests_and_gives_their_pages_back(target: Engine) -> None:
    with closing(target.follower.follow([request("a", num=100), request("b", num=100)])) as steps:
        next(steps)
    target.step()
    assert not target.has_work and target.cache_stats.used == 0


def test_a_stop_is_asked_before_each_step_and_says_so_at_the_end(target: Engine) -> None:
    asked = iter([False, False, True])
    steps = target.follower.follow([request("a", num=100)], is_stopped=lambda: next(asked))
    news = [delta for each in steps for delta in each]
    assert news[-1].finish_reason == "abort" and len(tokens(news)) == 2


def test_a_request_that_is_refused_leaves_none_of_the_others_running(target: Engine) -> None:
    bad = Request(request_id="bad", prompt_token_ids=(10**6,), params=SamplingParams())
    with pytest.raises(RequestError):
        list(target.follower.follow([request("good"), bad]))
    target.step()
    assert not target.has_work and target.cache_stats.used == 0
