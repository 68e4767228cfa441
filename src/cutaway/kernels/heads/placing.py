"""Heads on their way from their product to attention: normed, turned, shown to taps, and stored.

Where one kernel does all of it, taps read what is stored; elsewhere each part is an operation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol, cast, runtime_checkable

from torch import Tensor

from cutaway.kernels import heads as one_kernel
from cutaway.kernels.heads.plain import HeadNorm
from cutaway.kernels.rotary import rotate
from cutaway.kernels.store import store

Rotation = tuple[Tensor, Tensor]  # cosines and sines [T, C'/2] of the step's positions


class HeadTap(Protocol):
    """A place where a value is seen by its name, and may be replaced."""

    def __call__(self, name: str, value: Tensor) -> Tensor: ...


@runtime_checkable
class HeadsNorm(Protocol):
    """A norm that can be taken of heads in the same pass that turns them."""

    @property
    def of_heads(self) -> HeadNorm:
        """The norm in the form that the pass over heads takes."""
        ...


class HeadNorms(NamedTuple):
    """Norms of each head of a kind; None leaves it as it is."""

    query: Callable[[Tensor], Tensor] | None = None
    key: Callable[[Tensor], Tensor] | None = None
    value: Callable[[Tensor], Tensor] | None = None


class HeadPages(NamedTuple):
    """Where a layer keeps keys and values, and which of its slots the step's tokens have.

    Shapes: key and value [N, P, G, C], their scales [N, P, G] or None, slots [T].
    """

    key: Tensor
    value: Tensor
    key_scales: Tensor | None
    value_scales: Tensor | None
    slots: Tensor


@dataclass(frozen=True)
class ProductHeads:
    """Heads as a product made them.

    key, value: None where the layer reads those of another.
    whole: [T, H + 2G, C], queries, keys and values in this order; None where it holds other rows.
    Shapes: query [T, H, C], key and value [T, G, C].
    """

    query: Tensor
    key: Tensor | None
    value: Tensor | None
    whole: Tensor | None


def turn(
    heads: ProductHeads, norms: HeadNorms, rotation: Rotation | None, tap: HeadTap
) -> tuple[Tensor, tuple[Tensor, Tensor] | None]:
    """Queries, and the step's own keys and values where it has any, ready for attention."""
    if heads.whole is not None and rotation is not None and all(each is None for each in norms):
        groups = (heads.whole.shape[1] - heads.query.shape[1]) // 2
        found = one_kernel.turn_learned(heads.whole, *rotation, num_groups=groups)
        if found is not None:
            query, key, value = found
            return tap("query", query), (tap("key", key), tap("value", value))
    query = tap("query", _turned(heads.query, norms.query, rotation))
    if heads.key is None or heads.value is None:
        return query, None
    value = heads.value if norms.value is None else norms.value(heads.value)
    key = tap("key", _turned(heads.key, norms.key, rotation))
    return query, (key, tap("value", value))


def place(
    heads: ProductHeads,
    norms: HeadNorms,
    rotation: Rotation | None,
    pages: HeadPages,
    *,
    tap: HeadTap,
    is_tapped: bool,
) -> Tensor:
    """The same, with keys and values stored: attention reads them back in the pages' dtype.

    is_tapped: whether anybody sees what tap is given. Shapes: -> query [T, H, C].
    """
    if _is_one_kernel(heads, norms, rotation, pages):
        return _place_at_once(heads, norms, rotation, pages, tap=tap, is_tapped=is_tapped)
    query, own = turn(heads, norms, rotation, tap)
    # Stored first and read back: what a token sees never depends on which chunk it came in.
    if own is not None:
        store(pages.key, own[0], pages.slots, scales=pages.key_scales)
        store(pages.value, own[1], pages.slots, scales=pages.value_scales)
    return query


def _turned(
    heads: Tensor, norm: Callable[[Tensor], Tensor] | None, rotation: Rotation | None
) -> Tensor:
    normed = heads if norm is None else norm(heads)
    return normed if rotation is None else rotate(normed, *rotation)


def _is_one_kernel(
    heads: ProductHeads, norms: HeadNorms, rotation: Rotation | None, pages: HeadPages
) -> bool:
    if heads.whole is None or rotation is None or norms.value is not None:
        return False
    if not all(norm is None or isinstance(norm, HeadsNorm) for norm in (norms.query, norms.key)):
        return False
    return one_kernel.is_fused(heads.whole, pages.key, pages.value, pages.key_scales)


def _place_at_once(
    heads: ProductHeads,
    norms: HeadNorms,
    rotation: Rotation | None,
    pages: HeadPages,
    *,
    tap: HeadTap,
    is_tapped: bool,
) -> Tensor:
    assert heads.whole is not None and rotation is not None, "_is_one_kernel was asked"
    query = one_kernel.turn_and_store(
        heads.whole,
        *rotation,
        *(pages.key, pages.value, pages.slots),
        query_norm=_of_heads(norms.query),
        key_norm=_of_heads(norms.key),
        key_scales=pages.key_scales,
        value_scales=pages.value_scales,
    )
    query = tap("query", query)
    both = (("key", pages.key, pages.key_scales), ("value", pages.value, pages.value_scales))
    for name, kept, scales in both if is_tapped else ():
        stored = kept.flatten(0, 1)[pages.slots]
        if scales is not None:
            stored = stored.float() * scales.flatten(0, 1)[pages.slots][..., None]
        seen = tap(name, stored)
        if seen is not stored:
            store(kept, seen, pages.slots, scales=scales)
    return query


def _of_heads(norm: Callable[[Tensor], Tensor] | None) -> HeadNorm | None:
    return None if norm is None else cast(HeadsNorm, norm).of_heads
