"""How often a test tries: a few times in the suite, the plan's figure under bench/reliability.py.

A test that repeats itself asks `trials` how often and `seed` from which draw on, and says what it
did with `ran`: the plan counts that, and nothing that was only meant to run. One whose size is a
matter of patience alone asks `patience`: CI has two slow cores and draws the same each time.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

_ASKED = os.environ.get("PLAN_TRIALS")
IN_FULL = _ASKED is not None


def trials(few: int) -> int:
    """Trials of this run; few is what the suite has time for."""
    return int(_ASKED) if _ASKED else few


def patience(whole: int, *, in_ci: int) -> int:
    """A size of this run: the whole one, less in CI."""
    return in_ci if os.environ.get("CI") and not IN_FULL else whole


def seed(usual: int) -> int:
    """The seed of this run; the plan gives each of its slices another one."""
    return int(os.environ["PLAN_SEED"]) if IN_FULL else usual


def ran(count: int, **figures: Any) -> None:
    """Say that so many trials were done and none failed, and what was measured beside.

    figures: numbers, of which the plan's table shows the largest of all slices.
    """
    print(f"{count} trials", *(f"{name} {value}" for name, value in figures.items()), sep=", ")
    log = os.environ.get("PLAN_LOG")
    if log:
        with Path(log).open("a", encoding="utf-8") as file:
            file.write(json.dumps({"count": count, "figures": figures}) + "\n")
