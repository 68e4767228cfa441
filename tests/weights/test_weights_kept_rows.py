"""A rank's rows of a matrix: the same bits as in the whole, whatever the matrix is stored as."""

from __future__ import annotations

import pytest
import torch

from cutaway.core.shards import cuts
from cutaway.kernels import capture
from cutaway.kernels.native import Groups, Kind, PackedWeight

pytestmark = pytest.mark.skipif(
    not capture.is_available(), reason="the native kernels are not built: run `make native`"
)


def packed(kind: Kind, rows: int, columns: int) -> PackedWeight:
    """A random matrix, as integers with scales where the kind has those."""
    if not kind.is_integer:
        return PackedWeight.from_matrix(torch.randn(rows, columns), kind)
    quants = torch.randint(0, 16, (rows, columns), dtype=torch.uint8)
    if kind.has_bytes:
        quants = torch.randint(-128, 128, (rows, columns), dtype=torch.int8)
    scales = (rows, columns // kind.scale_columns)
    offset = torch.randn(scales) if kind.is_affine else None
    groups = [Groups(quants, torch.rand(scales), offset)]
    made = PackedWeight.from_groups(kind, groups, shape=(rows, columns))
    assert made is not None
    return made


@pytest.mark.parametrize("parts", [2, 3, 5])
@pytest.mark.parametrize("kind", Kind)
def test_scale_s13_rows_of_a_packed_matrix_are_cut_at_any_row(kind: Kind, parts: int) -> None:
    """No group of columns is cut, so every scale stays with its integers."""
    whole = packed(kind, 150, 64)
    dense = whole.dense()
    for part in (*cuts(150, parts), range(17, 99)):
        rows = torch.arange(part.start, part.stop)
        taken = whole.take(rows)
        assert taken.num_rows == len(part) and torch.equal(taken.dense(), dense[rows])
    mixed = torch.tensor([149, 0, 3, 3, 77])
    assert torch.equal(whole.take(mixed).dense(), dense[mixed])
