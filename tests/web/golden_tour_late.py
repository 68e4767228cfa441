"""What views gave of a made-up answer, for tests of the tour's chapters from attention on.

`python tests/web/golden_tour_late.py` writes web/core/golden_tour_late.json; a test holds them.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path

from golden_tour import floats, made

from cutaway.trace.misses import Miss
from cutaway.views import view_of
from cutaway.views.arithmetic import Arithmetic
from cutaway.views.cost import AnswerCost, Mode, Share
from cutaway.views.detokenization import Detokenization
from cutaway.views.feedforward import FeedForwardUnits
from cutaway.views.lens import Lens
from cutaway.views.pages import AnswerPages, PageGroup
from cutaway.views.parts.frame import frame_view
from cutaway.views.parts.head_grid import HeadGrid
from cutaway.views.parts.payload import Payload
from cutaway.views.parts.repetition import SIZES, repeats_of
from cutaway.views.parts.view import Shown
from cutaway.views.probabilities import Below, Entry, Lookup, Probabilities
from cutaway.views.sampling import Effect, RowSampling, Strategy
from cutaway.views.template import Expansion
from cutaway.views.timeline import Timeline
from cutaway.views.tokens import Tokens
from cutaway.views.weights import Weights

GOLDEN = Path(__file__).resolve().parents[2] / "web" / "core" / "golden_tour_late.json"
ANSWER = (65, 66, 65, 66, 65, 67)


def _entry(text: str, probability: float, rank: int) -> Entry:
    return Entry(token_id=rank, text=text, probability=probability, logprob=-1.0, rank=rank)


def _row(head: int, weights: tuple[float, ...]) -> Arithmetic:
    return made(
        Arithmetic,
        layer=1,
        head=head,
        group=0,
        position=2,
        text="it",
        tokens=("What", "\u00b7is", "\u00b7it", "A", "B"),
        scaled=floats(1, 2, 3, 4, 5.5),
        weights=floats(*weights),
        key=floats(1, -2),
        entropy=1.5,
        entropy_unscaled=0.25,
    )


def payloads() -> dict[str, Payload]:
    """By view; behind a question mark the head, token or text that was asked for."""
    top = (_entry("A", 0.75, 1), _entry("B", 0.125, 2))
    pieces = (_entry("\u00b7Zam", 0.5, 4), _entry("boni", 0.25, 2))
    strategies = {
        "greedy": ("A", 0.75, 1),
        "temperature 0.5": ("A", 0.875, 300),
        "temperature 1.5": ("B", 0.25, 300),
        "top_p 0.9": ("A", 0.75, 7),
    }
    return {
        "tokens": made(
            Tokens,
            texts=("What", "\u00b7is", "\u00b7it", *map(chr, ANSWER)),
            token_ids=(7, 3, 5, *ANSWER),
            num_prompt=3,
        ),
        "attention": made(
            HeadGrid,
            num_layers=2,
            windows=(None, None),
            groups=(1, 1),
            entropy=floats(1, 1, 1, 1).reshape(2, 2),
            first=floats(0.75, 0.25, 0.5, 0.125).reshape(2, 2),
            induction=floats(0, 0, 0, 0).reshape(2, 2),
        ),
        "arithmetic": _row(0, (0.5, 0.25, 0.25, 0, 0)),
        "arithmetic?1": _row(1, (0.125, 0.625, 0.25, 0, 0)),
        "cost": made(
            AnswerCost,
            stages=tuple(
                Share(name, 0.0, 0.0, flops, 0.0)
                for name, flops in (("attention", 1e9), ("mlp", 3e9), ("unembedding", 1e9))
            ),
            modes=(Mode("prefill", 4, 0.5, 0.0, 0.0, 75.0), Mode("decode", 5, 1.25, 0.0, 0.0, 2.5)),
            # 1e8 for the matrices and 1,000 for each of 4 and 5 tokens of context
            token_flops=floats(4e8, 100_004_000, 100_005_000),
        ),
        "pages": made(
            AnswerPages,
            num_prompt=3,
            token_bytes=1024,
            flops=1e9,
            without_flops=5e9,
            miss=made(Miss, kind="first", num_hit=2),
            groups=(made(PageGroup, fields=("key", "value")),),
        ),
        "feedforward": made(
            FeedForwardUnits,
            layer=1,
            text="it",
            kind="gated",
            activation="silu",
            width=576,
            inner=1536,
            half=37,
            near_zero=0.25,
            units=floats(98, 5),
            gate=floats(1.5, 0.5),
            added=floats(4, 2),
            pushed=(("\u00b7and", "x"), ("y", "z")),
        ),
        "lens": made(
            Lens,
            layers=(0, 1),
            num_layers=2,
            positions=(2,),
            ranks=floats(3, 1).reshape(2, 1),
            choice_probabilities=floats(0.125, 0.75).reshape(2, 1),
        ),
        "probabilities": made(
            Probabilities,
            vocab_size=320,
            chosen=top[0],
            top=top,
            tail_mass=0.125,
            below=(Below(0.0001, 300, 0.0625),),
            lookups=(Lookup("Zamboni", pieces, 0.125, -2.0, 2),),
        ),
        "probabilities?2": made(Probabilities, chosen=top[1], top=top),
        "sampling": made(
            RowSampling,
            strategies=tuple(
                Strategy(name, 0, text, share, kept, (share,))
                for name, (text, share, kept) in strategies.items()
            ),
            effects=(Effect("logits", 320, 1.0, 0, 0.75, ()),),
            repetition=tuple(repeats_of(ANSWER, size) for size in SIZES),
        ),
        "detokenization": made(Detokenization, text="ABABAC", num_tokens=6, stopped_by=67),
        "timeline": made(
            Timeline,
            num_tokens=floats(3, 1, 1),
            is_prefill=floats(1, 0, 0),
            gap_p50=0.02,
            first_token=0.375,
            total=1.5,
            tokens=floats(1, 2, 3, 4, 5, 6),
        ),
        "template": made(Expansion, num_messages=2, num_tokens=34),
        "weights": made(Weights, name="blocks.0.mlp.down", bits_per_number=16.0, stored="bfloat16"),
    }


def golden() -> dict[str, str]:
    """Frames in base64."""
    return {
        name: base64.b64encode(
            frame_view(Shown(view_of(name.partition("?")[0]), payload, None))
        ).decode()
        for name, payload in payloads().items()
    }


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps(golden(), indent=1) + "\n", encoding="ascii")
