"""The frames that the page's reader is tested with are those that the server writes today."""

from __future__ import annotations

import json

from golden_frames import GOLDEN, frames


def test_golden_frames_are_up_to_date() -> None:
    kept = json.loads(GOLDEN.read_text(encoding="ascii"))
    assert kept == frames(), "run: python tests/web/golden_frames.py"
