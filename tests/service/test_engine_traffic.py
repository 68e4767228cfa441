"""The door before the queue: how much waits, whose it is, when to come again, and the end."""

from __future__ import annotations

import asyncio

import pytest

from cutaway.core.errors import ConfigError, OverloadedError
from cutaway.core.request import Request, SamplingParams
from cutaway.service.bounds import TrafficConfig
from cutaway.service.traffic import AdmittedRequest, Traffic


class Clock:
    """A clock that tests move."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def request(owner: str = "", num_tokens: int = 1, *, n: int = 1) -> Request:
    return Request(
        request_id="r",
        prompt_token_ids=(1,) * num_tokens,
        params=SamplingParams(n=n),
        owner=owner,
    )


def traffic(
    *, max_sequences: int = 2, cache_tokens: int = 100, clock: Clock | None = None, **config: int
) -> Traffic:
    return Traffic(
        TrafficConfig(**config),
        max_sequences=max_sequences,
        cache_tokens=cache_tokens,
        clock=clock or Clock(),
    )


def fill(target: Traffic, owner: str = "", num_tokens: int = 1) -> list[AdmittedRequest]:
    """Enter until the door is closed."""
    places: list[AdmittedRequest] = []
    while True:
        try:
            places.append(target.enter(request(owner, num_tokens)))
        except OverloadedError:
            return places


def test_requests_are_bounded_and_leaving_makes_room() -> None:
    target = traffic(max_sequences=2)  # 8 may wait beside 2 that run
    places = fill(target)
    assert len(places) == target.num_open == 8
    target.leave(places.pop())
    places.append(target.enter(request()))
    with pytest.raises(OverloadedError, match="takes 10 answers at once"):
        target.enter(request())


def test_h11_n_answers_count_as_n() -> None:
    target = traffic(max_sequences=2)  # 8 may wait beside 2 that run
    large = target.enter(request(n=7))
    with pytest.raises(OverloadedError):
        target.enter(request("other", n=4))
    with target.enter(request("other", n=3)):
        assert target.num_open == 10
    target.leave(large)
    with target.enter(request(n=99)):  # nobody else is there
        assert fill(target) == []
    assert target.num_open == 0


def test_prompt_tokens_are_bounded_until_their_answer_begins() -> None:
    target = traffic(max_waiting_tokens=100, max_waiting=1000)
    places = fill(target, num_tokens=10)
    assert len(places) == 8
    with pytest.raises(OverloadedError, match="takes 100 tokens of prompts that wait"):
        target.enter(request(num_tokens=10))
    places[0].begin()
    places[0].begin()
    assert len(fill(target, num_tokens=10)) == 1
    target.leave(places[0])  # begun: its tokens are not given back twice
    assert fill(target, num_tokens=10) == []


def test_whoever_comes_to_an_empty_queue_is_let_in() -> None:
    target = traffic(max_waiting_tokens=1)
    with target.enter(request(num_tokens=500)):
        assert fill(target, num_tokens=1) == []
    assert len(fill(target, num_tokens=500)) == 1


def test_a_flood_of_one_owner_leaves_room_for_others() -> None:
    target = traffic(max_sequences=64)
    assert len(fill(target, "flood")) == 256
    for number in range(9):
        target.enter(request(f"other{number}"))
    assert target.num_open == 265
    for number in range(1000):
        if target.num_open == 320:
            break
        target.enter(request(f"crowd{number}"))
    with pytest.raises(OverloadedError):
        target.enter(request("one too many"))


def test_when_to_come_again_follows_how_long_others_waited() -> None:
    clock = Clock()
    target = traffic(clock=clock, max_sequences=1, max_waiting=4)
    places = fill(target)
    with pytest.raises(OverloadedError) as fault:
        target.enter(request())
    assert fault.value.retry_after == 1
    clock.now += 12.5
    with pytest.raises(OverloadedError, match=r"again in 13 seconds\.") as fault:
        target.enter(request())
    assert fault.value.retry_after == 13  # the oldest has waited so long already
    clock.now += 1000
    with pytest.raises(OverloadedError) as fault:
        target.enter(request())
    assert fault.value.retry_after == 60
    for place in places:
        place.begin()
    with pytest.raises(OverloadedError) as fault:
        target.enter(request())
    assert fault.value.retry_after == 60  # nobody waits now, but they did


def test_a_place_is_left_whatever_happens_inside() -> None:
    target = traffic()
    with pytest.raises(ZeroDivisionError), target.enter(request()):
        raise ZeroDivisionError
    assert target.num_open == 0


def test_drain_waits_for_the_last_and_lets_nobody_in() -> None:
    async def body() -> None:
        target = traffic()
        place = target.enter(request())
        draining = asyncio.create_task(target.drain(60))
        await asyncio.sleep(0)
        with pytest.raises(OverloadedError, match="takes nothing new in") as fault:
            target.enter(request())
        assert fault.value.retry_after == 30
        assert not draining.done()
        target.leave(place)
        await draining

    asyncio.run(body())


def test_drain_gives_up_when_its_time_is_over() -> None:
    async def body() -> None:
        target = traffic()
        target.enter(request())
        await target.drain(0)
        assert target.num_open == 1

    asyncio.run(body())


@pytest.mark.parametrize("name", ["max_waiting", "max_waiting_tokens"])
def test_a_bound_of_nothing_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} is 0; it must be at least 1"):
        TrafficConfig(**{name: 0})
