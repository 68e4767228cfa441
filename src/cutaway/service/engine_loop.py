"""An engine at work: commands before steps, and sleep when there is neither.

It knows neither who commands nor who listens: the same loop runs in a thread of a program and in
a process of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from queue import SimpleQueue
from time import perf_counter

from cutaway.core.errors import CutawayError
from cutaway.core.output import Delta, ToldChoice
from cutaway.core.request import Request
from cutaway.engine.engine import Engine
from cutaway.host.faults import again, error_of, note
from cutaway.service.feeds import Feeds
from cutaway.service.view_queue import ViewQueue

# Called on the engine's thread, between two steps. None ends the loop.
Commands = SimpleQueue[Callable[[], None] | None]

STEPS_PER_LOOK = 9  # seconds of steps for one of looks, while there are both

MOST_FAULTS = 3  # steps in a row that raise as a whole: a fault that stays is nobody's own


def run(
    engine: Engine,
    view_queue: ViewQueue,
    feeds: Feeds,
    commands: Commands,
    tell: Callable[[list[Delta]], None],
) -> None:
    """Obey and step until told to end; looks have the moments without work, and a tenth of others.

    Who listens to answers is told between two steps, a little at a time.

    tell: takes what each step says, be it nothing.

    A command that raises ends alone; so does what a step finds at fault by itself. Raises: what a
    step raises MOST_FAULTS times in a row; the engine is of no use after that.
    """
    num_faults, turns = 0, LookTurns()
    while True:
        is_idle = not (engine.has_work or view_queue.has_work or feeds.has_work)
        if is_idle or not commands.empty():
            command = commands.get()
            if command is None:
                return
            _obey(command)
            continue
        try:
            _go_on(engine, view_queue, feeds, tell, turns)
            num_faults = 0
        except Exception as fault:
            num_faults += 1
            if num_faults == MOST_FAULTS:
                raise
            note("a step raised as a whole, and is done again.", fault)


def _obey(command: Callable[[], None]) -> None:
    try:
        command()
    except Exception as fault:
        note("a command raised; it ends alone.", fault)


class LookTurns:
    """When looks have a turn beside an answer without end: their share is of time, not of turns."""

    def __init__(self) -> None:
        self._owed = 0.0  # seconds of steps, before looks have another turn

    def is_due(self) -> bool:
        """Whether steps have had what they get for the last look."""
        return self._owed <= 0

    def note_step(self, seconds: float) -> None:
        """A step took so long while a look waited."""
        self._owed -= seconds

    def note_look(self, seconds: float) -> None:
        """A piece of a look took so long."""
        self._owed = STEPS_PER_LOOK * seconds


def _go_on(
    engine: Engine,
    view_queue: ViewQueue,
    feeds: Feeds,
    tell: Callable[[list[Delta]], None],
    turns: LookTurns,
) -> None:
    has_stepped = engine.has_work
    if has_stepped:
        began = perf_counter()
        again(partial(tell, engine.step()))
        turns.note_step(perf_counter() - began)
    if view_queue.has_work and (not has_stepped or turns.is_due()):
        began = perf_counter()
        view_queue.step()
        turns.note_look(perf_counter() - began)
        tell([])
    feeds.step()


def take_in(
    engine: Engine, request: Request, told: Sequence[ToldChoice] = ()
) -> CutawayError | None:
    """Add a request, or go on with it from what was told; returns why not, where it cannot be.

    A fault of our own ends the request alone as well, since a request that raises while it is
    added leaves no trace.
    """
    try:
        engine.add(request, told)
    except CutawayError as error:
        return error
    except Exception as fault:
        note("a request raised while it was added; it ends alone.", fault)
        return error_of(fault, "this request cannot be answered")
    return None
