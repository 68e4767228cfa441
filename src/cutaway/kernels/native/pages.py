"""Keys and values of one layer as the native kernels read them: each head of a page apart.

Tensors have the shapes of the cache, [N, P, G, C]; in memory keys lie as [N, G, C, P], values as
[N, G, P, C] and scales as [N, G, P], so that sixteen keys are read as columns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from cutaway.kernels.native import structs
from cutaway.kernels.native.weight import Kind

PAGE_KINDS: Final = {
    torch.float32: Kind.F32,
    torch.float16: Kind.F16,
    torch.bfloat16: Kind.BF16,
    torch.int8: Kind.Q8,
    torch.float8_e4m3fn: 9,  # CW_E4M3
}
_SCALED: Final = frozenset({torch.int8, torch.float8_e4m3fn})
PAGE_DTYPES: Final = frozenset(PAGE_KINDS)  # in which pages may keep keys and values


@dataclass(frozen=True, eq=False)
class Pages:
    """Keys and values [N, P, G, C] of one dtype, and their cache group.

    int8 and float8 come with scales [N, P, G] in float32.
    """

    keys: Tensor
    values: Tensor
    group: int = 0
    key_scales: Tensor | None = None
    value_scales: Tensor | None = None

    @staticmethod
    def of(
        keys: Tensor,
        values: Tensor,
        *,
        key_scales: Tensor | None = None,
        value_scales: Tensor | None = None,
        group: int = 0,
    ) -> Pages:
        """Copies of tensors in any order, laid as kernels read them."""
        scales = [None if s is None else in_order(s, (0, 2, 1)) for s in (key_scales, value_scales)]
        keys, values = in_order(keys, KEY_ORDER), in_order(values, VALUE_ORDER)
        return Pages(keys, values, group, *scales)

    @property
    def tensors(self) -> tuple[Tensor | None, ...]:
        """All that must stay in memory."""
        return (self.keys, self.values, self.key_scales, self.value_scales)

    def struct(self) -> structs.PagesStruct:
        """Checked pointers and sizes."""
        keys, values, shape = self.keys, self.values, self.keys.shape
        is_one = keys.shape == values.shape and keys.dtype == values.dtype
        is_sound = keys.dim() == 4 and is_one and keys.dtype in PAGE_KINDS
        _require(is_sound, "pages are two of [N, P, G, C] in one of the dtypes of PAGE_DTYPES")
        has_order = _lies(keys, KEY_ORDER) and _lies(values, VALUE_ORDER)
        _require(has_order, "pages lie as native kernels read them")
        _require(0 <= self.group < structs.MAX_GROUPS, "a step has up to four cache groups")
        for scales in (self.key_scales, self.value_scales):
            _require((scales is None) == (keys.dtype not in _SCALED), "eight bits come with scales")
            if scales is not None:
                is_sound = scales.shape == shape[:3] and scales.dtype == torch.float32
                _require(is_sound and _lies(scales, (0, 2, 1)), "scales are float32 [N, P, G]")
        return structs.PagesStruct(
            *(0 if each is None else each.data_ptr() for each in self.tensors),
            *(PAGE_KINDS[keys.dtype], self.group, *shape),
        )


KEY_ORDER: Final = (0, 2, 3, 1)  # dimensions as they follow in memory
VALUE_ORDER: Final = (0, 2, 1, 3)


def in_order(tensor: Tensor, order: tuple[int, ...]) -> Tensor:
    """A copy whose dimensions follow in memory in this order; its shape stays."""
    back = [order.index(i) for i in range(len(order))]
    return tensor.permute(order).contiguous().permute(back)


def _lies(tensor: Tensor, order: tuple[int, ...]) -> bool:
    return tensor.permute(order).is_contiguous() and tensor.device.type == "cpu"


def _require(is_met: bool, sentence: str) -> None:
    if not is_met:
        raise AssertionError(sentence)
