"""Which example comes when: a keyed permutation of each epoch, and no state to keep or to lose."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from cutaway.sampling.uniform import threefry


def permutation(seed: int, epoch: int, num_examples: int) -> NDArray[np.int64]:
    """The order of an epoch's examples; a function of its arguments, each index once.

    Every example has a number drawn by seed, epoch and its index; they come by that number, so an
    example that is added changes nothing in the order of the others.

    Shapes: [num_examples] int64.
    """
    index = np.arange(num_examples, dtype=np.int64)
    high, low = threefry(_key(seed), (index, np.full_like(index, epoch)))
    return np.lexsort((index, low, high))


def _key(seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    return np.asarray(seed & 0xFFFFFFFF), np.asarray(seed >> 32 & 0xFFFFFFFF)
