"""A matrix of integers with a scale and a zero for groups of columns; it serves, packed as it is.

It knows no checkpoint's layout: gptq.py, awq.py and compressed.py read those into this form.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from cutaway.kernels import integers
from cutaway.kernels.gate import Gate
from cutaway.kernels.heads import HeadPlaces
from cutaway.kernels.linear import linear
from cutaway.kernels.native import Groups, Kind, PackedWeight
from cutaway.kernels.norm.late import LateNorm
from cutaway.quantize.packed import Packed

_PACKED_COLUMNS = 32  # that share a scale in the native layouts


@dataclass(frozen=True)
class IntegerMatrix:
    """quant_scale * (quants - zero).

    group_of_column: which scale a column takes; None where groups are equal runs of columns.
    Shapes: quants [N, K] uint8 below 2^bits; quant_scale [N, G]; zero [N, G] or [1, 1] int16;
    group_of_column [K] int64.
    """

    bits: int
    quants: Tensor
    quant_scale: Tensor
    zero: Tensor
    group_of_column: Tensor | None = None

    @property
    def middle(self) -> int:
        """The zero of a symmetric matrix."""
        return 1 << (self.bits - 1)

    def dense(self) -> Tensor:
        """The matrix unpacked. Shapes: [N, K] float32."""
        return unpack(self.quants, self.quant_scale, self.zero, self.group_of_column)

    def keep(self, row_order: Tensor | None) -> nn.Module:
        """A weight for torch that unpacks at each use, rows in that order."""
        return KeptIntegers(self._ordered(row_order))

    def pack(self, row_order: Tensor | None) -> Packed | None:
        """By its integers, scales rounded to float16, where groups are multiples of 32 columns."""
        columns, groups = self.quants.shape[1], self.quant_scale.shape[1]
        if self.group_of_column is not None or columns % (groups * _PACKED_COLUMNS):
            return None
        whole = self._ordered(row_order)
        repeat = columns // groups // _PACKED_COLUMNS
        scale = whole.quant_scale.float().half().float()
        is_symmetric = bool((self.zero == self.middle).all())
        quants, base = whole.quants, 0
        if self.bits > 4:
            quants, base = (quants.view(torch.int8) ^ -128), 128
        kind = _kind(self.bits, is_symmetric)
        offset = (base - whole.zero.float()) * scale
        chunk = Groups(
            quants,
            scale.repeat_interleave(repeat, 1),
            offset.repeat_interleave(repeat, 1) if kind.is_affine else None,
        )
        packed = PackedWeight.from_groups(kind, [chunk], shape=(quants.shape[0], columns))
        return None if packed is None else Packed(packed)

    def _ordered(self, row_order: Tensor | None) -> IntegerMatrix:
        if row_order is None:
            return self
        zero = self.zero if len(self.zero) == 1 else self.zero[row_order]
        return IntegerMatrix(
            self.bits,
            self.quants[row_order],
            self.quant_scale[row_order],
            zero,
            self.group_of_column,
        )


def _kind(bits: int, is_symmetric: bool) -> Kind:
    if bits > 4:
        return Kind.Q8 if is_symmetric else Kind.Q8_AFFINE
    return Kind.Q4 if is_symmetric and bits == 4 else Kind.Q4_AFFINE


def unpack(
    quants: Tensor, quant_scale: Tensor, zero: Tensor, group_of_column: Tensor | None
) -> Tensor:
    """quant_scale * (quants - zero) in float32. Shapes: as IntegerMatrix has them -> [N, K]."""
    if group_of_column is None:
        return integers.unpack(quants, quant_scale, zero)
    scale, zero = quant_scale.float(), zero.float()
    zero = zero[:, group_of_column] if zero.shape[1] > 1 else zero
    return (quants.float() - zero) * scale[:, group_of_column]


class KeptIntegers(nn.Module):
    """The same for torch: unpacked to the type of what it multiplies, at each use.

    Shapes: quants [N, K] bytes, or [N, K / 2] where each byte has two: the even column's in the
    low nibble.
    """

    quants: Tensor
    quant_scale: Tensor
    zero: Tensor
    group_of_column: Tensor | None

    def __init__(self, matrix: IntegerMatrix) -> None:
        super().__init__()
        self._has_nibbles = matrix.bits <= 4 and matrix.quants.shape[1] % 2 == 0
        quants = matrix.quants
        if self._has_nibbles:
            quants = quants[:, 0::2] | (quants[:, 1::2] << 4)
        self.register_buffer("quants", quants.contiguous())
        self.register_buffer("quant_scale", matrix.quant_scale.contiguous())
        zero = matrix.zero.to(torch.int8) if self._has_nibbles else matrix.zero
        self.register_buffer("zero", zero.contiguous())
        self.register_buffer("group_of_column", matrix.group_of_column)
        self._behind: tuple[KeptIntegers, ...] = ()  # a tuple's are no modules of this one

    def precede(self, following: KeptIntegers) -> None:
        """Name the matrix that a step reads behind this one, of which memory may fetch a part."""
        self._behind = (following,)

    @property
    def num_rows(self) -> int:
        """Rows of the matrix, N."""
        return len(self.quants)

    def multiply(self, x: Tensor) -> Tensor:
        """x times the transposed matrix. Shapes: x [..., K] -> [..., N]."""
        if self.group_of_column is not None:
            return linear(x, self.dense().to(x.dtype))
        matrix = (self.quants, self.quant_scale, self.zero)
        following = self._behind[0].quants if self._behind else None
        return integers.multiply(x, *matrix, has_nibbles=self._has_nibbles, following=following)

    def multiply_normed(self, x: LateNorm, after: Gate | HeadPlaces | None) -> Tensor | None:
        """The same of a norm taken on the way, and what follows; None: it cannot."""
        if self.group_of_column is not None:
            return None
        matrix = (self.quants, self.quant_scale, self.zero)
        return integers.multiply_normed(x, *matrix, has_nibbles=self._has_nibbles, after=after)

    @classmethod
    def stack(cls, parts: Sequence[KeptIntegers]) -> KeptIntegers | None:
        """One matrix of several, below each other; None where they are not stored alike."""
        first = parts[0]
        if any(part.group_of_column is not None for part in parts):
            return None
        if len({(p._has_nibbles, p.quants.shape[1], p.quant_scale.shape[1]) for p in parts}) > 1:
            return None
        zeros = [part.zero for part in parts]
        if not all(zero.numel() == 1 and zero.equal(zeros[0]) for zero in zeros):
            zeros = [zero.expand(p.quant_scale.shape) for zero, p in zip(zeros, parts, strict=True)]
        else:
            zeros = zeros[:1]
        whole = cls.__new__(cls)
        nn.Module.__init__(whole)
        whole._has_nibbles, whole._behind = first._has_nibbles, ()
        whole.register_buffer("quants", torch.cat([part.quants for part in parts]))
        whole.register_buffer("quant_scale", torch.cat([part.quant_scale for part in parts]))
        whole.register_buffer("zero", torch.cat(zeros))
        whole.register_buffer("group_of_column", None)
        return whole

    def rows(self, token_ids: Tensor) -> Tensor:
        """Some rows, for a tied embedding. Shapes: token_ids [T] -> [T, K]."""
        zero = self.zero if len(self.zero) == 1 else self.zero[token_ids]
        quants = self._bytes(self.quants[token_ids])
        return unpack(quants, self.quant_scale[token_ids], zero, self.group_of_column)

    def dense(self) -> Tensor:
        """The matrix itself. Shapes: [N, K]."""
        quants = self._bytes(self.quants)
        return unpack(quants, self.quant_scale, self.zero, self.group_of_column)

    @property
    def num_bytes(self) -> int:
        """Bytes that it takes, scales included."""
        return sum(buffer.nbytes for buffer in self.buffers())

    def _bytes(self, quants: Tensor) -> Tensor:
        return integers.separate(quants, self._has_nibbles)
