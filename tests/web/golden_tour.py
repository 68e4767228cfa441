"""What views gave of one made-up answer, as frames, for tests of the tour's chapters.

`python tests/web/golden_tour.py` writes web/core/golden_tour.json anew; a test holds them together.
"""

from __future__ import annotations

import base64
import json
import types
import typing
from pathlib import Path
from typing import Any

import numpy as np

from cutaway.server.looks.learn_routes import _learned
from cutaway.views import view_of
from cutaway.views.characters import Characters
from cutaway.views.cost import AnswerCost, Mode, Share
from cutaway.views.detokenization import Detokenization
from cutaway.views.drift import Drift
from cutaway.views.embeddings import Analogy, Embeddings, EmbeddingWindow, Neighbour
from cutaway.views.experts import ExpertRoutes
from cutaway.views.merges import Merges, MergeStep, PieceMerges
from cutaway.views.pages import AnswerPages
from cutaway.views.parts.frame import frame_view
from cutaway.views.parts.payload import Payload
from cutaway.views.parts.view import Shown
from cutaway.views.positions import Positions
from cutaway.views.residual import Residual
from cutaway.views.template import Expansion, Stretch
from cutaway.views.timeline import Phase, Timeline
from cutaway.views.tokens import Tokens

GOLDEN = Path(__file__).resolve().parents[2] / "web" / "core" / "golden_tour.json"
Kind = typing.TypeVar("Kind")
PLAIN: dict[Any, Any] = {int: 0, float: 0.0, str: "", bool: False, tuple: (), dict: {}}


def made(of: type[Kind], /, **told: Any) -> Kind:
    """A payload of which only what a chapter reads is told; the rest is empty."""
    hints = typing.get_type_hints(of)
    return of(**{name: told.pop(name) if name in told else _empty(hints[name]) for name in hints})


def _empty(hint: Any) -> Any:
    origin = typing.get_origin(hint) or hint
    if origin in (types.UnionType, typing.Union):
        return None
    if origin is np.ndarray:
        return np.zeros(0, np.float32)
    return next((value for kind, value in PLAIN.items() if issubclass(origin, kind)), {})


def floats(*values: float) -> np.ndarray[Any, Any]:
    return np.array(values, np.float32)


def payloads() -> dict[str, Payload]:
    """By view; behind a question mark the text that was asked for."""
    step = MergeStep(rank=3, left="h", right="e", token_id=255, parts=("he", "y"))
    near = [
        Neighbour(token_id=i, text=t, cosine=c, rank=i)
        for i, t, c in ((1, "\u00b7pull", 0.75), (2, "\u00b7fall", 0.5))
    ]
    queen = Neighbour(token_id=9, text="\u00b7queen", cosine=0.7, rank=2)
    analogy = made(Analogy, nearest=tuple(near), expected=queen, rank_without=1)
    row = made(
        Embeddings,
        text="\u00b7gravity",
        position=5,
        width=576,
        vocab_size=49152,
        lowest=-0.5,
        highest=0.25,
        norm=2.5,
        mean_cosine=0.125,
        neighbours=tuple(near),
        window=made(EmbeddingWindow, explained=(0.0, 0.0)),
        analogy=analogy,
    )
    tokens: dict[str, Any] = {
        "texts": ("What", "\u00b7is", "\u00b7is", "<|end|>", "\u00b7pull", "."),
        "token_ids": (7, 3, 3, 1, 8, 9),
        "num_bytes": (4, 3, 3, 7, 5, 1),
        "is_control": (False, False, False, True, False, False),
        "num_prompt": 3,
    }
    phases = (Phase("queue", 0.0, 0.0), Phase("forward", 0.25, 1.5), Phase("sampling", 0.125, 0.5))
    writers = (("control", 12), ("template", 30), ("conversation", 16))
    stretches = tuple(Stretch(writer, "", size) for writer, size in writers)  # pyright: ignore[reportArgumentType]
    return {
        "characters": made(
            Characters, text="What is it?", num_characters=11, num_bytes=11, num_graphemes=11
        ),
        "characters?\u00e9": made(
            Characters, text="\u00e9", num_characters=2, num_bytes=3, num_graphemes=1
        ),
        "template": made(Expansion, stretches=stretches, num_control=2, is_known=True),
        "timeline": made(Timeline, phases=phases, first_token=0.375, num_layers=30),
        "tokens": made(Tokens, **tokens, num_words=(2, 1)),
        "tokens?e": made(Tokens, **tokens, num_words=(2, 1), num_letters=(0, 0, 0, 1, 0, 2)),
        "merges": made(
            Merges, pieces=(made(PieceMerges, text="\u00b7hey", steps=(step,)),), vocab_size=49152
        ),
        "merges?hello": made(
            Merges,
            pieces=(
                made(
                    PieceMerges, text="hey", texts=("he", "y"), token_ids=(255, 88), steps=(step,)
                ),
            ),
        ),
        "detokenization": made(Detokenization, text="abababab"),
        "embeddings": row,
        "drift": made(Drift, text="\u00b7gravity", own=floats(1, 0.5, 0.25)),
        "positions": made(
            Positions,
            kind="rotary",
            layer=15,
            max_length=8192,
            inverse=floats(1, 0.5, 0.25),
            wavelengths=floats(2, 4.5, 6000),
            num_slow=1,
            text="\u00b7gravity",
            key_text="What",
            score=1.5,
            shifts=(1, 10_000),
            shifted=floats(1.5, 1.5),
            by_distance=np.arange(64, dtype=np.float32),
        ),
        "pages": made(AnswerPages, token_bytes=23040),
        "residual": made(
            Residual,
            text="\u00b7gravity",
            embedding=2.0,
            stream=floats(4, 8),
            attention=floats(1, 2),
            mlp=floats(3, 0.5),
            cosine=floats(0.5, 0.75),
        ),
        "experts": made(ExpertRoutes, num_layers=30),
        "cost": made(
            AnswerCost,
            stages=(
                Share("blocks", 1.0, 2.0**30, 3e9, 3.0),
                Share("logits", 1.0, 2.0**30, 1e9, 1.0),
            ),
            modes=(Mode("prefill", 34, 0.25, 1.0, 1.0, 1.0),),
        ),
    }


def golden() -> dict[str, Any]:
    """Frames in base64 by view, and what the learner's route answers to two texts."""
    frames = {
        name: base64.b64encode(
            frame_view(Shown(view_of(name.partition("?")[0]), payload, None))
        ).decode()
        for name, payload in payloads().items()
    }
    texts = ("aaaa bb", "What is it? abababab")
    learned = {text: _learned(json.dumps({"text": text}).encode()) for text in texts}
    return {"frames": frames, "learned": learned}


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps(golden()) + "\n", encoding="ascii")
