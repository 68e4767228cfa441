"""Listeners: told between steps, a little at a time, and no trace of those who left."""

from __future__ import annotations

import json
from typing import Any

import pytest

import engines
from cutaway.core.errors import CutawayError, OverloadedError, ReplayError
from cutaway.core.looks import EventBatch, EventRequest
from cutaway.core.request import Request, SamplingParams
from cutaway.engine.engine import Engine
from cutaway.service.answer_events import Teller
from cutaway.service.feeds import MAX_EVENTS, MAX_OF_OWNER, MAX_OPEN, Feeds
from cutaway.trace.events import Event
from cutaway.trace.records import AnswerRecord


@pytest.fixture(scope="module")
def model() -> Any:
    return engines.loaded()


def request(name: str, *, owner: str = "", **params: Any) -> Request:
    chosen = SamplingParams(**{"max_tokens": 40, "ignore_eos": True, "seed": 1, **params})
    return Request(
        request_id=name, prompt_token_ids=tuple(range(20, 45)), params=chosen, owner=owner
    )


def listened(name: str, **places: Any) -> EventRequest:
    return EventRequest(**{"request_id": name, "choice": 0, "owner": "", **places})


class Listener:
    """Takes what it is told; asks for more when it wants to."""

    def __init__(self, feeds: Feeds, asked: EventRequest) -> None:
        self._feeds = feeds
        self.batches: list[EventBatch] = []
        self.error: CutawayError | None = None
        feeds.open(self, asked, self._take)

    def _take(self, told: EventBatch | CutawayError) -> None:
        if isinstance(told, EventBatch):
            self.batches.append(told)
        else:
            self.error = told

    @property
    def events(self) -> list[Any]:
        return [json.loads(data) for batch in self.batches for _, data in batch.events]

    @property
    def numbers(self) -> list[int]:
        return [number for batch in self.batches for number, _ in batch.events]

    @property
    def is_over(self) -> bool:
        return bool(self.batches) and self.batches[-1].is_last

    def listen(self) -> None:
        """All there is, without another step of the engine."""
        self._feeds.more(self)
        while self._feeds.has_work:
            self._feeds.step()
            self._feeds.more(self)


def served(engine: Engine, *requests: Request) -> None:
    for each in requests:
        engine.add(each)
    while engine.has_work:
        engine.step()


def test_a_late_listener_gets_everything_in_order(model: Any) -> None:
    engine = engines.engine(model)
    feeds = Feeds(engine)
    served(engine, request("a"))
    listener = Listener(feeds, listened("a"))
    assert feeds.has_work
    listener.listen()
    assert listener.numbers == list(range(len(listener.events)))
    assert all(event["schema"] == 1 for event in listener.events)
    assert listener.events[-1]["type"] == "end" and feeds.num_open == 0
    assert all(len(batch.events) <= MAX_EVENTS for batch in listener.batches)
    assert len(listener.batches) > 1, "more was there than is told at once"
    assert not feeds.has_work


def test_any_event_can_be_the_last_that_is_known(model: Any) -> None:
    engine = engines.engine(model)
    feeds = Feeds(engine)
    served(engine, request("a"))
    whole = Listener(feeds, listened("a"))
    whole.listen()
    for after in (0, 3, 70, len(whole.events) - 2, len(whole.events) - 1, 10**6):
        resumed = Listener(feeds, listened("a", after=after))
        resumed.listen()
        assert resumed.is_over and resumed.events == whole.events[after + 1 :]
        assert resumed.numbers == whole.numbers[after + 1 :]


def test_steps_do_not_wait_for_who_does_not_listen(model: Any) -> None:
    """A sleeper gets one batch and no more is made for it, however long the answer grows."""
    engine = engines.engine(model)
    feeds = Feeds(engine)
    engine.add(request("a", max_tokens=150))
    engine.step()
    sleeper = Listener(feeds, listened("a"))
    while engine.has_work:
        engine.step()
        feeds.step()
    assert len(sleeper.batches) == 1 and not feeds.has_work
    feeds.more(sleeper)
    sleeper.listen()
    assert sleeper.is_over and sleeper.numbers == list(range(len(sleeper.events)))


def test_between_two_steps_few_events_are_made_for_all_together(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Event] = []
    told = Teller.events_of

    def counted(self: Teller, answer: AnswerRecord) -> Any:
        for event in told(self, answer):
            if event is not None:
                made.append(event)
            yield event

    monkeypatch.setattr(Teller, "events_of", counted)
    engine = engines.engine(model)
    feeds = Feeds(engine)
    served(engine, request("a", max_tokens=60))
    listeners = [Listener(feeds, listened("a")) for _ in range(8)]
    while not all(each.is_over for each in listeners):
        before = len(made)
        feeds.step()
        assert 0 < len(made) - before <= MAX_EVENTS
        for each in listeners:
            feeds.more(each)
    assert all(each.events == listeners[0].events for each in listeners)


def test_who_waits_does_not_keep_an_idle_engine_busy(model: Any) -> None:
    engine = engines.engine(model)
    feeds = Feeds(engine)
    engine.add(request("a"))
    engine.step()
    listener = Listener(feeds, listened("a"))
    listener.listen()
    assert not listener.is_over and not feeds.has_work, "nothing is new before the next step"
    engine.abort("a")
    engine.step()
    feeds.step()
    assert listener.is_over and listener.events[-1]["reason"] == "abort"


def test_leaving_leaves_nothing(model: Any) -> None:
    engine = engines.engine(model)
    feeds = Feeds(engine)
    engine.add(request("a"))
    engine.step()
    listener = Listener(feeds, listened("a"))
    feeds.leave(listener)
    feeds.leave(listener)  # may be said again
    feeds.more(listener)
    assert feeds.num_open == 0 and not feeds.has_work
    while engine.has_work:
        engine.step()
        feeds.step()
    assert not listener.batches


def test_an_answer_is_its_owners(model: Any) -> None:
    engine = engines.engine(model)
    feeds = Feeds(engine)
    served(engine, request("a", owner="ann"))
    for asked in (listened("a"), listened("a", owner="ben"), listened("a", choice=1, owner="ann")):
        refused = Listener(feeds, asked)
        assert isinstance(refused.error, ReplayError) and "no record" in str(refused.error)
    Listener(feeds, listened("a", owner="ann")).listen()
    assert feeds.num_open == 0


def test_no_more_listen_than_are_let_in(model: Any) -> None:
    engine = engines.engine(model)
    feeds = Feeds(engine)
    owners = [f"o{number}" for number in range(MAX_OPEN // MAX_OF_OWNER + 1)]
    served(engine, *(request("a", owner=owner, max_tokens=1) for owner in owners))
    listeners = [Listener(feeds, listened("a", owner="o0")) for _ in range(MAX_OF_OWNER)]
    refused = Listener(feeds, listened("a", owner="o0"))
    assert isinstance(refused.error, OverloadedError) and "32 of one owner" in str(refused.error)
    listeners += [
        Listener(feeds, listened("a", owner=owner))
        for owner in owners[1:-1]
        for _ in range(MAX_OF_OWNER)
    ]
    assert feeds.num_open == MAX_OPEN
    last = Listener(feeds, listened("a", owner=owners[-1]))
    assert isinstance(last.error, OverloadedError) and last.error.retry_after == 5
    feeds.leave(listeners[0])
    assert Listener(feeds, listened("a", owner=owners[-1])).error is None


def test_a_fault_ends_one_stream_alone(
    model: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = engines.engine(model)
    served(engine, request("a"), request("b", max_tokens=3))
    feeds = Feeds(engine)
    told = Teller.events_of

    def broken(self: Teller, answer: AnswerRecord) -> Any:
        if answer.request.request_id == "a":
            raise ZeroDivisionError
        yield from told(self, answer)

    monkeypatch.setattr(Teller, "events_of", broken)
    one, other = Listener(feeds, listened("a")), Listener(feeds, listened("b"))
    one.listen()
    other.listen()
    assert other.is_over and one.error is not None
    assert "a fault of Cutaway itself" in str(one.error)
    assert "ZeroDivisionError" in capsys.readouterr().err
