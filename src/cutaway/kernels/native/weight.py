"""Weights in the layouts of the native kernels: panels of 16 rows, packed once at load.

It knows stored types of files by name, not what a tensor is for.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, cast

import numpy
import torch
from torch import Tensor

from cutaway.kernels.native import structs
from cutaway.kernels.native.large_pages import room_for
from cutaway.kernels.native.library import check, library

GROUP_COLUMNS: Final = 32


class Kind(IntEnum):
    """How numbers are kept.

    q8: scale * q, q in a byte; q4: scale * (q - 8), q in a nibble; affine kinds: scale * q +
    minimum. Kinds with halves have a scale for each 16 columns instead of 32; q4_halves is affine.
    """

    F32 = 0
    F16 = 1
    BF16 = 2
    Q8 = 3
    Q4 = 4
    Q4_AFFINE = 5
    Q8_AFFINE = 6
    Q8_HALVES = 7
    Q4_HALVES = 8

    @property
    def is_integer(self) -> bool:
        """Whether numbers are integers with scales."""
        return self >= Kind.Q8

    @property
    def has_bytes(self) -> bool:
        """Whether each integer takes a whole byte."""
        return self in (Kind.Q8, Kind.Q8_AFFINE, Kind.Q8_HALVES)

    @property
    def is_affine(self) -> bool:
        """Whether each group has an offset beside its scale."""
        return self in (Kind.Q4_AFFINE, Kind.Q8_AFFINE, Kind.Q4_HALVES)

    @property
    def scale_columns(self) -> int:
        """Columns that share a scale, of integer kinds."""
        return 16 if self in (Kind.Q8_HALVES, Kind.Q4_HALVES) else GROUP_COLUMNS


PANEL_ROWS: Final = 16

_FROM_DTYPE: Final[Mapping[torch.dtype, int]] = {
    torch.float32: 0,
    torch.float16: 1,
    torch.bfloat16: 2,
}


@dataclass(frozen=True)
class _BlockType:
    """A type of GGUF files: the library's code for it, its block, and what holds its integers."""

    source: int
    values: int
    num_bytes: int
    kind: Kind


_BLOCKS: Final[Mapping[str, _BlockType]] = {
    "Q8_0": _BlockType(3, 32, 34, Kind.Q8),
    "Q4_0": _BlockType(4, 32, 18, Kind.Q4),
    "Q4_1": _BlockType(5, 32, 20, Kind.Q4_AFFINE),
    "Q5_0": _BlockType(6, 32, 22, Kind.Q8),
    "Q5_1": _BlockType(7, 32, 24, Kind.Q8_AFFINE),
    "Q2_K": _BlockType(8, 256, 84, Kind.Q4_HALVES),
    "Q3_K": _BlockType(9, 256, 110, Kind.Q4_HALVES),
    "Q4_K": _BlockType(10, 256, 144, Kind.Q4_AFFINE),
    "Q5_K": _BlockType(11, 256, 176, Kind.Q8_AFFINE),
    "Q6_K": _BlockType(12, 256, 210, Kind.Q8_HALVES),
    "IQ4_NL": _BlockType(13, 32, 18, Kind.Q8),
    "IQ4_XS": _BlockType(14, 256, 136, Kind.Q8),
    "MXFP4": _BlockType(15, 32, 17, Kind.Q8),
}


@dataclass(frozen=True)
class Groups:
    """Some rows of a matrix as integers, for packing.

    Shapes: quants [N, K], bytes that stand for -128 to 127, or uint8 below 16 for nibbles;
    quant_scale and offset [N, K / kind.scale_columns] float32, offset for affine kinds.
    """

    quants: Tensor
    quant_scale: Tensor
    offset: Tensor | None = None


@dataclass(frozen=True, eq=False)
class PackedWeight:
    """A matrix of num_rows rows and num_columns columns.

    Shapes: data, bytes, laid out as native/kernels/panel.h says.
    """

    data: Tensor
    num_rows: int
    num_columns: int
    kind: Kind

    @staticmethod
    def takes_blocks(type_name: str) -> bool:
        """Whether there is a layout that holds a GGUF type's integers."""
        return type_name in _BLOCKS

    @staticmethod
    def from_blocks(
        data: memoryview | bytes,
        type_name: str,
        *,
        shape: tuple[int, int],
        row_order: Tensor | None = None,
    ) -> PackedWeight | None:
        """Pack a tensor of a GGUF file from its stored bytes; None where float16 is too small.

        Integers stay; scales that a block computes are rounded to float16.
        Shapes: row_order [N] int64: row n of the result is row row_order[n] of the file.
        """
        block = _BLOCKS[type_name]
        raw = numpy.frombuffer(data, numpy.uint8)
        expected = shape[0] * shape[1] // block.values * block.num_bytes
        if shape[1] % block.values or raw.size != expected:
            raise AssertionError(f"{raw.size} bytes are not {type_name} of shape {shape}")
        return _pack(block.source, raw.ctypes.data, row_order, shape, block.kind)

    @staticmethod
    def from_matrix(matrix: Tensor, kind: Kind, *, row_order: Tensor | None = None) -> PackedWeight:
        """Pack a float matrix, rounded to the kind's numbers: any kind but q4.

        Shapes: matrix [N, K]; for integers K is a multiple of 32.
        """
        rows, columns = matrix.shape
        if kind is Kind.Q4 or (kind.is_integer and columns % GROUP_COLUMNS):
            raise AssertionError(f"a float matrix of {columns} columns cannot become {kind.name}")
        matrix = matrix.detach().contiguous()
        source = _FROM_DTYPE[matrix.dtype]
        packed = _pack(source, matrix.data_ptr(), row_order, (rows, columns), kind)
        assert packed is not None, "only blocks have scales that may be too large"
        return packed

    @staticmethod
    def from_groups(
        kind: Kind, chunks: Iterable[Groups], *, shape: tuple[int, int]
    ) -> PackedWeight | None:
        """Pack integers with their scales, some rows at a time: all but the last a multiple of 16.

        Scales and offsets are rounded to float16; None where one is too large for that.
        """
        rows, columns = shape
        if not kind.is_integer or columns % GROUP_COLUMNS:
            raise AssertionError(f"{columns} columns cannot become {kind.name}")
        num_panels = -(-rows // PANEL_ROWS)
        data = room_for(packed_bytes(kind, shape))
        panels = data.view(num_panels, columns // GROUP_COLUMNS, -1)
        first = 0
        for chunk in chunks:
            count = -(-len(chunk.quants) // PANEL_ROWS)
            if not _put_groups(panels[first : first + count], chunk, kind):
                return None
            first += count
        if first != num_panels:
            raise AssertionError(f"{first} panels of {num_panels} were filled")
        return PackedWeight(data, rows, columns, kind)

    def dense(self, out: Tensor | None = None) -> Tensor:
        """The matrix in float32, in out if that is given: [N, K], contiguous."""
        if out is None:
            out = torch.empty(self.num_rows, self.num_columns)
        check(library().cw_unpack(ctypes.byref(self.struct()), out.data_ptr()))
        return out

    def tiles(self, num_numbers: int, out: Tensor | None = None) -> Iterator[Tensor]:
        """The matrix in float32, about so many numbers at a time. Shapes: [n, K] each.

        out: where they are put one below the other, if it is given. Shapes: [N, K].
        """
        panels = self.panels()
        count = max(1, num_numbers // (PANEL_ROWS * self.num_columns))
        for first in range(0, len(panels), count):
            part = panels[first : first + count]
            row = first * PANEL_ROWS
            num_rows = min(len(part) * PANEL_ROWS, self.num_rows - row)
            room = None if out is None else out[row : row + num_rows]
            yield PackedWeight(part, num_rows, self.num_columns, self.kind).dense(room)

    def rows(self, indices: Tensor) -> Tensor:
        """Some rows in float32, unpacking no panel but theirs. Shapes: [T] -> [T, K]."""
        panel_of = indices // PANEL_ROWS
        panels = torch.tensor(sorted(set(cast("list[int]", panel_of.tolist()))))
        data = self.data.view(-1, self.data.numel() // -(-self.num_rows // PANEL_ROWS))[panels]
        part = PackedWeight(data, len(panels) * PANEL_ROWS, self.num_columns, self.kind)
        at = torch.searchsorted(panels, panel_of)
        return part.dense()[at * PANEL_ROWS + indices % PANEL_ROWS]

    def take(self, rows: Tensor) -> PackedWeight:
        """Some rows as a weight of its own, the same bits. Shapes: rows [n] int64 -> [n, K]."""
        shape = (len(rows), self.num_columns)
        data = torch.zeros(packed_bytes(self.kind, shape), dtype=torch.uint8)
        made = PackedWeight(data, *shape, self.kind)
        at = torch.arange(len(rows))
        for old, new in zip(self.lanes(), made.lanes(), strict=True):
            # [panels, groups, words, 16, bytes]: a row is one lane of one panel.
            lanes = old[rows // PANEL_ROWS, :, :, rows % PANEL_ROWS]
            new[at // PANEL_ROWS, :, :, at % PANEL_ROWS] = lanes
        return made

    @property
    def num_bytes(self) -> int:
        """Bytes that it takes, scales included."""
        return self.data.nbytes

    def panels(self) -> Tensor:
        """The bytes of each 16 rows. Shapes: [panels, bytes]."""
        return self.data.view(-(-self.num_rows // PANEL_ROWS), -1)

    def lanes(self) -> tuple[Tensor, ...]:
        """The bytes of single rows: a group's scales and then its integers, or plain numbers.

        Shapes: [panels, groups or columns, words, 16, bytes of a word] each.
        """
        panels = self.panels()
        if not self.kind.is_integer:
            return (panels.view(len(panels), self.num_columns, 1, PANEL_ROWS, -1),)
        groups = panels.view(len(panels), self.num_columns // GROUP_COLUMNS, -1)
        size = PANEL_ROWS * (GROUP_COLUMNS if self.kind.has_bytes else GROUP_COLUMNS // 2)
        first = groups.shape[2] - size
        scales, quants = groups[:, :, :first], groups[:, :, first:]
        shape = (*groups.shape[:2], -1, PANEL_ROWS)
        return scales.view(*shape, 2), quants.view(*shape, 4)

    def struct(self) -> structs.WeightStruct:
        """The form that native operations take; it points into this weight's memory."""
        return structs.WeightStruct(
            self.data.data_ptr(), self.num_rows, self.num_columns, self.kind
        )


def packed_bytes(kind: Kind, shape: tuple[int, int]) -> int:
    """Bytes that a matrix takes. Raises AssertionError where it cannot be packed."""
    num_bytes = library().cw_packed_bytes(kind, *shape)
    if num_bytes <= 0:
        raise AssertionError(f"a matrix of shape {shape} cannot be packed")
    return num_bytes


def _put_groups(panels: Tensor, chunk: Groups, kind: Kind) -> bool:
    """Write rows into their panels, laid out as native/kernels/panel.h says.

    Shapes: panels [panels, K / 32, bytes]. False: a scale or offset is beyond float16.
    """
    num_panels, num_groups, _ = panels.shape
    numbers = [chunk.quant_scale] + ([chunk.offset] if chunk.offset is not None else [])
    assert len(numbers) == 1 + kind.is_affine, f"{kind.name} and {len(numbers)} numbers a group"
    at = 0
    for number in numbers:
        half = number.half()
        if (half.isinf() & number.isfinite()).any():
            return False
        # [panels, rows, groups, parts] -> [panels, groups, parts, rows]
        parts = _whole_panels(half).view(num_panels, PANEL_ROWS, num_groups, -1)
        laid = parts.permute(0, 2, 3, 1).reshape(num_panels, num_groups, -1).contiguous()
        laid = laid.view(torch.uint8)
        panels[:, :, at : at + laid.shape[2]] = laid
        at += laid.shape[2]
    quants = _whole_panels(chunk.quants)
    if kind.has_bytes:
        words = (quants.view(torch.uint8) ^ 128).view(num_panels, PANEL_ROWS, num_groups, 8, 4)
    else:
        low, high = quants.view(num_panels, PANEL_ROWS, num_groups, 2, 4, 4).unbind(3)
        words = low | (high << 4)
    panels[:, :, at:].view(num_panels, num_groups, -1, PANEL_ROWS, 4).copy_(
        words.permute(0, 2, 3, 1, 4)
    )
    return True


def _whole_panels(rows: Tensor) -> Tensor:
    """Rows with zeros after them, up to a multiple of 16."""
    missing = -len(rows) % PANEL_ROWS
    if not missing:
        return rows.contiguous()
    return torch.cat((rows, rows.new_zeros(missing, rows.shape[1])))


def _pack(
    source: int, address: int, row_order: Tensor | None, shape: tuple[int, int], kind: Kind
) -> PackedWeight | None:
    rows, columns = shape
    # Aligned to 64 bytes, which is what a register wants.
    data = room_for(packed_bytes(kind, shape))
    order = 0
    if row_order is not None:
        if row_order.dtype != torch.int64 or row_order.shape != (rows,):
            raise AssertionError("row_order holds one int64 per row")
        row_order = row_order.contiguous()
        order = row_order.data_ptr()
    status = library().cw_pack(source, address, order, kind, rows, columns, data.data_ptr())
    if status == structs.Status.TOO_LARGE:
        return None
    check(status)
    return PackedWeight(data, rows, columns, kind)
