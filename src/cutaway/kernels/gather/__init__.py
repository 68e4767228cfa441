"""What the ranks of a model have of a value, put together: numbers are moved, none is added.

So a gathered value has the bits that one rank alone would have made, in any order of arrival.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Protocol, cast

import torch
from torch import Tensor
from torch.nn import functional

from cutaway.kernels.recording import operation

__all__ = ["Gatherer", "gather_columns", "gather_rows", "receive_rows", "send_rows"]


class Gatherer(Protocol):
    """The ranks among which one model is divided, as one of them sees them."""

    @property
    def rank(self) -> int:
        """Its own number, from 0."""
        ...

    @property
    def size(self) -> int:
        """How many there are, N."""
        ...

    def step(self) -> AbstractContextManager[None]:
        """Within it every rank does the same, and values can be gathered."""
        ...

    def check(self) -> None:
        """Raise ConfigError outside of a step, where the others do nothing."""
        ...

    def gather(self, x: Tensor) -> Tensor:
        """What each rank hands in, in the order of ranks; all hand in the same shape.

        Shapes: [...] -> [N, ...].
        """
        ...

    def to_root(self, x: Tensor) -> Tensor | None:
        """The same for rank 0 alone; None for the others."""
        ...

    def send(self, x: Tensor, to: int) -> None:
        """Hand one other rank a value, which it receives."""
        ...

    def receive(self, like: Tensor, source: int) -> Tensor:
        """What another rank sends, in the shape and the dtype of something."""
        ...


def _joined(
    x: Tensor, group: Gatherer, widths: Sequence[Sequence[int]], *, is_for_root: bool = False
) -> Tensor:
    del group, is_for_root
    return x.new_empty((*x.shape[:-1], sum(map(sum, widths))))


@operation(shape_of=_joined)
def gather_columns(
    x: Tensor, group: Gatherer, widths: Sequence[Sequence[int]], *, is_for_root: bool = False
) -> Tensor:
    """Every rank's columns side by side.

    x: this rank's columns of each segment, one segment after the other.
    widths: of each segment the columns of each rank; the result has whole segments.
    is_for_root: others than rank 0 get zeros in the result's shape.
    Shapes: x [T, own widths together] -> [T, all widths together].
    """
    by_rank = list(zip(*widths, strict=True))
    most = max(map(sum, by_rank))
    padded = functional.pad(x, (0, most - x.shape[-1])).contiguous()
    every = group.to_root(padded) if is_for_root else group.gather(padded)
    if every is None:
        return x.new_zeros((*x.shape[:-1], sum(map(sum, widths))))
    parts: list[Sequence[Tensor]] = []
    for part, sizes in zip(every.unbind(), by_rank, strict=True):
        own = part[..., : sum(sizes)]
        parts.append(cast("tuple[Tensor, ...]", own.split(list(sizes), dim=-1)))
    return torch.cat(
        [parts[rank][segment] for segment in range(len(widths)) for rank in range(group.size)],
        dim=-1,
    )


def _taken(rows: Tensor, ids: Tensor, group: Gatherer, starts: Sequence[int]) -> Tensor:
    del ids, group, starts
    return torch.empty_like(rows)


@operation(shape_of=_taken)
def gather_rows(rows: Tensor, ids: Tensor, group: Gatherer, starts: Sequence[int]) -> Tensor:
    """Of each token the row that its owner found.

    starts: the first id of each rank.
    Shapes: rows [T, K] as this rank found them, ids [T] -> [T, K].
    """
    every = group.gather(rows.contiguous())
    owners = torch.zeros_like(ids)
    for start in starts[1:]:  # a table of starts would be copied to the device in every step
        owners += ids >= start
    return every[owners, torch.arange(len(ids), device=ids.device)]


def _same(x: Tensor, group: Gatherer, to: int) -> Tensor:
    del group, to
    return torch.empty_like(x)


@operation(shape_of=_same, has_effect=True)
def send_rows(x: Tensor, group: Gatherer, to: int) -> Tensor:
    """Hand rows to the rank that goes on with them; the same rows. Shapes: [T, D]."""
    group.check()
    group.send(x.contiguous(), to)
    return x


def _received(like: Tensor, group: Gatherer, source: int, width: int, dtype: torch.dtype) -> Tensor:
    del group, source
    return like.new_empty((like.shape[0], width), dtype=dtype)


@operation(shape_of=_received, has_effect=True)
def receive_rows(
    like: Tensor, group: Gatherer, source: int, width: int, dtype: torch.dtype
) -> Tensor:
    """Rows that another rank sends, as many as something has. Shapes: [T, ...] -> [T, width]."""
    group.check()
    return group.receive(like.new_empty((len(like), width), dtype=dtype), source)
