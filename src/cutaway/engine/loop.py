"""An engine at work: commands before steps, and sleep when there is neither.

It knows neither who commands nor who listens: the same loop runs in a thread of a program and in
a process of its own.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from queue import Empty, SimpleQueue

from cutaway.core.errors import CutawayError
from cutaway.core.output import Delta
from cutaway.core.request import Request
from cutaway.engine.engine import Engine
from cutaway.engine.feeds import Feeds
from cutaway.engine.lane import Lane

# Called on the engine's thread, between two steps. None ends the loop.
Commands = SimpleQueue[Callable[[], None] | None]


def run(
    engine: Engine,
    lane: Lane,
    feeds: Feeds,
    commands: Commands,
    tell: Callable[[list[Delta]], None],
) -> None:
    """Obey and step until told to end; looks have the moments without work.

    Who listens to answers is told between two steps, a little at a time.

    tell: takes what each step says, be it nothing.

    Raises: what a step raises; the engine is of no use after that.
    """
    while True:
        try:
            is_idle = not (engine.has_work or lane.has_work or feeds.has_work)
            command = commands.get(block=is_idle)
        except Empty:
            if engine.has_work:
                tell(engine.step())
            elif lane.has_work:
                lane.step()
                tell([])
            feeds.step()
            continue
        if command is None:
            return
        command()


def take_in(engine: Engine, request: Request) -> CutawayError | None:
    """Add a request; returns why not, where it cannot be added.

    A fault of our own ends the request alone as well, since a request that raises while it is
    added leaves no trace. What the fault is stands on stderr.
    """
    try:
        engine.add(request)
    except CutawayError as error:
        return error
    except Exception:
        print("a request raised while it was added; it ends alone.", file=sys.stderr)
        traceback.print_exc()
        return CutawayError("this request cannot be answered because of a fault of Cutaway itself.")
    return None
