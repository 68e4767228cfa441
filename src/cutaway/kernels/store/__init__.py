"""Writing new tokens' entries into the pages of the cache."""

from __future__ import annotations

from torch import Tensor

from cutaway.kernels.recording import operation
from cutaway.kernels.store import plain
from cutaway.kernels.store.plain import scale_rows

__all__ = ["scale_rows", "store"]


@operation(shape_of=lambda *_, **__: None, has_effect=True)
def store(pages: Tensor, values: Tensor, slots: Tensor, *, scales: Tensor | None = None) -> None:
    """See plain.store."""
    plain.store(pages, values, slots, scales=scales)
