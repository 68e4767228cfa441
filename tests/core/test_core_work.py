"""Bytes and operations of parts of steps, by hand."""

from __future__ import annotations

import pytest

from cutaway.core.layout import FULL, Extent, Window
from cutaway.core.work import CacheReads, Matrices, ModelWork, Work


def seen(extent: Extent, position: int) -> set[int]:
    """Keys that a query sees, its own included, one by one."""
    if isinstance(extent, Window):
        first = max(0, position - extent.width + 1)
        return set(range(first, position + 1)) | set(range(min(extent.sinks, position + 1)))
    return set(range(position + 1))


@pytest.mark.parametrize("extent", [FULL, Window(5), Window(5, 3)])
@pytest.mark.parametrize(("start", "end"), [(0, 1), (0, 12), (7, 8), (9, 14), (3, 30)])
def test_a_part_reads_what_its_queries_see_and_writes_its_own(
    extent: Extent, start: int, end: int
) -> None:
    work = CacheReads(extent, num_layers=3, bytes_per_token=10, pair_values=7).work(start, end)
    keys = [seen(extent, position) for position in range(start, end)]
    assert work.pair_flops == 2 * 7 * 3 * sum(map(len, keys))
    assert work.cache_bytes == 10 * 3 * (len(set[int]().union(*keys)) + end - start)


def test_weights_are_read_once_and_shared() -> None:
    matrices = Matrices(1000, values=50, expert_bytes=800, used=2, every=8)
    assert [matrices.read(count) for count in (1, 2, 4, 9)] == [1200, 1400, 1800, 1800]
    shares = [matrices.work(count, 4) for count in (1, 3)]
    assert shares[0].weight_bytes + shares[1].weight_bytes == 1800
    assert shares[1].matrix_flops == 300 and matrices.work(0, 4) == Work()


def test_parts_of_a_step_add_up_to_the_step() -> None:
    model = ModelWork(4.0, Matrices(10, 3), Matrices(20, 5), Matrices(30, 7), ())
    parts = [(0, 6, 0), (9, 10, 1), (4, 5, 1)]
    works = [model.part(*part, num_tokens=8, all_rows=2) for part in parts]
    total = sum((work for stages in works for work in stages), Work())
    assert total.weight_bytes == pytest.approx(4 * 8 + 10 + 20 + 30)
    assert total.flops == 2 * (8 * (3 + 5) + 2 * 7)
    assert works[0][3] == Work(), "no row, no share of the unembedding"


def test_a_state_is_read_and_written_whatever_the_length() -> None:
    reading = CacheReads(Window(2), num_layers=3, bytes_per_token=0, pair_values=0, state_bytes=100)
    assert reading.work(0, 1) == reading.work(50, 90) == Work(cache_bytes=600.0)
    assert Work().intensity == 0 and Work(10, 10, 30, 10).intensity == 2
