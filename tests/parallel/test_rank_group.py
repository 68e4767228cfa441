"""Groups of ranks: what is gathered has every rank's bits, whoever comes first."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from cutaway.core.errors import ConfigError
from cutaway.core.shards import cuts, widths
from cutaway.kernels.gather import gather_columns, gather_rows, receive_rows, send_rows
from cutaway.parallel import far_taps
from cutaway.parallel.rank_group import RankGroup, ThreadGroup, _TapWire, join_processes


def processes(size: int, folder: Path) -> list[RankGroup]:
    """The ranks of a gloo group, here in threads of one process."""
    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(lambda r: join_processes(folder, r, size, seconds=60), range(size)))


def threads(size: int, folder: Path) -> Sequence[RankGroup]:
    return ThreadGroup.of(size)


def each(groups: Sequence[RankGroup], call: Callable[[RankGroup], Any]) -> list[Any]:
    """What a call gives in each rank, all of them at once, in a step."""

    def called(group: RankGroup) -> Any:
        with group.step():
            return call(group)

    with ThreadPoolExecutor(len(groups)) as pool:
        return list(pool.map(called, groups))


@pytest.fixture(params=[threads, processes])
def made(request: pytest.FixtureRequest, tmp_path: Path) -> Sequence[RankGroup]:
    return request.param(3, tmp_path)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.float64])
def test_columns_come_together_as_they_were(made: Sequence[RankGroup], dtype: torch.dtype) -> None:
    """Two segments of uneven cuts, one rank with nothing of the second."""
    whole = [torch.randn(5, 10).to(dtype), torch.randn(5, 2).to(dtype)]
    parts = [cuts(10, 3), cuts(2, 3)]

    def gathered(group: RankGroup, *, is_for_root: bool = False) -> Tensor:
        own = [
            x[:, p[group.rank].start : p[group.rank].stop]
            for x, p in zip(whole, parts, strict=True)
        ]
        sizes = [widths(part) for part in parts]
        return gather_columns(torch.cat(own, 1), group, sizes, is_for_root=is_for_root)

    expected = torch.cat(whole, 1)
    assert all(torch.equal(found, expected) for found in each(made, gathered))
    first, *others = each(made, lambda group: gathered(group, is_for_root=True))
    assert torch.equal(first, expected)
    assert all(found.shape == expected.shape and not found.any() for found in others)


def test_rows_come_from_their_owners(made: Sequence[RankGroup]) -> None:
    table, ids = torch.randn(50, 4), torch.tensor([0, 49, 16, 17, 33, 0, 34])
    parts = cuts(50, 3)

    def taken(group: RankGroup) -> Tensor:
        own = parts[group.rank]
        rows = table[own.start : own.stop][(ids - own.start).clamp(0, len(own) - 1)]
        return gather_rows(rows, ids, group, [part.start for part in parts])

    assert all(torch.equal(found, table[ids]) for found in each(made, taken))


def test_scale_s07_bits_stay_however_often(made: Sequence[RankGroup]) -> None:
    """-0, NaN with a payload and denormals among them, a thousand times."""
    bits = torch.tensor([-(2**31), 0x7FC12345, 1, -1, 0x7F800000], dtype=torch.int32)

    def gathered(group: RankGroup) -> bool:
        own = (bits + group.rank).view(torch.float32)
        expected = torch.stack([bits + rank for rank in range(3)])
        return all(torch.equal(group.gather(own).view(torch.int32), expected) for _ in range(1000))

    assert all(each(made, gathered))


@pytest.mark.parametrize("count", [1, 1000, 300_000], ids=["small", "middle", "large"])
def test_scale_s08_bits_hang_on_no_order_and_on_no_size(
    made: Sequence[RankGroup], count: int
) -> None:
    """Whoever comes first, wherever it lies in memory, and whatever the size. GPUs: T6."""
    own = torch.randn(3, count)
    room = torch.zeros(3, count + 7)
    for rank, shift in enumerate((5, 1, 3)):  # rows at odd places, none behind its neighbour
        room[rank, shift : shift + count] = own[rank]
    lying = [room[rank, shift : shift + count] for rank, shift in enumerate((5, 1, 3))]

    for order in permutations(range(3)):

        def gathered(group: RankGroup, order: tuple[int, ...] = order) -> bool:
            time.sleep(0.003 * order[group.rank])
            return torch.equal(group.gather(lying[group.rank]), own)

        assert all(each([made[rank] for rank in order], gathered)), order


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_rows_are_handed_from_rank_to_rank(made: Sequence[RankGroup], dtype: torch.dtype) -> None:
    rows = torch.randn(7, 5).to(dtype)

    def passed(group: RankGroup) -> Tensor:
        before, after = (group.rank - 1) % 3, (group.rank + 1) % 3
        if group.rank == 0:
            send_rows(rows, group, after)
            return receive_rows(rows, group, before, 5, dtype)
        got = receive_rows(torch.zeros(7, 2), group, before, 5, dtype)
        send_rows(got, group, after)
        return got

    assert all(torch.equal(found, rows) for found in each(made, passed))


def test_taps_of_other_ranks_are_seen_and_changed_by_the_first(made: Sequence[RankGroup]) -> None:
    seen: list[tuple[str, int | None, list[float]]] = []

    def sink(name: str, value: Tensor, layer: int | None) -> Tensor | None:
        seen.append((name, layer, value.tolist()))
        return value + 10 if layer == 1 else None

    def step(group: RankGroup) -> list[Tensor | None]:
        if group.rank == 0:
            group.sink = sink
            group.receive(torch.zeros(1), 2)
            return []
        group.is_tapped = True
        own = torch.tensor([float(group.rank)])
        told = [group.tell("x", own, group.rank), group.tell("y", own, None)]
        if group.rank == 1:
            far_taps.finish(_TapWire(group))
        else:
            group.send(own, 0)
        return told

    _, first, second = each(made, step)
    assert seen == [("x", 1, [1.0]), ("y", None, [1.0]), ("x", 2, [2.0]), ("y", None, [2.0])]
    assert first[0] is not None and first[0].tolist() == [11.0]
    assert first[1] is None and second == [None, None]


def test_scale_s05_a_library_that_moves_numbers_wrongly_is_found_at_the_start() -> None:
    first, _ = ThreadGroup.of(2)
    first.gather = lambda x: torch.stack((x, x))  # type: ignore[method-assign]
    with pytest.raises(ConfigError, match=r"gather among 2 ranks gave .*start with tensor 1"):
        first.try_out()


def test_outside_of_a_step_nothing_is_gathered() -> None:
    """The others would not hand in theirs, and this rank would wait for ever."""
    first, _ = ThreadGroup.of(2)
    with pytest.raises(ConfigError, match="whole matrices, which are divided among 2 ranks"):
        first.gather(torch.zeros(1))


def test_who_waits_for_a_rank_that_left_is_told() -> None:
    first, second = ThreadGroup.of(2, seconds=30)
    second.leave()
    with first.step(), pytest.raises(threading.BrokenBarrierError):
        first.gather(torch.zeros(1))


def test_scale_s01_a_rank_that_does_not_come_is_not_waited_for(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError):
        join_processes(tmp_path, 0, 2, seconds=0.5)


def test_scale_s14_t4_twenty_groups_at_once_do_not_meet_one_another(tmp_path: Path) -> None:
    def whole_group(number: int) -> bool:
        folder = tmp_path / str(number)
        folder.mkdir()
        found = each(processes(2, folder), lambda group: group.gather(torch.tensor([number])))
        return all(every.tolist() == [[number], [number]] for every in found)

    with ThreadPoolExecutor(20) as pool:
        assert all(pool.map(whole_group, range(20)))
