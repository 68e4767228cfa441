"""The tensors behind the pages: one per layer and field, addressed by the group's page tables."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby
from typing import cast

import numpy
import torch
from torch import Tensor

from cutaway.cache.stores import PageMove, RestorePage, SavePage
from cutaway.core.layout import CacheGroup, StoredField
from cutaway.core.step import LayerCache


class Pool:
    """Allocated once; pages are handed out by the host side of the cache.

    held: layers that are computed here; others have no pages. None is all.
    is_native: each head of a page lies apart in memory, as native kernels read it; what has no
        heads lies as its shape says.

    Shapes: each field of each layer [N, P, ...] with N pages of its group; of a state [N, ...].
    """

    def __init__(
        self,
        groups: Sequence[CacheGroup],
        *,
        num_pages: Sequence[int],
        page_size: int,
        dtype: torch.dtype,
        device: torch.device,
        is_native: bool = False,
        held: range | None = None,
    ) -> None:
        self.num_pages = tuple(num_pages)
        caches: dict[int, LayerCache] = {}
        for group, count in zip(groups, num_pages, strict=True):
            for layer in group.layers:
                if held is not None and layer not in held:
                    caches[layer] = LayerCache({}, group.index, page_size)
                    continue
                places = (count,) if group.spec.is_state else (count, page_size)
                by_head = is_native and any(field.is_columns for field in group.spec.fields)
                fields = {
                    field.name: _pages(field, places, device, by_head)
                    for field in group.spec.list_fields(str(dtype).removeprefix("torch."))
                }
                caches[layer] = LayerCache(fields, group.index, page_size)
        self.kept = tuple(caches.values())  # each layer that has pages of its own
        caches |= {reader: caches[source] for group in groups for reader, source in group.readers}
        self.layers = tuple(caches[layer] for layer in sorted(caches))

    @property
    def num_bytes(self) -> int:
        """Memory of all pages; layers that read another's count once."""
        return sum(pages.nbytes for layer in self.kept for pages in layer.fields.values())

    @property
    def page_bytes(self) -> tuple[int, ...]:
        """Of one page of each group, over all its layers."""
        sizes = [0] * len(self.num_pages)
        for layer in self.kept:
            for field in layer.fields.values():
                sizes[layer.group] += field[0].nbytes
        return tuple(sizes)

    def read(self, group: int, pages: Sequence[int]) -> Tensor:
        """All bytes of some pages of a group, in the host's memory.

        Layers and fields follow one another, each as its shape says, wherever it lies in memory.
        Shapes: [n, bytes].
        """
        parts = [
            plain_bytes(field)[list(pages)].flatten(1).contiguous().view(torch.uint8)
            for field in self._fields(group)
        ]
        return torch.cat(parts, dim=1).cpu()

    def write(self, group: int, pages: Sequence[int], content: Tensor) -> None:
        """Put back what read gave. Shapes: content [n, bytes]."""
        fields, start = self._fields(group), 0
        content = content.to(fields[0].device)
        for field in fields:
            plain = plain_bytes(field)
            end = start + field[0].nbytes
            part = content[:, start:end].clone(memory_format=torch.contiguous_format)
            plain[list(pages)] = part.view(plain.dtype).view(len(pages), *field.shape[1:])
            start = end

    def _fields(self, group: int) -> list[Tensor]:
        return [f for layer in self.kept if layer.group == group for f in layer.fields.values()]

    def clear(self, pages: Sequence[Sequence[int]]) -> None:
        """Zero some pages of each group, so that NaN in them cannot reach whoever comes next."""
        for layer in self.kept:
            for field in layer.fields.values():
                plain_bytes(field)[list(pages[layer.group])] = 0


def plain_bytes(field: Tensor) -> Tensor:
    """A field as it can be indexed: one byte as a byte, as float8 has no index_put of its own."""
    return field.view(torch.uint8) if field.dtype.itemsize == 1 else field


def move_pages(pool: Pool, moves: Sequence[PageMove]) -> None:
    """Save pages to stores and write others' content, in their order; equal ones at once."""
    for (kind, group), run in groupby(moves, key=lambda move: (type(move), move.group)):
        several = list(run)
        if kind is RestorePage:  # the last one counts where a page was given away again
            contents = {m.page: m.content for m in several if isinstance(m, RestorePage)}
            pool.write(group, list(contents), torch.from_numpy(numpy.stack([*contents.values()])))
            continue
        found = pool.read(group, [move.page for move in several]).numpy()
        for move, content in zip(several, found, strict=True):
            if isinstance(move, SavePage):
                move.store.put(group, move.key, content)


def copy_pages(pool: Pool, copies: Sequence[tuple[int, int] | None]) -> None:
    """Copy a page to another in all layers of each group that has such a pair."""
    for layer in pool.kept:
        pair = copies[layer.group]
        if pair is not None:
            for field in layer.fields.values():
                field[pair[1]].copy_(field[pair[0]])


def _pages(
    field: StoredField, places: tuple[int, ...], device: torch.device, by_head: bool
) -> Tensor:
    shape = (*places, *field.shape)
    if not by_head:
        return _zeros(shape, field, device)
    order = _native_order(field)
    back = [order.index(i) for i in range(len(order))]
    return _zeros(tuple(shape[i] for i in order), field, device).permute(back)


def _native_order(field: StoredField) -> tuple[int, ...]:
    """Dimensions of [N, P, G, ...] as they follow in memory: a head's tokens lie together."""
    rest = tuple(range(3, 2 + len(field.shape)))
    return (0, 2, *rest, 1) if field.is_columns else (0, 2, 1, *rest)


def _zeros(shape: tuple[int, ...], field: StoredField, device: torch.device) -> Tensor:
    dtype = cast(torch.dtype, getattr(torch, field.dtype))
    if device.type == "cpu":
        # numpy.zeros maps memory that costs nothing until touched; torch.zeros writes it all:
        # 15 s for the 9 GB that a machine with 24 GB affords.
        plain = numpy.zeros(math.prod(shape) * dtype.itemsize, numpy.uint8)
        return torch.from_numpy(plain).view(dtype).view(shape)
    return torch.zeros(shape, dtype=dtype, device=device)
