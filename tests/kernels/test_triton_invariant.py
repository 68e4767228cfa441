"""Forms in Triton with one order of summation: a row has the same bits in any company and cut.

The interpreter multiplies tiles by a library that may sum other tiles in another order: there only
what has the same tile is compared bit by bit, on a GPU everything.
"""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="Triton is not installed: pip install triton")

from test_triton import (
    CASES,
    DEVICE,
    HAS_GPU,
    ROUNDING,
    SETTINGS,
    SHORT,
    attend_plainly,
    drawn,
    error,
    laid_out,
    scoring_of,
)

from cutaway.core.step import ShapePlan
from cutaway.kernels.attention import triton_segments as attention
from cutaway.kernels.heads import triton as triton_heads
from cutaway.kernels.heads.plain import HeadNorm
from cutaway.kernels.linear import plain as plain_linear
from cutaway.kernels.linear import triton_shares as products
from cutaway.kernels.linear.triton_shares import Tile
from cutaway.kernels.store import scale_rows

pytestmark = (
    [pytest.mark.gpu] if HAS_GPU else [pytest.mark.filterwarnings("ignore::RuntimeWarning")]
)


def assert_same(ours: Tensor, expected: Tensor, *, rounding: float) -> None:
    """Bit by bit on a GPU."""
    if HAS_GPU:
        assert torch.equal(ours, expected)
    else:
        assert error(ours, expected) < rounding


@pytest.mark.parametrize("rows", [130, 1100 if HAS_GPU else 300])
def test_tokens_with_zeros_behind_them_have_the_same_bits(
    rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks that are not full are slow: before a large weight they are filled up."""
    dtype = torch.float16
    x, weight = drawn(140, 512, dtype=dtype), drawn(rows, 512, seed=1, dtype=dtype)
    bare = products.linear(x, weight, tile=Tile(256, 128, 64, 8, 4))
    monkeypatch.setattr(products, "_LARGE", 0)
    filled = products.linear(x, weight, tile=Tile(256, 128, 64, 8, 4))
    assert filled.shape == bare.shape and filled.is_contiguous()
    assert torch.equal(filled, bare)
    assert_same(products.linear(x, weight), bare, rounding=2 * ROUNDING[dtype])


def test_rows_are_cut_by_the_shape_of_a_weight_alone() -> None:
    assert products.num_shares(28672, 4096) == products.num_shares(64, 256) == 1
    assert (products.num_shares(4096, 4096), products.num_shares(4096, 14336)) == (2, 4)


@pytest.mark.parametrize("dtype", SHORT, ids=str)
@pytest.mark.parametrize(
    "rows, columns", [(130, 520), (60, 96), (7, 50)] + [(9000, 256), (4096, 4096)] * HAS_GPU
)
def test_a_product_has_the_same_bits_among_any_number_of_tokens(
    rows: int, columns: int, dtype: torch.dtype
) -> None:
    x, weight = drawn(300, columns, dtype=dtype), drawn(rows, columns, seed=1, dtype=dtype)
    exact = plain_linear.linear(x.double(), weight.double())
    alone = torch.cat([products.linear(x[i : i + 1], weight) for i in (0, 1, 299)])
    for count in (3, 17, 40, 100, 140, 170, 200, 300):
        ours = products.linear(x[:count], weight)
        assert error(ours, exact[:count]) < 2 * ROUNDING[dtype]
        assert_same(ours[:2], alone[:2], rounding=2 * ROUNDING[dtype])
    assert_same(ours[299:], alone[2:], rounding=2 * ROUNDING[dtype])


@pytest.mark.parametrize("dtype", SHORT, ids=str)
@pytest.mark.parametrize("count", [1, 40, 200])
def test_a_rank_s_rows_have_the_bits_of_the_whole(count: int, dtype: torch.dtype) -> None:
    """A cut has fewer rows, and would alone be summed in other shares."""
    rows, columns = (9000, 512) if HAS_GPU else (160, 96)
    x, weight = drawn(count, columns, dtype=dtype), drawn(rows, columns, seed=1, dtype=dtype)
    whole, own = products.linear(x, weight), slice(rows // 2, rows // 2 + 64)
    ours = products.linear(x, weight[own], whole_rows=rows)
    assert_same(ours, whole[:, own].contiguous(), rounding=2 * ROUNDING[dtype])


@pytest.mark.skipif(not HAS_GPU, reason="what the matrix units of a card do with a tile")
@pytest.mark.parametrize("dtype", SHORT, ids=str)
@pytest.mark.parametrize("rows, columns", [(4096, 4096), (1024, 3072), (9216, 1024)])
def test_no_tile_changes_a_bit(rows: int, columns: int, dtype: torch.dtype) -> None:
    x, weight = drawn(260, columns, dtype=dtype), drawn(rows, columns, seed=1, dtype=dtype)
    expected = products.linear(x[:16], weight)
    for tile in (
        *(Tile(16, 16, 128, 1, 3), Tile(16, 32, 128, 2, 3), Tile(32, 64, 64, 4, 3)),
        *(Tile(64, 64, 64, 4, 3), Tile(64, 128, 64, 4, 3), Tile(128, 128, 64, 4, 3)),
        *(Tile(128, 256, 64, 8, 3), Tile(256, 128, 64, 8, 3), Tile(64, 32, 64, 2, 3)),
    ):
        for count in (16, 33, 150, 190, 260):
            assert torch.equal(products.linear(x[:count], weight)[:16], expected), count
            assert torch.equal(products.linear(x[:count], weight, tile=tile)[:16], expected), tile


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("case", CASES if HAS_GPU else ["mixed", "long"])
def test_attention_in_segments_equals_the_plain_one(case: str, setting: str) -> None:
    scoring = scoring_of(setting, 4)
    sizes = {"heads": 4, "groups": 2, "size": 16, "dtype": SHORT[-1]}
    tensors, where = laid_out(case, **sizes, extent=scoring.extent)
    ours = attention.paged_attention(*tensors, **where, scoring=scoring)
    assert error(ours, attend_plainly(tensors, where, scoring)) < 2 * ROUNDING[SHORT[-1]]


@pytest.mark.parametrize("setting", SETTINGS if HAS_GPU else ["first", "sinks"])
def test_a_query_is_attended_alike_alone_in_company_and_in_any_chunk(
    setting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last 70 tokens of 300 as one chunk, in chunks, by a few, and one by one."""
    monkeypatch.setattr(attention, "SEGMENT", 128)
    scoring = scoring_of(setting, 4)
    tensors, where = laid_out("long", heads=4, groups=2, size=32, dtype=SHORT[-1])
    query = drawn(70, 4, 32, seed=5, dtype=SHORT[-1])
    table, pages = where["page_table"], tensors[1:]

    def attend(parts: list[tuple[int, int]], beside: bool = False, **named: int) -> Tensor:
        """Queries from one to another, each pair a sequence of its own over the same pages."""
        for name, value in named.items():
            monkeypatch.setattr(attention, name, value)
        lengths = [(end - begin, 230 + end) for begin, end in parts]
        rows, own = [table[:1]] * len(parts), [query[begin:end] for begin, end in parts]
        if beside:
            lengths, rows = [*lengths, (1, 5)], [*rows, table[1:]]
            own.append(drawn(1, 4, 32, seed=6, dtype=SHORT[-1]))
        plan = ShapePlan(tuple(q for q, _ in lengths), tuple(k for _, k in lengths))
        starts = [sum(plan.query_lengths[:i]) for i in range(len(lengths) + 1)]
        mixed = attention.paged_attention(
            *(torch.cat(own), *pages),
            page_table=torch.cat(rows),
            query_starts=torch.tensor(starts, device=DEVICE),
            context_lengths=torch.tensor(plan.context_lengths, device=DEVICE),
            plan=plan,
            scoring=scoring,
        )
        return mixed[: sum(end - begin for begin, end in parts)]

    whole = attend([(0, 70)])
    rounding = 2 * ROUNDING[SHORT[-1]]
    assert_same(attend([(0, 9), (9, 39), (39, 70)]), whole, rounding=rounding)
    single = list(pairwise(range(64, 71)))
    split = attend(single, _ENOUGH_PROGRAMS=4096)
    assert_same(split, whole[64:], rounding=rounding)
    # Of one tile each: whether a program has all segments or one is no part of the result.
    assert torch.equal(attend(single, _ENOUGH_PROGRAMS=1), split)
    assert torch.equal(attend(single, beside=True, _ENOUGH_PROGRAMS=60), split)
    for place, part in enumerate(single[:2]):
        assert torch.equal(attend([part], _ENOUGH_PROGRAMS=512), split[place : place + 1])
    assert_same(attend([(62, 64), (64, 70)])[2:], whole[64:], rounding=rounding)


@pytest.mark.parametrize("kept", [torch.int8, torch.float8_e4m3fn], ids=str)
def test_segments_of_eight_bits_are_attended_with_their_scales(kept: torch.dtype) -> None:
    (query, *pages), where = laid_out("mixed", heads=4, groups=2, size=32, dtype=torch.float32)
    packed = [scale_rows(each.nan_to_num(0.0), kept) for each in pages]
    scales = {"key_scales": packed[0][1], "value_scales": packed[1][1]}
    scoring = scoring_of("full", 4)
    tensors = [query.to(SHORT[-1]), packed[0][0], packed[1][0]]
    ours = attention.paged_attention(*tensors, **where, scoring=scoring, **scales)
    exact = attend_plainly(tensors, where, scoring, **scales)
    assert error(ours, exact) < 2 * ROUNDING[SHORT[-1]]


@pytest.mark.skipif(not HAS_GPU, reason="how a card's lanes share out a row")
@pytest.mark.parametrize("size", [64, 128])
def test_norms_of_heads_do_not_follow_the_number_of_tokens(size: int) -> None:
    """From a thousand on a program has more heads."""
    count, heads, groups = 1030, 4, 2
    rows = drawn(count, heads + 2 * groups, size, dtype=SHORT[-1])
    angle = drawn(count, size // 2, seed=1)
    norms = {
        name: HeadNorm(drawn(size, seed=seed, dtype=SHORT[-1]), 1e-6, "rounded")
        for seed, name in enumerate(("query_norm", "key_norm"))
    }
    results = []
    for tokens in (count, 3):
        pages = [torch.zeros(1032, 1, groups, size, dtype=SHORT[-1], device=DEVICE) for _ in "kv"]
        slots = torch.arange(tokens, device=DEVICE)
        angles = angle[:tokens].cos(), angle[:tokens].sin()
        query = triton_heads.turn_and_store(rows[:tokens], *angles, *pages, slots, **norms)
        results.append([each[:3] for each in (query, *pages)])
    for many, few in zip(*results, strict=True):
        assert torch.equal(many, few)
