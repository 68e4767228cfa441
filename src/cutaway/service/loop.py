"""An engine at work: commands before steps, and sleep when there is neither.

It knows neither who commands nor who listens: the same loop runs in a thread of a program and in
a process of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from queue import SimpleQueue

from cutaway.core.errors import CutawayError
from cutaway.core.output import Delta
from cutaway.core.request import Request
from cutaway.engine.engine import Engine
from cutaway.host.faults import again, error_of, note
from cutaway.service.feeds import Feeds
from cutaway.service.view_queue import ViewQueue

# Called on the engine's thread, between two steps. None ends the loop.
Commands = SimpleQueue[Callable[[], None] | None]

MOST_FAULTS = 3  # steps in a row that raise as a whole: a fault that stays is nobody's own


def run(
    engine: Engine,
    view_queue: ViewQueue,
    feeds: Feeds,
    commands: Commands,
    tell: Callable[[list[Delta]], None],
) -> None:
    """Obey and step until told to end; looks have the moments without work.

    Who listens to answers is told between two steps, a little at a time.

    tell: takes what each step says, be it nothing.

    A command that raises ends alone; so does what a step finds at fault by itself. Raises: what a
    step raises MOST_FAULTS times in a row; the engine is of no use after that.
    """
    num_faults = 0
    while True:
        is_idle = not (engine.has_work or view_queue.has_work or feeds.has_work)
        if is_idle or not commands.empty():
            command = commands.get()
            if command is None:
                return
            _obey(command)
            continue
        try:
            _go_on(engine, view_queue, feeds, tell)
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


def _go_on(
    engine: Engine, view_queue: ViewQueue, feeds: Feeds, tell: Callable[[list[Delta]], None]
) -> None:
    if engine.has_work:
        again(partial(tell, engine.step()))
    elif view_queue.has_work:
        view_queue.step()
        tell([])
    feeds.step()


def take_in(engine: Engine, request: Request) -> CutawayError | None:
    """Add a request; returns why not, where it cannot be added.

    A fault of our own ends the request alone as well, since a request that raises while it is
    added leaves no trace.
    """
    try:
        engine.add(request)
    except CutawayError as error:
        return error
    except Exception as fault:
        note("a request raised while it was added; it ends alone.", fault)
        return error_of(fault, "this request cannot be answered")
    return None
