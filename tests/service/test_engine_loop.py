"""The loop at work: looks end beside answers without end, and take no more than their share."""

from __future__ import annotations

from queue import SimpleQueue
from typing import Any

from cutaway.service import engine_loop
from cutaway.service.engine_loop import STEPS_PER_LOOK, LookTurns


def test_looks_have_a_tenth_of_the_time_beside_steps() -> None:
    turns, seconds = LookTurns(), {"steps": 0.0, "looks": 0.0}
    longest_wait, waited = 0.0, 0.0
    for number in range(10_000):
        step, piece = 0.004 + number % 3 / 1000, 0.005 + number % 7 / 1000
        seconds["steps"] += step
        waited += step
        turns.note_step(step)
        if turns.is_due():
            longest_wait, waited = max(longest_wait, waited), 0.0
            seconds["looks"] += piece
            turns.note_look(piece)
    share = seconds["looks"] / sum(seconds.values())
    assert 0.09 < share <= 1 / (1 + STEPS_PER_LOOK)
    assert longest_wait < STEPS_PER_LOOK * 0.011 + 0.006


class Endless:
    """An engine whose answer never ends. num_steps: of it so far."""

    has_work, num_steps = True, 0

    def step(self) -> list[Any]:
        self.num_steps += 1
        return []


class Looks:
    """Looks of so many pieces; the last one ends the loop."""

    def __init__(self, num: int, commands: SimpleQueue[Any]) -> None:
        self.left, self._commands = num, commands

    @property
    def has_work(self) -> bool:
        return self.left > 0

    def step(self) -> None:
        self.left -= 1
        if not self.left:
            self._commands.put(None)


class NoFeeds:
    has_work = False

    def step(self) -> None:
        pass


def test_a_look_ends_beside_an_answer_that_never_ends() -> None:
    commands: SimpleQueue[Any] = SimpleQueue()
    engine, looks = Endless(), Looks(20, commands)
    engine_loop.run(engine, looks, NoFeeds(), commands, lambda _: None)  # type: ignore[arg-type]
    assert not looks.left and engine.num_steps >= 20, "each piece has its turn behind a step"
