"""A count that moves while this process works: how a watchdog tells long work from a hang.

It is one per process, as the work is: whoever comes to a place that a long step passes often, as
each layer and each tensor that is loaded, beats it, and any thread may read it. Inside a native
step the library counts its operations itself.
"""

from __future__ import annotations


class Pulse:
    """Beats so far. Two threads that beat at once may count as one: it moves all the same."""

    def __init__(self) -> None:
        self.count = 0

    def beat(self) -> None:
        """Say that work goes on."""
        self.count += 1


PULSE = Pulse()
