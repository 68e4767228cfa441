"""The loop of a peer's script: one JSON question a line in, one JSON answer a line out.

Peers may live in another environment, where Cutaway is not installed: this file and the scripts
beside it import nothing of it, except run_cutaway.py.
"""

from __future__ import annotations

import json
import os
import random
import sys
from typing import Protocol, TextIO


class PeerEngine(Protocol):
    """An engine with a loaded model."""

    versions: str

    def prefill(self, tokens: int) -> float:
        """Seconds to compute a prompt of so many tokens and its first new token."""
        ...

    def decode(self, context: int, sequences: int, steps: int) -> float:
        """Seconds per step of so many sequences that have so much context: the median of steps."""
        ...


class Enduring(PeerEngine, Protocol):
    """A peer engine that also tells what stalls cost."""

    def stretch(self, context: int, sequences: int, steps: int) -> float:
        """Seconds per step as decode has them, but all steps' time over their number."""
        ...


def token_ids(count: int, seed: int = 0) -> list[int]:
    """Ids that every vocabulary here has."""
    random_source = random.Random(f"{count} {seed}")
    return [random_source.randrange(1000, 48000) for _ in range(count)]


def answers() -> TextIO:
    """Where answers go: stdout as it was, while libraries that print get stderr instead."""
    kept = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return kept


def serve(engine: PeerEngine, out: TextIO) -> None:
    """Answer until the input ends."""
    _say(out, {"versions": engine.versions})
    for line in sys.stdin:
        question = json.loads(line)
        try:
            _say(out, {"value": getattr(engine, question.pop("ask"))(**question)})
        except Exception as error:
            _say(out, {"error": f"{type(error).__name__}: {error}"})


def _say(out: TextIO, answer: dict[str, object]) -> None:
    out.write(json.dumps(answer) + "\n")
    out.flush()
