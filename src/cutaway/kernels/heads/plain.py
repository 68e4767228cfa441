"""Between the product that makes heads and attention, in plain PyTorch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from cutaway.kernels.norm import plain as norms
from cutaway.kernels.rotary import rotate
from cutaway.kernels.store import plain as pages


@dataclass(frozen=True)
class HeadNorm:
    """A norm of each head by root mean square: rms_norm's, offset_rms_norm's or wide_rms_norm's.

    Shapes: weight [C].
    """

    weight: Tensor
    epsilon: float
    kind: Literal["rounded", "offset", "wide"] = "rounded"

    def __call__(self, heads: Tensor) -> Tensor:
        return _NORMS[self.kind](heads, self.weight, self.epsilon)


@dataclass(frozen=True)
class HeadPlaces:
    """Where heads of a product go that are only turned: keys and values to their slots.

    Shapes: cos, sin [T, C/2], key_pages and value_pages [N, P, G, C], slots [T].
    """

    cos: Tensor
    sin: Tensor
    key_pages: Tensor
    value_pages: Tensor
    slots: Tensor

    def place(self, heads: Tensor) -> Tensor:
        """Turn and store them, and return the queries. Shapes: [T, H + 2G, C] -> [T, H, C]."""
        given = (self.cos, self.sin, self.key_pages, self.value_pages, self.slots)
        return turn_and_store(heads, *given)


_NORMS = {
    "rounded": norms.rms_norm,
    "offset": norms.offset_rms_norm,
    "wide": norms.wide_rms_norm,
}


def turn_and_store(
    heads_THC: Tensor,
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
    """Norm and turn queries and keys, store keys and values, and return the queries.

    Shapes: heads [T, H + 2G, C], queries first, then keys, then values; cos, sin [T, C'/2];
            pages [N, P, G, C]; scales of pages in 8 bits [N, P, G]; slots [T] -> [T, H, C].
    """
    num_groups = key_pages.shape[2]
    query, key, value = heads_THC.tensor_split((-2 * num_groups, -num_groups), dim=1)
    if query_norm is not None:
        query = query_norm(query)
    if key_norm is not None:
        key = key_norm(key)
    pages.store(key_pages, rotate(key, cos, sin), slots, scales=key_scales)
    pages.store(value_pages, value, slots, scales=value_scales)
    return rotate(query, cos, sin)
