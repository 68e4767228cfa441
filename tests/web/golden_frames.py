"""Frames of views as the engine's side writes them, for tests of the page's reader.

`python tests/web/golden_frames.py` writes web/core/golden.json anew; a test holds them together.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path

import numpy as np

from cutaway.views import view_of
from cutaway.views.drift import Drift
from cutaway.views.parts.frame import frame_view
from cutaway.views.parts.payload import Payload
from cutaway.views.parts.replay_values import Proof
from cutaway.views.parts.view import Shown
from cutaway.views.probabilities import Below, Entry, Probabilities
from cutaway.views.weights import Weights

GOLDEN = Path(__file__).resolve().parents[2] / "web" / "core" / "golden.json"


def _weights() -> Weights:
    """Integers, bytes and floats as arrays."""
    return Weights(
        name="blocks.0.mlp.down",
        rows=3,
        columns=2,
        stored="float32",
        num_bytes=24,
        num_numbers=6,
        bits_per_number=32.0,
        mean=0.5,
        deviation=0.25,
        least=-1.0,
        most=2.0,
        zeros=0.0,
        outside=0.0,
        edges=np.array([-1, 0, 1], np.float32),
        counts=np.array([5, 2**40 + 1], np.int64),
        thumbnail=np.array([[0, 255], [7, 128], [1, 2]], np.uint8),
        thumbnail_scale=0.5,
        others=("blocks.0.mlp.up",),
    )


def _drift() -> Drift:
    """What is not finite, an empty array, and words beyond ASCII."""
    return Drift(
        position=2,
        text="\u00b7d\u00e9j\u00e0",
        own=np.array([1, -np.inf, 0.25], np.float32),
        other=None,
        between=np.zeros(0, np.float32),
        context=("na\u00efve \U0001f4a1",),
        is_far=False,
    )


def _probabilities() -> Probabilities:
    """Nested records without any array."""
    entry = Entry(token_id=7, text="a", probability=0.75, logprob=-0.28768207, rank=1)
    return Probabilities(
        token=0,
        before="b",
        vocab_size=320,
        chosen=entry,
        top=(entry,),
        tail_mass=0.25,
        entropy=1.0,
        below=(Below(probability=0.01, num_entries=300, mass=0.125),),
        lookups=(),
    )


def frames() -> dict[str, str]:
    """Each view's frame, in base64."""
    exact, differs = Proof("invariant", 3, 3), Proof("invariant", 3, 1, "the plan")
    shown: tuple[tuple[Payload, str, Proof | None], ...] = (
        (_weights(), "weights", None),
        (_drift(), "drift", exact),
        (_probabilities(), "probabilities", differs),
    )
    return {
        view: base64.b64encode(frame_view(Shown(view_of(view), payload, proof))).decode()
        for payload, view, proof in shown
    }


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps(frames(), indent=1) + "\n", encoding="ascii")
