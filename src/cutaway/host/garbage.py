"""Python's cycle collector, held off while a process imports and loads: nothing dies then."""

from __future__ import annotations

import gc
from collections.abc import Generator
from contextlib import contextmanager

# New objects, less those that died, after which the young ones are walked; Python's own is some
# hundreds. A step of 256 answers makes thousands, nearly all of which die before the next: with
# Python's number, walking them and the record of answers took as long as all else a step does.
YOUNG = 50_000


@contextmanager
def hold_off() -> Generator[None]:
    """No collection inside; what the process's first use made is never walked again.

    Importing torch and loading a model make a million objects, and the collector walks them all
    several times to find nothing. Later it would walk them in the middle of a step. What comes
    later is walked seldom.
    """
    with stop_collecting():
        try:
            yield
        finally:
            # A second model of one process may be let go, cycles and all.
            if not gc.get_freeze_count():
                gc.freeze()
                gc.set_threshold(YOUNG, *gc.get_threshold()[1:])


@contextmanager
def stop_collecting() -> Generator[None]:
    """No collection inside."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
