"""Heads that ranks divide among themselves, seen whole by those who look and by what follows."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from cutaway.core.shards import head_cuts, widths
from cutaway.core.step import Step
from cutaway.kernels.gather import Gatherer, gather_columns


@dataclass(frozen=True)
class HeadParts:
    """Which heads each rank has; every head is in one."""

    group: Gatherer
    parts: tuple[range, ...]

    @staticmethod
    def of(num_heads: int, group: Gatherer) -> HeadParts | None:
        """None with fewer heads than ranks: then all have all."""
        found = head_cuts(num_heads, num_heads, group.size) if num_heads >= group.size else None
        return None if found is None else HeadParts(group, tuple(cut.heads for cut in found))

    @property
    def own(self) -> range:
        """This rank's."""
        return self.parts[self.group.rank]

    def gather(self, heads: Tensor) -> Tensor:
        """Those of all ranks. Shapes: [T, own H, C] -> [T, H, C]."""
        size = heads.shape[-1]
        every = gather_columns(heads.flatten(1), self.group, (widths(self.parts, times=size),))
        return every.view(len(heads), -1, size)


def tap_heads(parts: HeadParts | None, step: Step, layer: int, name: str, heads: Tensor) -> Tensor:
    """A tap of heads: a sink sees those of all ranks, and this one goes on with its own.

    parts: None where every rank has all.   Shapes: [T, own H, C] -> the same.
    """
    if parts is None or step.sink is None:
        return step.tap(name, heads, layer)
    seen = step.tap(name, parts.gather(heads), layer)
    return seen[:, parts.own.start : parts.own.stop]
