"""What happens to heads between their product and attention: norm, rotation, store."""

from __future__ import annotations

from torch import Tensor

from cutaway.kernels.dispatch import MOST_HEAD_SIZE, learns_in_triton, uses_triton
from cutaway.kernels.heads import plain
from cutaway.kernels.heads.plain import HeadNorm, HeadPlaces

__all__ = ["HeadNorm", "HeadPlaces", "are_placed", "is_fused", "turn_and_store", "turn_learned"]


def is_fused(
    heads: Tensor, key_pages: Tensor, value_pages: Tensor, key_scales: Tensor | None = None
) -> bool:
    """Whether turn_and_store is one kernel: pages of the heads' own dtype, or of 8 bits."""
    kept = heads.dtype if key_scales is None else key_pages.dtype
    is_same = kept == key_pages.dtype == value_pages.dtype
    are_rows = key_pages.is_contiguous() and value_pages.is_contiguous()
    return uses_triton(heads) and is_same and are_rows and key_pages.shape[-1] <= MOST_HEAD_SIZE


def turn_and_store(
    heads: Tensor,
    cos: Tensor,
    sin: Tensor,
    key_pages: Tensor,
    value_pages: Tensor,
    slots: Tensor,
    *,
    query_norm: HeadNorm | None = None,
    key_norm: HeadNorm | None = None,
    key_scales: Tensor | None = None,
    value_scales: Tensor | None = None,
) -> Tensor:
    """See plain.turn_and_store."""
    form = plain.turn_and_store
    if is_fused(heads, key_pages, value_pages, key_scales):
        from cutaway.kernels.heads import triton

        form = triton.turn_and_store
    return form(
        *(heads, cos, sin, key_pages, value_pages, slots),
        query_norm=query_norm,
        key_norm=key_norm,
        key_scales=key_scales,
        value_scales=value_scales,
    )


def are_placed(like: Tensor, places: HeadPlaces) -> bool:
    """Whether a product of one token may put its heads in their places by itself.

    like: of the product's dtype and device. Whole heads turn, and pages have that dtype.
    """
    turns_whole = 2 * places.cos.shape[-1] == places.key_pages.shape[-1]
    is_one = len(places.slots) == 1
    return turns_whole and is_one and is_fused(like, places.key_pages, places.value_pages)


def turn_learned(
    whole: Tensor, cos: Tensor, sin: Tensor, *, num_groups: int
) -> tuple[Tensor, Tensor, Tensor] | None:
    """Queries and keys turned and values as they are, by one kernel with a gradient; else None.

    Shapes: whole [T, H + 2G, C], cos, sin [T, C/2] -> [T, H, C], [T, G, C], [T, G, C].
    """
    if 2 * cos.shape[-1] != whole.shape[-1] or not learns_in_triton(whole):
        return None
    from cutaway.kernels.heads import triton_learned

    return triton_learned.turn(whole, cos, sin, num_groups=num_groups)
