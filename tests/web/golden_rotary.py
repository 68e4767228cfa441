"""Speeds of pairs and added waves as the engine has them, for tests of the page's twin.

`python tests/web/golden_rotary.py` writes web/core/golden_rotary.json anew; a test holds
them together.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from cutaway.blocks.embedding import SinusoidalPositions
from cutaway.blocks.positions import Dynamic, Frequencies, LinearScaling, Llama3, Yarn

GOLDEN = Path(__file__).resolve().parents[2] / "web" / "core" / "golden_rotary.json"
TURNINGS = (  # size, base, factor, trained length, length
    (16, 10_000.0, 4.0, 2048, 6000),
    (64, 100_000.0, 2.0, 8192, 16384),
    (8, 500_000.0, 32.0, 4096, 100),
    (12, 10_000.0, 1.0, 512, 1024),
)
WAVES = ((0, 8), (3, 8), (41, 16))  # position, width


def _scaled(size: int, base: float, factor: float, trained: int) -> Mapping[str, Frequencies]:
    return {
        "linear": LinearScaling(size, base, factor),
        "dynamic": Dynamic(size, base, factor, trained),
        "yarn": Yarn(size, base, factor, trained),
        "llama3": Llama3(size, base, factor, 1.0, 4.0, trained),
    }


def golden() -> dict[str, Any]:
    """Each turning under each scaling, and some waves; float64."""
    turnings = [
        {
            **{"size": size, "base": base, "factor": factor, "trained": trained, "length": length},
            "speeds": {
                name: each.inverse(torch.tensor([length]))[0].tolist()
                for name, each in _scaled(size, base, factor, trained).items()
            },
        }
        for size, base, factor, trained, length in TURNINGS
    ]
    waves = [
        {
            **{"position": position, "width": width},
            "values": SinusoidalPositions(width)(torch.tensor([position]))[0].tolist(),
        }
        for position, width in WAVES
    ]
    return {"turnings": turnings, "waves": waves}


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps(golden(), indent=1) + "\n", encoding="ascii")
