"""A clock that ticks when it is asked, for tests of what times are made into."""

from __future__ import annotations

from itertools import count

import pytest

from cutaway.engine import engine, recorder, running


def tick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the engine ask such a clock: times tell how often alone, in steps that add up exactly."""
    ticks = count()
    for module in (engine, recorder, running):
        monkeypatch.setattr(module, "perf_counter", lambda: next(ticks) / 1024)
