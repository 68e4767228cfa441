"""What the engine draws from a thousand rows, for tests of the page's sampler.

Rows and histories are made of the counter hash by both sides, so that the file holds results
alone: per row its size, settings in the order of SETTINGS, the token, how many tokens could still
come, and a hash of which. `python tests/web/golden_draws.py` writes them to web/core anew.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch

from cutaway.core.request import SamplingParams
from cutaway.sampling.candidates import SamplerRow
from cutaway.sampling.effects import shares
from cutaway.sampling.sampler import Sampler
from cutaway.sampling.uniform import uniform

GOLDEN = Path(__file__).resolve().parents[2] / "web" / "core" / "golden_draws.json"
NUM_ROWS = 1000
SIZES = (5, 64, 130, 320)
SETTINGS = (
    *("temperature", "min_p", "top_k", "top_p"),
    *("repetition_penalty", "presence_penalty", "frequency_penalty"),
)
NEUTRAL = (1.0, 0.0, 0, 1.0, 1.0, 0.0, 0.0)
OTHERS = (
    (0.7, 0.0, 0.3, 1.5, 5.0),
    (0.02, 0.1, 1.0, 0.001),
    (1, 20, 40, -1),
    (0.9, 0.0, 0.5, 0.999),
    (1.3, 0.5, 1e-40),
    (0.5, -1.0),
    (0.25, 2.0),
)


def word(number: int, kind: int, at: int) -> int:
    """A number in [0, 2^32) that belongs to a row."""
    return uniform(number, choice=kind, position=at)


def logits_of(number: int, size: int) -> list[float]:
    """From -16 to 16, some of them equal."""
    row: list[float] = []
    for at in range(size):
        fresh = (word(number, 1, at) + word(number, 2, at)) / 2**28 - 16
        row.append(row[-1] if at % 7 == 3 else fresh)
    return row


def settings_of(number: int) -> tuple[float, ...]:
    """Each setting is neutral in half of the rows."""
    found: list[float] = []
    for at, (neutral, others) in enumerate(zip(NEUTRAL, OTHERS, strict=True)):
        chance = word(number, 3, at)
        found.append(neutral if chance % 2 else others[chance // 2 % len(others)])
    return tuple(found)


def row_of(number: int, size: int) -> SamplerRow:
    """The settings and the past of a row."""
    ids = [word(number, 4, at) % size for at in range(9)]
    bias = {word(number, 5, at) % size: (at - 1) * 2.6 for at in range(3)}
    settings = dict(zip(SETTINGS, settings_of(number), strict=True))
    allowed = bytes(word(number, 6, at) & 255 | 1 for at in range(-(-size // 8)))
    params = SamplingParams(
        **settings,  # pyright: ignore[reportArgumentType]
        logit_bias=bias if number % 3 == 0 else {},
    )
    return SamplerRow(
        params=params,
        seed=number * 2**40 - 7 * number,
        choice=number % 3,
        position=17 + number,
        prompt_token_ids=ids[:4],
        output_token_ids=[*ids[4:], ids[-1]],
        banned_token_ids=(word(number, 7, 0) % size,) if number % 5 == 0 else (),
        allowed=allowed if number % 4 == 0 else None,
    )


def case_of(number: int) -> list[float]:
    """What the engine makes of one row."""
    size = SIZES[number % len(SIZES)]
    logits, row = torch.tensor(logits_of(number, size), dtype=torch.float32), row_of(number, size)
    (sampled,) = Sampler(size).sample(logits[None], [row])
    token = -1 if sampled.token_id is None else sampled.token_id
    if token < 0 or row.params.is_greedy:
        return [size, *settings_of(number), token, 0, 0]
    kept = np.flatnonzero(shares(logits, row).numpy()).tolist()
    return [size, *settings_of(number), token, len(kept), hashed(kept)]


def hashed(ids: list[int]) -> int:
    """Of ids in order, 32 bits."""
    total = 0
    for each in ids:
        total = (total * 31 + each + 1) % 2**32
    return total


if __name__ == "__main__":
    lines = ",\n".join(
        json.dumps(case, separators=(",", ":")) for case in map(case_of, range(NUM_ROWS))
    )
    GOLDEN.write_text(f"[\n{lines}\n]\n", encoding="ascii")
