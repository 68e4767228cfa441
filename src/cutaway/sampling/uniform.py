"""The random number of a draw: a counter hash of seed, choice, position and purpose.

It has no state, so a draw can be repeated anywhere: after preemption, in another batch, in a
fork of the conversation. It knows neither tokens nor logits. Specification: docs/randomness.md.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

Word = TypeVar("Word", int, NDArray[np.int64], Tensor)

_MASK = 0xFFFFFFFF
_PARITY = 0x1BD11BDA
_ROTATIONS = (13, 15, 26, 6, 17, 29, 16, 24)
_ROUNDS = 20
_PURPOSE_BITS = 2


class Purpose(IntEnum):
    """What a random number decides; at one position each has its own."""

    DRAW = 0  # the token itself, and the check of a fixed draft token
    PROPOSE = 1  # a sampled draft token
    ACCEPT = 2  # whether a sampled draft token is accepted
    RESIDUAL = 3  # the token in its place when it is not


def uniform(seed: Word, *, choice: Word, position: Word, purpose: Purpose = Purpose.DRAW) -> Word:
    """One integer in [0, 2^32) for a draw; of arrays or tensors (int64, broadcast), one for each.

    seed: 64 bits, signed or not.   choice: which of a request's n answers, below 2^30.
    position: absolute index of the drawn token in its sequence, prompt included, below 2^32.
    """
    key = (seed & _MASK, seed >> 32 & _MASK)
    return threefry(key, (position, choice << _PURPOSE_BITS | int(purpose)))[0]


def threefry(key: tuple[Word, Word], counter: tuple[Word, Word]) -> tuple[Word, Word]:
    """Threefry-2x32 with 20 rounds: for each key a permutation of 64-bit counters.

    Chosen over a hash of our own because it is published with test vectors, passes BigCrush and
    needs only 32-bit add, shift, or, xor. Every operator below means the same on Python integers
    and on int64 arrays, so one text serves all; the masks keep each word below 2^32.
    Source: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3", section 3.3.
    """
    keys = (*key, key[0] ^ key[1] ^ _PARITY)
    x, y = (counter[0] + keys[0]) & _MASK, (counter[1] + keys[1]) & _MASK
    for i in range(_ROUNDS):
        turn = _ROTATIONS[i % 8]
        x = (x + y) & _MASK
        y = ((y << turn | y >> (32 - turn)) & _MASK) ^ x
        if i % 4 == 3:
            inject = i // 4 + 1
            x = (x + keys[inject % 3]) & _MASK
            y = (y + keys[(inject + 1) % 3] + inject) & _MASK
    return x, y
