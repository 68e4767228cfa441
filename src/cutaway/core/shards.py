"""Which rows and heads each rank of a model keeps: contiguous cuts, as data.

Every matrix is cut by its output rows and none by its columns, so no sum is ever split.
Free of torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

PANEL = 16  # rows that native kernels pack together: cuts between panels waste none


def cuts(rows: int, parts: int) -> tuple[range, ...]:
    """So many contiguous parts of some rows, the first ones larger by one block where they differ.

    A block is a panel of rows; single rows where there are fewer panels than parts. With fewer
    rows than parts the last are empty.
    """
    block = PANEL if rows >= PANEL * parts else 1
    blocks = -(-rows // block)
    least, more = divmod(blocks, parts)
    starts = [min(rows, block * (part * least + min(part, more))) for part in range(parts + 1)]
    return tuple(map(range, starts, starts[1:]))


class HeadCut(NamedTuple):
    """A rank's query heads, and the key-value heads that they read."""

    heads: range
    groups: range


def head_cuts(num_heads: int, num_groups: int, parts: int) -> tuple[HeadCut, ...] | None:
    """Heads of each rank: whole groups where there are enough, else a part of one group's heads.

    Ranks that share a group each keep its key and value. None where a rank would have no head.
    """
    shared = num_heads // num_groups
    if parts <= num_groups:
        least, more = divmod(num_groups, parts)
        starts = [part * least + min(part, more) for part in range(parts + 1)]
        groups = map(range, starts, starts[1:])
        return tuple(HeadCut(range(g.start * shared, g.stop * shared), g) for g in groups)
    if parts > num_heads:
        return None
    found: list[HeadCut] = []
    for group in range(num_groups):
        ranks = (parts * (group + 1)) // num_groups - (parts * group) // num_groups
        if ranks > shared:
            return None
        least, more = divmod(shared, ranks)
        starts = [group * shared + rank * least + min(rank, more) for rank in range(ranks + 1)]
        found += [
            HeadCut(heads, range(group, group + 1)) for heads in map(range, starts, starts[1:])
        ]
    return tuple(found)


def balance(sizes: Sequence[int], parts: int, *, first: int = 0) -> tuple[range, ...]:
    """Contiguous parts of some layers by their sizes, so that the largest is as small as it can be.

    first: what the first part has beside layers. Each part has a layer at least; of equally good
    cuts those with the most in the last parts are taken, since the first leads too.
    """
    assert 1 <= parts <= len(sizes), "each part has a layer"
    starts = [0, *accumulate(sizes)]
    # By how many parts so far and the layer that ends them: the largest part, and where it began.
    best: list[dict[int, tuple[int, int]]] = [
        {end: (first + starts[end], 0) for end in range(1, len(sizes) + 1)}
    ]
    for _ in range(1, parts):
        before, now = best[-1], dict[int, tuple[int, int]]()
        for end in range(len(best) + 1, len(sizes) + 1):
            tried = (
                (max(before[cut][0], starts[end] - starts[cut]), cut) for cut in before if cut < end
            )
            now[end] = min(tried)
        best.append(now)
    ends = [len(sizes)]
    for each in reversed(best[1:]):
        ends.append(each[ends[-1]][1])
    ends = [0, *reversed(ends)]
    return tuple(map(range, ends, ends[1:]))


def rows_of(heads: range, size: int) -> range:
    """The rows of some heads, so many each."""
    return range(heads.start * size, heads.stop * size)


def widths(parts: Sequence[range], *, times: int = 1) -> tuple[int, ...]:
    """How many rows each rank has, of heads with so many rows each."""
    return tuple(len(part) * times for part in parts)
