"""Python's cycle collector, held off while a process imports and loads: nothing dies then."""

from __future__ import annotations

import gc
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def held_off() -> Generator[None]:
    """No collection inside; what the process's first use made is never walked again.

    Importing torch and loading a model make a million objects, and the collector walks them all
    several times to find nothing. Later it would walk them in the middle of a step.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if not gc.get_freeze_count():  # a second model of one process may be let go, cycles and all
            gc.freeze()
        if was_on:
            gc.enable()
