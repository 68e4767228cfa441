"""What native forms are made with: the recorded calls, who reads what, and what was taken along."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, cast

import torch
from torch import Tensor

from cutaway.kernels import native
from cutaway.kernels.lowering.rows import is_apart, is_matrix, rows_of
from cutaway.kernels.native.structs import Rows
from cutaway.kernels.norm import layer_norm, offset_rms_norm, rms_norm, wide_rms_norm
from cutaway.kernels.recording import Call, Recorded, Recording
from cutaway.kernels.rotary import cosines

Place = Callable[[Recorded], Tensor]  # a value's buffer, with room for the largest step


@dataclass(eq=False)
class NativeCall:
    """Native operations in the place of some calls.

    reads, writes: the values that have to be in buffers for them.
    """

    reads: tuple[Recorded, ...]
    writes: tuple[Recorded, ...]
    make: Callable[[Place], Sequence[native.Operation]]


@dataclass(frozen=True, eq=False)
class RotationSource:
    """Where cosines and sines are: a table by position, or two values by token."""

    reads: tuple[Recorded, ...]
    rotation: Callable[[Place], native.Rotation]


class Forms:
    """The calls of a recording while native operations are found for them, from the last on."""

    def __init__(
        self, recording: Recording, calls: Sequence[Call], result: Recorded, *, max_length: int
    ) -> None:
        self.step = recording.step
        self.calls = calls
        self.absorbed: set[Call] = set()
        self._max_length = max_length
        self._tables: dict[Call, native.Rotation] = {}
        # The forward's caller reads its result.
        self._readers = {result.root: [Call(present, (), {})]}
        for call in calls:
            for root in {} if call.is_view else dict.fromkeys(each.root for each in call.reads()):
                self._readers.setdefault(root, []).append(call)

    def goes_only_to(self, value: Recorded, reader: Call) -> bool:
        """Whether nothing else reads a value, nor what it is a view of."""
        return self._readers.get(value.root) == [reader]

    def before(
        self, x: Recorded, reader: Call, *, absorbs: bool = True
    ) -> tuple[Recorded, native.NormWeights | None]:
        """What a norm before a reader reads, and the norm; x itself where there is none."""
        call = x.call
        if x.root is not x or call is None or call.function not in NORMS:
            return x, None
        source = call.args[0]
        is_placed = is_matrix(source) if x.dim() == 2 else is_head_rows(source)
        if not (is_placed and self.goes_only_to(x, reader)):
            return x, None
        if absorbs:
            self.absorbed.add(call)
        return cast(Recorded, source), norm_of(call)

    def turn(self, cos: Any, sin: Any, *, are_neighbours: bool = False) -> RotationSource | None:
        """The rotation by two recorded values; None where native kernels do not know it."""
        call = cos.call if isinstance(cos, Recorded) else None
        if call is None or call.function is not cosines or sin is not call.results[1]:
            return None
        positions, inverse, factor, dtype = call.args
        if dtype != torch.float32 or positions is not self.step.positions:
            return None
        if isinstance(inverse, Recorded):  # angles hang on each token's own length
            first, second = cast("tuple[Recorded, Recorded]", call.results)

            def by_token(place: Place) -> native.Rotation:
                return native.Rotation(
                    *(place(first), place(second)), is_by_token=True, are_neighbours=are_neighbours
                )

            return RotationSource((first, second), by_token)
        if call not in self._tables:
            made = cosines(torch.arange(self._max_length), inverse, factor, dtype)
            self._tables[call] = native.Rotation(made[0].contiguous(), made[1].contiguous())
        rotation = replace(self._tables[call], are_neighbours=are_neighbours)
        return RotationSource((), lambda _: rotation)


def _of_deviation(weight: Tensor | None, bias: Tensor | None, epsilon: float) -> native.NormWeights:
    given, added = (None if each is None else each.detach() for each in (weight, bias))
    return native.NormWeights(given, epsilon, added, native.NormKind.LAYER)


def _of_square(weight: Tensor | None, epsilon: float) -> native.NormWeights:
    return native.NormWeights(None if weight is None else weight.detach(), epsilon)


def _of_offset(weight: Tensor, epsilon: float) -> native.NormWeights:
    return _of_square(1.0 + weight, epsilon)


NORMS: Final[Mapping[Any, Callable[..., native.NormWeights]]] = {
    layer_norm: _of_deviation,
    rms_norm: _of_square,
    wide_rms_norm: _of_square,  # in float32 the same
    offset_rms_norm: _of_offset,
}


def norm_of(call: Call) -> native.NormWeights:
    """A recorded norm in the form that native operations take."""
    return NORMS[call.function](*call.args[1:])


def is_head_rows(x: Any) -> bool:
    """Whether a value is heads of the step's tokens. Shapes: [T, H, C]."""
    is_small = is_apart(x) and x.dim() == 3 and x.shape[2] <= native.MOST_HEAD_SIZE
    return is_small and rows_of(x) is Rows.TOKENS


def present(*values: Recorded | None) -> tuple[Recorded, ...]:
    """Those of some values that are there."""
    return tuple(each for each in values if each is not None)
