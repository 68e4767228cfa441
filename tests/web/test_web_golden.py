"""The frames that the page's reader is tested with are those that the server writes today."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, cast

import golden_draws
import golden_rotary
import golden_tour
import golden_tour_late
import pytest
from golden_frames import GOLDEN, frames


def test_golden_frames_are_up_to_date() -> None:
    kept = json.loads(GOLDEN.read_text(encoding="ascii"))
    assert kept == frames(), "run: python tests/web/golden_frames.py"


def test_golden_draws_are_what_the_engine_draws() -> None:
    kept = json.loads(golden_draws.GOLDEN.read_text(encoding="ascii"))
    assert len(kept) == golden_draws.NUM_ROWS
    for number in range(0, len(kept), 8):  # all of them take 11 s
        assert kept[number] == golden_draws.case_of(number), "run: python tests/web/golden_draws.py"


def test_what_the_tour_is_tested_with_is_what_the_server_writes() -> None:
    kept = json.loads(golden_tour.GOLDEN.read_text(encoding="ascii"))
    assert kept == json.loads(json.dumps(golden_tour.golden())), (
        "run: python tests/web/golden_tour.py"
    )
    late = json.loads(golden_tour_late.GOLDEN.read_text(encoding="ascii"))
    assert late == golden_tour_late.golden(), "run: python tests/web/golden_tour_late.py"


def test_golden_speeds_and_waves_are_those_of_the_engine() -> None:
    kept, now = json.loads(golden_rotary.GOLDEN.read_text(encoding="ascii")), golden_rotary.golden()
    assert [*numbers(kept)] == pytest.approx([*numbers(now)], rel=1e-13, abs=1e-15), (
        "run: python tests/web/golden_rotary.py"
    )


def numbers(value: Any) -> Iterator[float]:
    """All numbers of nested values, in order. Powers differ in their last digit by machine."""
    if isinstance(value, dict):
        value = list(cast("dict[str, Any]", value).values())
    if isinstance(value, list):
        for each in cast("list[Any]", value):
            yield from numbers(each)
    else:
        yield value
