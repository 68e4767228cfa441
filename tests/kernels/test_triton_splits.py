"""Splits of attention merged by the last of their programs, and keys read ahead: no bit changes.

Compiled on a GPU, in Triton's interpreter without one, as in test_triton.py.
"""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="Triton is not installed: pip install triton")

HAS_GPU = torch.cuda.is_available()
from cutaway.core.layout import FULL, Extent, Window  # noqa: E402
from cutaway.core.step import ShapePlan  # noqa: E402
from cutaway.kernels.attention import plain, triton, triton_splits  # noqa: E402
from cutaway.kernels.attention.plain import Scoring  # noqa: E402
from cutaway.kernels.store import scale_rows  # noqa: E402
from cutaway.kernels.triton_launches import counters  # noqa: E402

DEVICE = torch.device("cuda", 0) if HAS_GPU else torch.device("cpu")
pytestmark = (
    [pytest.mark.gpu] if HAS_GPU else [pytest.mark.filterwarnings("ignore::RuntimeWarning")]
)
SHORT = (torch.float16, torch.bfloat16) if HAS_GPU else (torch.float16,)
ROUNDING = {torch.float32: 1e-6, torch.bfloat16: 2**-8, torch.float16: 2**-11}
PAGE = 8
LENGTHS = (9, 17, 70, 200) if HAS_GPU else (9, 70)
SETTINGS: dict[str, dict[str, Any]] = {
    "full": {},
    "window": {"extent": Window(20)},
    "first": {"extent": Window(20, sinks=3)},
    "sinks": {"sinks": True},
}


def drawn(*shape: int, seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator).to(dtype).to(DEVICE)


def scoring_of(setting: str, heads: int) -> Scoring:
    chosen = SETTINGS[setting]
    sinks = drawn(heads, seed=7) * 3 if chosen.get("sinks") else None
    extent: Extent = chosen.get("extent", FULL)
    return Scoring(0.3, extent, None, sinks)


def laid_out(
    lengths: tuple[int, ...],
    *,
    queries: int = 1,
    heads: int = 4,
    groups: int = 2,
    size: int = 16,
    dtype: torch.dtype = torch.float32,
) -> tuple[list[Tensor], dict[str, Any]]:
    """As many queries of each sequence, over shuffled pages; behind a context they hold NaN."""
    width, count = -(-max(lengths) // PAGE) + 1, len(lengths)
    order = torch.randperm(width * count, generator=torch.Generator().manual_seed(3))
    table = order.view(count, width).to(DEVICE)
    pages = [drawn(width * count, PAGE, groups, size, seed=s, dtype=dtype) for s in (1, 2)]
    for row, length in enumerate(lengths):
        place = torch.arange(length, width * PAGE, device=DEVICE)
        for each in pages:
            each[table[row][place // PAGE], place % PAGE] = math.nan
    plan = ShapePlan((queries,) * count, lengths)
    where = {
        "page_table": table,
        "query_starts": torch.arange(count + 1, device=DEVICE) * queries,
        "context_lengths": torch.tensor(lengths, device=DEVICE),
        "plan": plan,
    }
    return [drawn(count * queries, heads, size, seed=0, dtype=dtype), *pages], where


def attend_plainly(tensors: list[Tensor], where: dict[str, Any], scoring: Scoring) -> Tensor:
    """The plain form in float64."""
    where = {name: value for name, value in where.items() if name != "query_starts"}
    named = {"softmax_scale": scoring.softmax_scale, "extent": scoring.extent}
    return plain.paged_attention(
        tensors[0].double(), *tensors[1:], **where, **named, sinks=scoring.sinks
    )


def error(ours: Tensor, exact: Tensor) -> float:
    distance = ((ours.double() - exact).norm() / exact.norm()).item()
    return math.inf if math.isnan(distance) else distance


def attend_both_ways(
    tensors: list[Tensor],
    where: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    **named: Any,
) -> tuple[Tensor, Tensor]:
    """By programs that merge, twice, which leave their counters at 0; and by a kernel behind."""
    apart: list[None] = []
    merge = triton.merge_splits

    def count(*given: Any) -> None:
        apart.append(None)
        merge(*given)

    monkeypatch.setattr(triton, "merge_splits", count)
    along = [triton.paged_attention(*tensors, **where, **named) for _ in range(2)]
    assert torch.equal(*along) and not counters(tensors[0].device).any() and not apart
    monkeypatch.setattr(triton_splits, "MERGES_ALONG", False)
    behind = triton.paged_attention(*tensors, **where, **named)
    assert apart, "nothing was split"
    return along[0], behind


@pytest.mark.parametrize(
    "queries, heads, splits, setting",
    # The interpreter takes seconds for each.
    [
        *((1, 4, 5, setting) for setting in SETTINGS),
        *((3, 4, 2, "sinks"), (1, 6, 9, "window")),
        *(product((1, 3), (4, 6), (2, 5, 9, 32), SETTINGS) if HAS_GPU else ()),
    ],
)
def test_the_last_program_merges_in_the_bits_of_a_kernel_behind(
    queries: int, heads: int, splits: int, setting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a sequence is too short for all splits, the last ones have nothing."""
    monkeypatch.setattr(triton, "_share_keys", lambda *_, **__: (16, 4, splits))
    scoring = scoring_of(setting, heads)
    for length in LENGTHS:
        tensors, where = laid_out((length,), queries=queries, heads=heads)
        with monkeypatch.context() as patched:
            along, behind = attend_both_ways(tensors, where, patched, scoring=scoring)
        assert torch.equal(along, behind)
        assert error(along, attend_plainly(tensors, where, scoring)) < 2e-6


@pytest.mark.parametrize("dtype", SHORT, ids=str)
@pytest.mark.parametrize(
    "heads, groups, size",
    [(4, 2, 24), *([(32, 8, 128), (16, 8, 128), (8, 8, 64), (16, 2, 64)] if HAS_GPU else [])],
)
def test_shapes_of_models_are_merged_along(
    heads: int, groups: int, size: int, dtype: torch.dtype, monkeypatch
) -> None:
    shape: dict[str, Any] = {"heads": heads, "groups": groups, "size": size, "dtype": dtype}
    tensors, where = laid_out((2100 if HAS_GPU else 130,), **shape)
    scoring = scoring_of("sinks", heads)
    along, behind = attend_both_ways(tensors, where, monkeypatch, scoring=scoring)
    assert torch.equal(along, behind)
    assert error(along, attend_plainly(tensors, where, scoring)) < ROUNDING[dtype]


def test_programs_that_read_behind_the_kernel_in_front_leave_the_merge_to_one_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Several sequences, pages of 8 bits, and steps whose lengths the device alone knows."""
    monkeypatch.setattr(triton, "_share_keys", lambda *_, **__: (16, 4, 2))
    monkeypatch.setattr(triton, "merge_last", None)
    scoring = scoring_of("full", 4)
    (query, *pages), where = laid_out((40, 17), size=32, dtype=SHORT[-1])
    assert triton.paged_attention(query, *pages, **where, scoring=scoring).isfinite().all()
    (query, *pages), where = laid_out((40,), size=32)
    packed = [scale_rows(each.nan_to_num(0.0), torch.int8) for each in pages]
    given = (query.to(SHORT[-1]), packed[0][0], packed[1][0])
    scales = {"key_scales": packed[0][1], "value_scales": packed[1][1]}
    ours = triton.paged_attention(*given, **where, scoring=scoring, **scales)
    assert ours.isfinite().all()
    where["plan"] = ShapePlan((1,), (1,), most_queries=1)
    assert triton.paged_attention(query, *pages, **where, scoring=scoring).isfinite().all()


@pytest.mark.parametrize("lines, splits", [(1, 1), (64, 33), (16, 9)], ids=str)
def test_one_split_and_many_rows_are_no_programs_own(lines: int, splits: int) -> None:
    assert triton_splits.count_at_once(lines, 128, warps=4, splits=splits) is None
    assert triton_splits.count_at_once(4, 128, warps=4, splits=33) == 16


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("dtype", SHORT, ids=str)
@pytest.mark.parametrize("queries", [1, 3])
@pytest.mark.parametrize("length", [3, 63, 64, 65, 66, 150] if HAS_GPU else [3, 65, 150])
def test_keys_read_ahead_change_no_bit(
    length: int, queries: int, dtype: torch.dtype, setting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The step's own keys, which may be of two blocks, are read behind the kernel in front."""
    monkeypatch.setattr(triton, "_share_keys", lambda *_, **__: (64, 4, 2))
    scoring = scoring_of(setting, 4)
    tensors, where = laid_out((length,), queries=queries, dtype=dtype)
    ahead = triton.paged_attention(*tensors, **where, scoring=scoring)
    monkeypatch.setattr(triton, "READS_AHEAD", False)
    assert torch.equal(ahead, triton.paged_attention(*tensors, **where, scoring=scoring))
    assert error(ahead, attend_plainly(tensors, where, scoring)) < 4 * ROUNDING[dtype]


@pytest.mark.skipif(not HAS_GPU, reason="graphs are a GPU's")
@pytest.mark.parametrize("count", [1, 3])
def test_launches_of_a_graph_follow_each_other_in_the_bits_of_the_parts(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Six that start early, each reading what the last one gave; 200 replays without a wait."""
    shape: dict[str, Any] = {"heads": 32, "groups": 8, "size": 128, "dtype": torch.bfloat16}
    tensors, where = laid_out((1100,) * count, **shape)
    where["plan"] = ShapePlan((1,) * count, (1100,) * count, bucket=count)
    scoring = scoring_of("full", 32)

    def run() -> Tensor:
        given = tensors[0]
        for _ in range(6):
            given = triton.paged_attention(given, *tensors[1:], **where, scoring=scoring)
        return given

    generator = torch.Generator().manual_seed(5)
    lengths = torch.randint(1, 1101, (200, count), generator=generator).to(DEVICE)
    expected: list[Tensor] = []
    with monkeypatch.context() as patched:
        patched.setattr(triton_splits, "MERGES_ALONG", False)
        patched.setattr(triton, "READS_AHEAD", False)
        for row in lengths:
            where["context_lengths"].copy_(row)
            expected.append(run())
    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        given = run()
    replayed: list[Tensor] = []
    for row in lengths:
        where["context_lengths"].copy_(row)
        graph.replay()
        replayed.append(given.clone())
    assert all(map(torch.equal, replayed, expected)) and not counters(DEVICE).any()
