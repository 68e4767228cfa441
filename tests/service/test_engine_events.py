"""Events of an answer: what was served, step by step, the same while it is made and afterwards."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Any

import pytest

import engines
from cutaway.core.errors import ReplayError
from cutaway.core.output import Delta
from cutaway.core.request import Request, SamplingParams
from cutaway.engine.drafters import NGramDrafter
from cutaway.engine.engine import Engine
from cutaway.replay.look import Look
from cutaway.service.answer_events import MAX_TOKENS, Teller
from cutaway.trace.records import AnswerRecord
from cutaway.views import view_of
from cutaway.views.parts.query import Query


@pytest.fixture(scope="module")
def model() -> Any:
    return engines.loaded()


def request(name: str, prompt: range = range(20, 45), **params: Any) -> Request:
    chosen = {"max_tokens": 12, "temperature": 0.8, "seed": 3, "ignore_eos": True, **params}
    return Request(request_id=name, prompt_token_ids=tuple(prompt), params=SamplingParams(**chosen))


def answer_of(engine: Engine, name: str, choice: int = 0) -> AnswerRecord:
    assert engine.ledger is not None
    found = engine.ledger.find(name, choice)
    assert found is not None
    return found


def told(engine: Engine, name: str, choice: int = 0) -> list[Any]:
    events = list(Teller(engine).events_of(answer_of(engine, name, choice)))
    assert None not in events, "an answer that has ended has something to tell until its end"
    return events


def served(engine: Engine, *requests: Request) -> dict[tuple[str, int], list[Delta]]:
    for each in requests:
        engine.add(each)
    heard: dict[tuple[str, int], list[Delta]] = defaultdict(list)
    while engine.has_work:
        for delta in engine.step():
            heard[delta.request_id, delta.choice].append(delta)
    return heard


def kinds(events: list[Any]) -> list[str]:
    return [event["type"] for event in events]


def test_events_are_what_was_served(model: Any) -> None:
    engine = engines.engine(model, prefill_chunk=16)
    wanted = [request("a", logprobs=3), request("b", range(30, 80), stop=("zz",), n=2)]
    heard = served(engine, *wanted)
    for (name, choice), deltas in heard.items():
        events = told(engine, name, choice)
        tokens = [event for event in events if event["type"] == "token"]
        assert [event["id"] for event in tokens] == [i for d in deltas for i in d.token_ids]
        text = "".join(event["shows"] for event in tokens) + events[-1]["rest"]
        assert text == "".join(delta.text for delta in deltas)
        last = deltas[-1]
        assert last.usage is not None and last.timings is not None
        assert events[-1]["usage"] == vars(last.usage)
        assert events[-1]["timings"] == vars(last.timings)
        assert events[-1]["reason"] == last.finish_reason
        assert kinds(events)[-2:] == ["cost", "end"]
    scores = [score for delta in heard["a", 0] for score in delta.logprobs]
    tokens = [event for event in told(engine, "a") if event["type"] == "token"]
    for event, score in zip(tokens, scores, strict=True):
        assert event["rank"] == score.rank
        assert [each[0] for each in event["top"]] == [token_id for token_id, _ in score.top]
        assert event["top"][0][2] == pytest.approx(score.top[0][1], abs=1e-5)
        assert event["probability"] == pytest.approx(math.exp(score.logprob), rel=1e-4)
        assert 0 <= event["u"] < 2**32


def test_the_beginning_says_what_ran_and_what_was_asked(model: Any) -> None:
    engine = engines.engine(engines.loaded(max_position_embeddings=1024))
    prompt = (*range(20, 45), engines.END, *range(46, 50)) * 20  # of several events
    asked = Request(request_id="long", prompt_token_ids=prompt, params=SamplingParams(max_tokens=2))
    served(engine, asked)
    events = told(engine, "long")
    start = events[0]
    assert (start["type"], start["trace_id"], start["choice"]) == ("start", "long", 0)
    assert start["page_size"] == 8 and start["num_prompt_tokens"] == len(prompt)
    assert start["seed"] == answer_of(engine, "long").seed
    layers = [layer for group in start["groups"] for layer in group["layers"]]
    assert sorted(layers) == list(range(start["num_layers"]))
    pieces = [event for event in events if event["type"] == "prompt"]
    assert len(pieces) == -(-len(prompt) // MAX_TOKENS) > 1
    assert [token_id for each in pieces for token_id in each["ids"]] == list(prompt)
    assert all(len(each["ids"]) == len(each["texts"]) <= MAX_TOKENS for each in pieces)
    stretches = [s for event in events if event["type"] == "template" for s in event["stretches"]]
    assert [s["writer"] for s in stretches] == ["prompt", "control"] * 20 + ["prompt"]
    assert sum(s["count"] for s in stretches) == len(prompt)
    assert stretches[2]["start"] == 26 and stretches[1]["text"] == "<eos>"


def test_steps_and_costs_are_those_of_the_views(model: Any) -> None:
    engine = engines.engine(model, prefill_chunk=8)
    served(engine, request("alone", range(20, 53)))
    events = told(engine, "alone")
    steps = [event for event in events if event["type"] == "step"]
    look = Look(engine, answer_of(engine, "alone"))
    timeline: Any = view_of("timeline").show(look.subject, Query()).payload
    assert [step["number"] for step in steps] == timeline.steps.tolist()
    assert [step["ended"] for step in steps] == pytest.approx(timeline.ended.tolist(), abs=1e-6)
    cost: Any = view_of("cost").show(look.subject, Query()).payload
    summed = next(event for event in events if event["type"] == "cost")
    # Nobody was beside it, so a step is all its own, by whatever rates.
    assert summed["seconds"] == pytest.approx(cost.seconds) == pytest.approx(summed["busy"])
    assert summed["bytes"] == pytest.approx(sum(stage.num_bytes for stage in cost.stages), rel=1e-6)
    assert summed["flops"] == pytest.approx(sum(stage.flops for stage in cost.stages), rel=1e-6)
    # The view tells apart what of the last stage turned ids into text.
    told_stages = [stage["name"] for stage in summed["stages"]]
    assert [*told_stages, "tokens to text"] == [stage.name for stage in cost.stages]
    begun = [page for step in steps for page in range(*step["pages"])]
    pages: Any = view_of("pages").show(look.subject, Query()).payload
    assert begun == list(range(pages.groups[0].num_pages))
    ends = {step["number"]: step["ended"] for step in steps}
    assert all(e["at"] == ends[e["step"]] for e in events if e["type"] == "token")


def test_found_pages_name_their_writer(model: Any) -> None:
    engine = engines.engine(model)
    served(engine, request("first"))
    served(engine, request("second"))
    (pages,) = [event for event in told(engine, "second") if event["type"] == "pages"]
    writer = answer_of(engine, "first").number
    assert pages["num_hit"] == 24 and list(pages["found"][0]) == [0, 3, writer]


def test_drafts_are_told_with_their_step(model: Any) -> None:
    engine = engines.engine(model, drafter=NGramDrafter())
    served(engine, request("drafted", range(20, 26), max_tokens=150, temperature=0.0))
    events = told(engine, "drafted")
    steps = [event for event in events if event["type"] == "step"]
    given: dict[int, int] = defaultdict(int)
    for event in events:
        if event["type"] == "token":
            given[event["step"]] += 1
    assert sum(step["drafts"] for step in steps) == engine.num_drafted > 0
    assert all(len(step["draft_ids"]) == step["drafts"] for step in steps)
    accepted = sum(given[step["number"]] - 1 for step in steps if step["drafts"])
    assert accepted == engine.num_accepted


def test_an_answer_that_is_made_tells_what_it_tells_later(model: Any) -> None:
    """After every step what is new is told, and together it is what a late listener gets."""
    engine = engines.engine(model, num_pages=14, prefill_chunk=16)
    wanted = [request(f"r{n}", range(20 + n, 60 + n), max_tokens=30) for n in range(3)]
    for each in wanted:
        engine.add(each)
    feeds = {
        each.request_id: Teller(engine).events_of(answer_of(engine, each.request_id))
        for each in wanted
    }
    live: dict[str, list[Any]] = {name: [] for name in feeds}
    num_new: dict[str, int] = defaultdict(int)
    while engine.has_work:
        engine.step()
        for name, feed in feeds.items():
            for event in feed:
                if event is None:
                    break
                live[name].append(event)
                num_new[name] += 1
    assert engine.scheduler.num_preemptions > 0, "an answer was sent back and began again"
    for name, events in live.items():
        assert events == told(engine, name)
        assert kinds(events).count("pages") == len(answer_of(engine, name).admissions)


def test_an_answer_that_is_ended_says_so(model: Any) -> None:
    engine = engines.engine(model)
    engine.add(request("cut"))
    engine.add(request("waits"))
    engine.step()
    engine.abort("cut")
    engine.abort("waits")
    engine.step()
    assert told(engine, "cut")[-1]["reason"] == "abort"
    late = engines.engine(model)
    late.add(request("never"))
    late.abort("never")
    late.step()
    assert kinds(told(late, "never")) == ["start", "template", "prompt", "cost", "end"]


def test_a_step_that_was_dropped_is_missed(model: Any) -> None:
    engine = engines.engine(model, ledger_bytes=9_000)
    engine.add(request("a", max_tokens=60))
    answer = answer_of(engine, "a")
    while engine.has_work:
        engine.step()
    assert not answer.is_whole
    with pytest.raises(ReplayError, match=r"is not in the ledger any more\. Raise ledger_bytes"):
        list(Teller(engine).events_of(answer))
