"""Random blocks of every GGUF type whose scales are sensible numbers."""

from __future__ import annotations

import numpy as np

from cutaway.core.gguf_types import BLOCK_TYPES

NUMBERS = {stored.name: number for number, stored in BLOCK_TYPES.items()}

# Where the float16 numbers of a block lie: random bytes there would mostly be NaN or huge.
FLOAT16_AT = {
    "Q4_0": (0,),
    "Q4_1": (0, 2),
    "Q5_0": (0,),
    "Q5_1": (0, 2),
    "Q8_0": (0,),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
    "IQ4_NL": (0,),
    "IQ4_XS": (0,),
    "MXFP4": (),
}


def random_blocks(type: str, count: int, seed: int) -> np.ndarray:
    draw = np.random.default_rng(seed)
    size = BLOCK_TYPES[NUMBERS[type]].block_bytes
    blocks = draw.integers(1, 256, (count, size), dtype=np.uint8)
    for at in FLOAT16_AT[type]:
        scales = draw.normal(0, 0.02, (count, 1)).astype(np.float16)
        blocks[:, at : at + 2] = scales.view(np.uint8)
    if type == "MXFP4":  # exponents near 1 in 64
        blocks[:, 0] = draw.integers(117, 125, count)
    return blocks
