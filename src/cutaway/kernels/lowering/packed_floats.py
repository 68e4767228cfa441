"""Float matrices that native operations read, packed once however often a model is recorded."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from typing import Any, TypeVar, cast

from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from cutaway.kernels import native

T = TypeVar("T")
_Place = tuple[int, tuple[int, ...], tuple[int, ...]]  # of a view: offset, shape, stride

# By the tensor whose memory it is: a view of it is another object in each forward.
_KEPT: MutableMapping[Tensor, dict[_Place, tuple[int, Any]]] = WeakIdKeyDictionary()


def packed_matrix(weight: Tensor) -> native.PackedWeight:
    """A matrix as native kernels read it. Shapes: [N, K]."""
    return _once(weight, lambda: native.PackedWeight.from_matrix(weight, native.Kind.F32))


def packed_stack(matrices: Tensor) -> native.WeightStack:
    """Matrices of one shape as native kernels read them. Shapes: [E, N, K]."""

    def pack() -> native.WeightStack:
        kind = native.Kind.F32
        return native.WeightStack.of(
            [native.PackedWeight.from_matrix(each.contiguous(), kind) for each in matrices]
        )

    return _once(matrices, pack)


def _once(source: Tensor, pack: Callable[[], T]) -> T:
    """What pack makes of a tensor; kept while the tensor lives and nobody writes to it."""
    base = source if source._base is None else source._base  # pyright: ignore[reportPrivateUsage]
    version = source._version  # pyright: ignore[reportPrivateUsage]
    kept = _KEPT.setdefault(base, {})
    place = (int(source.storage_offset()), tuple(source.shape), source.stride())
    written, packed = kept.get(place, (None, None))
    if packed is None or written != version:
        packed = pack()
        kept[place] = (version, packed)
    return cast(T, packed)
