"""Triton forms beside their plain twins: compiled on a GPU, in Triton's interpreter without one.

Both twins get the same numbers; the plain one computes in float64 where a bound is asked for.
"""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="Triton is not installed: pip install triton")

HAS_GPU = torch.cuda.is_available()
from cutaway.cache.table import unseen_pages  # noqa: E402
from cutaway.core.layout import FULL, SCRATCH_PAGE, Extent, Window  # noqa: E402
from cutaway.core.request import SamplingParams  # noqa: E402
from cutaway.core.step import ShapePlan  # noqa: E402
from cutaway.kernels import floats8  # noqa: E402
from cutaway.kernels.attention import gathered, triton_segments  # noqa: E402
from cutaway.kernels.attention import plain as plain_attention  # noqa: E402
from cutaway.kernels.attention import triton as triton_attention  # noqa: E402
from cutaway.kernels.attention.plain import Scoring  # noqa: E402
from cutaway.kernels.floats8 import plain as plain_floats8  # noqa: E402
from cutaway.kernels.floats8 import triton as triton_floats8  # noqa: E402
from cutaway.kernels.gate import plain as plain_gate  # noqa: E402
from cutaway.kernels.gate import triton as triton_gate  # noqa: E402
from cutaway.kernels.heads import plain as plain_heads  # noqa: E402
from cutaway.kernels.heads import triton as triton_heads  # noqa: E402
from cutaway.kernels.heads.plain import HeadNorm  # noqa: E402
from cutaway.kernels.integers import plain as plain_integers  # noqa: E402
from cutaway.kernels.integers import triton as triton_integers  # noqa: E402
from cutaway.kernels.linear import plain as plain_linear  # noqa: E402
from cutaway.kernels.linear import triton as triton_linear  # noqa: E402
from cutaway.kernels.linear.triton import SomeTile  # noqa: E402
from cutaway.kernels.norm import plain as plain_norm  # noqa: E402
from cutaway.kernels.norm import triton as triton_norm  # noqa: E402
from cutaway.kernels.rotary import plain as plain_rotary  # noqa: E402
from cutaway.kernels.rotary import triton as triton_rotary  # noqa: E402
from cutaway.kernels.store import scale_rows  # noqa: E402
from cutaway.quantize.floats8 import KeptFloats8  # noqa: E402
from cutaway.quantize.integers import KeptIntegers  # noqa: E402
from cutaway.quantize.rounding import round_matrix, rounded_floats  # noqa: E402
from cutaway.quantize.schemes import scheme_of  # noqa: E402
from cutaway.sampling import sampler  # noqa: E402
from cutaway.sampling.candidates import SamplerRow  # noqa: E402

DEVICE = "cuda" if HAS_GPU else "cpu"
# The interpreter computes by NumPy, which warns where a GPU gives infinity, and has no bfloat16.
pytestmark = (
    [pytest.mark.gpu] if HAS_GPU else [pytest.mark.filterwarnings("ignore::RuntimeWarning")]
)
SHORT = (torch.float16, torch.bfloat16) if HAS_GPU else (torch.float16,)
DTYPES = (torch.float32, *SHORT)
# To e4m3, of numbers whose scales may differ in the last bit; the interpreter loses a carry.
EIGHTHS = 4e-3 if HAS_GPU else 0.15
ROUNDING = {torch.float32: 1e-6, torch.bfloat16: 2**-8, torch.float16: 2**-11}


def drawn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator).to(dtype).to(DEVICE)


def error(ours: Tensor, exact: Tensor) -> float:
    """Relative distance; NaN is never near."""
    ours, exact = ours.double().cpu(), exact.double().cpu()
    distance = ((ours - exact).norm() / exact.norm().clamp_min(1e-30)).item()
    return math.inf if math.isnan(distance) else distance


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(1, 8), (3, 100), (2, 3, 7), (2, 1024)], ids=str)
@pytest.mark.parametrize("kind", range(3), ids=("rounded", "wide", "offset"))
def test_norms_equal_the_plain_ones(kind: int, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x, update = drawn(*shape, dtype=dtype), drawn(*shape, seed=1, dtype=dtype)
    weight = drawn(shape[-1], seed=2, dtype=dtype)
    plain = (plain_norm.rms_norm, plain_norm.wide_rms_norm, plain_norm.offset_rms_norm)[kind]
    ours = triton_norm.norm(x, weight, 1e-5, kind=kind)
    assert error(ours, plain(x, weight, 1e-5)) < 2 * ROUNDING[dtype]
    total, normed = triton_norm.add_norm(x, update, weight, 1e-5, kind=kind)
    assert torch.equal(total, x + update)
    assert torch.equal(normed, triton_norm.norm(total, weight, 1e-5, kind=kind))


def test_a_norm_without_a_weight_equals_the_plain_one() -> None:
    x = drawn(3, 48)
    ours = triton_norm.norm(x, None, 1e-6, kind=triton_norm.WIDE)
    assert error(ours, plain_norm.wide_rms_norm(x, None, 1e-6)) < 1e-6


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("tokens, factor", [(1, 1.0), (3, 1.0986122886681098)])
def test_cosines_are_those_of_the_plain_form(
    tokens: int, factor: float, dtype: torch.dtype
) -> None:
    positions = torch.tensor([131_071, 0, 777], device=DEVICE)[:tokens]
    for rows in {1, tokens}:
        inverse = 10_000.0 ** -drawn(rows, 24).double().abs()
        ours = triton_rotary.cosines(positions, inverse, factor, dtype)
        plain = plain_rotary.cosines(positions, inverse, factor, dtype)
        for one, other in zip(ours, plain, strict=True):
            assert error(one, other) < (1e-7 if dtype == torch.float32 else ROUNDING[dtype] / 16)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", ["silu", "gelu_tanh"])
def test_gates_equal_the_plain_ones(kind: str, dtype: torch.dtype) -> None:
    joined = drawn(3, 2 * 1500, dtype=dtype) * 4
    gate, up = joined.chunk(2, dim=-1)
    which = triton_gate.SILU if kind == "silu" else triton_gate.GELU_TANH
    plain = plain_gate.silu_gate if kind == "silu" else plain_gate.gelu_tanh_gate
    assert error(triton_gate.gate(gate, up, kind=which), plain(gate, up)) < 2 * ROUNDING[dtype]


def test_a_gate_of_huge_numbers_is_no_nan() -> None:
    gate = torch.tensor([[-1e30, -100.0, 100.0, 1e30]], device=DEVICE)
    for kind in (triton_gate.SILU, triton_gate.GELU_TANH):
        ours = triton_gate.gate(gate, torch.ones_like(gate), kind=kind)
        assert ours[0, 1:3].tolist() == pytest.approx([0.0, 100.0], abs=1e-6)
        assert not ours[0, 2:].isnan().any()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("norm", [None, "rounded", "offset", "wide"])
@pytest.mark.parametrize("size, half", [(16, 8), (24, 4), (64, 32)])
def test_heads_are_turned_and_stored_as_by_the_plain_form(
    size: int, half: int, norm: str | None, dtype: torch.dtype
) -> None:
    tokens, num_heads, groups = 5, 6, 2
    heads = drawn(tokens, num_heads + 2 * groups, size, dtype=dtype)
    angle = drawn(tokens, half, seed=1)
    slots = torch.tensor([9, 2, 17, 30, 4], device=DEVICE)
    norms = {
        name: None if norm is None else HeadNorm(drawn(size, seed=seed, dtype=dtype), 1e-6, norm)
        for seed, name in enumerate(("query_norm", "key_norm"))
    }
    results = []
    for form in (plain_heads, triton_heads):
        pages = [torch.zeros(4, 8, groups, size, dtype=dtype, device=DEVICE) for _ in range(2)]
        query = form.turn_and_store(heads, angle.cos(), angle.sin(), *pages, slots, **norms)
        results.append((query, *pages))
    # The plain form rounds angles and both products to the dtype.
    for plain, ours in zip(*results, strict=True):
        assert error(ours, plain) < 4 * ROUNDING[dtype]
    plain, ours = results
    assert torch.equal(plain[2], ours[2])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rows, columns", [(7, 48), (130, 1024), (64, 2500)])
def test_a_row_is_multiplied_as_by_the_plain_form(
    rows: int, columns: int, dtype: torch.dtype
) -> None:
    x, weight = drawn(1, columns, dtype=dtype), drawn(rows, columns, seed=1, dtype=dtype)
    exact = plain_linear.linear(x.double(), weight.double())
    assert error(triton_linear.linear(x, weight), exact) < 2 * ROUNDING[dtype]


@pytest.mark.parametrize("dtype", SHORT, ids=str)
@pytest.mark.parametrize(
    "rows, columns", [(7, 48), (130, 1024), (9000, 520) if HAS_GPU else (1500, 136)]
)
def test_a_few_tokens_are_multiplied_as_by_the_plain_form_and_alike_in_any_number(
    rows: int, columns: int, dtype: torch.dtype
) -> None:
    x, weight = drawn(16, columns, dtype=dtype), drawn(rows, columns, seed=1, dtype=dtype)
    exact = plain_linear.linear(x.double(), weight.double())
    ours = triton_linear.linear(x, weight)
    assert error(ours, exact) < 2 * ROUNDING[dtype]
    for count in (2, 5):
        assert torch.equal(triton_linear.linear(x[:count], weight), ours[:count])


@pytest.mark.parametrize(
    "tile",
    [SomeTile(32, 64, 2, stages=3), SomeTile(shares=3)],
    ids=lambda tile: str(tuple(tile)),
)
def test_any_tile_multiplies_a_few_tokens_as_the_plain_form_does(tile: SomeTile) -> None:
    x, weight = drawn(5, 520, dtype=SHORT[-1]), drawn(130, 520, seed=1, dtype=SHORT[-1])
    exact, ours = plain_linear.linear(x.double(), weight.double()), x.new_zeros(5, 130)
    for count in (5, 2):
        triton_linear.multiply_shares(x[:count], weight, ours[:count], tile)
        assert error(ours, exact) < 2 * ROUNDING[SHORT[-1]]


@pytest.mark.parametrize("kinds", [("rounded", None), (None, "offset"), ("wide", "rounded")])
def test_queries_and_keys_may_have_norms_of_their_own(kinds: tuple[str | None, ...]) -> None:
    heads, angle = drawn(3, 19, 16), drawn(3, 8, seed=1)
    slots = torch.tensor([9, 2, 17], device=DEVICE)
    norms = [None if kind is None else HeadNorm(drawn(16, seed=2), 1e-6, kind) for kind in kinds]
    results = []
    for form in (plain_heads, triton_heads):
        pages = [torch.zeros(4, 8, 3, 16, device=DEVICE) for _ in range(2)]
        named = {"query_norm": norms[0], "key_norm": norms[1]}
        query = form.turn_and_store(heads, angle.cos(), angle.sin(), *pages, slots, **named)
        results.append((query, *pages))
    for plain, ours in zip(*results, strict=True):
        assert error(ours, plain) < 2e-6


CASES = {
    "decode": [(1, 1), (1, 17), (1, 70)],
    "drafts": [(3, 3), (3, 64), (3, 90)],
    "guesses": [(1, 40), (4, 4), (2, 90), (3, 17)],
    "prompt": [(40, 40)],
    "chunk": [(21, 90), (40, 41)],
    "mixed": [(1, 33), (1, 70), (30, 45), (2, 2)],
    "long": [(1, 300), (1, 5)],
    "long chunk": [(130, 300), (9, 9)],
}
SETTINGS = {
    "full": {},
    "window": {"extent": Window(20)},
    "first": {"extent": Window(20, sinks=3)},
    "cap": {"cap": 5.0},
    "sinks": {"sinks": True},
}


def laid_out(
    case: str, *, heads: int, groups: int, size: int, dtype: torch.dtype, extent: Extent = FULL
) -> tuple[list[Tensor], dict[str, object]]:
    """Queries, keys and values in shuffled pages; what no query sees is NaN."""
    lengths = CASES[case]
    page_size, width = 8, max(-(-keys // 8) for _, keys in lengths) + 2
    count = 1 + width * len(lengths)
    order = torch.randperm(count - 1, generator=torch.Generator().manual_seed(3)) + 1
    table = order.view(len(lengths), width)
    query = drawn(sum(q for q, _ in lengths), heads, size, dtype=dtype)
    pages = [torch.full((count, page_size, groups, size), math.nan).to(dtype) for _ in range(2)]
    for row, (_, keys) in enumerate(lengths):
        place = torch.arange(keys)
        for seed, each in enumerate(pages):
            entries = drawn(keys, groups, size, seed=10 * row + seed, dtype=dtype).cpu()
            each[table[row][place // page_size], place % page_size] = entries
    if isinstance(extent, Window):
        for row, (queries, keys) in enumerate(lengths):
            unseen = unseen_pages(extent, keys - queries, page_size)
            table[row, unseen.start : unseen.stop] = SCRATCH_PAGE  # which holds NaN
    plan = ShapePlan(tuple(q for q, _ in lengths), tuple(k for _, k in lengths))
    starts = [sum(plan.query_lengths[:i]) for i in range(len(lengths) + 1)]
    return [query, *(each.to(DEVICE) for each in pages)], {
        "page_table": table.to(DEVICE),
        "query_starts": torch.tensor(starts, device=DEVICE),
        "context_lengths": torch.tensor(plan.context_lengths, device=DEVICE),
        "plan": plan,
    }


def attend_plainly(tensors: list[Tensor], where: dict, scoring: Scoring, **scales) -> Tensor:
    """The plain form in float64."""
    where = {name: value for name, value in where.items() if name != "query_starts"}
    tensors = [tensors[0].double(), *tensors[1:]]
    return plain_attention.paged_attention(
        *tensors,
        **where,
        softmax_scale=scoring.softmax_scale,
        extent=scoring.extent,
        cap=scoring.cap,
        sinks=scoring.sinks,
        **scales,
    )


def scoring_of(setting: str, heads: int) -> Scoring:
    chosen = SETTINGS[setting]
    sinks = drawn(heads, seed=7) * 3 if chosen.get("sinks") else None
    extent: Extent = chosen.get("extent", FULL)
    return Scoring(0.3, extent, chosen.get("cap"), sinks)


# In the interpreter each setting meets single tokens, a mixed step, and keys that are shared out.
GRID = [
    (case, setting)
    for case in CASES
    for setting in SETTINGS
    if case != "long chunk"
    and (HAS_GPU or setting == "full" or case in ("decode", "mixed", "long"))
]


@pytest.mark.parametrize("case, setting", GRID)
def test_attention_equals_the_plain_one(case: str, setting: str) -> None:
    scoring = scoring_of(setting, 4)
    tensors, where = laid_out(
        case, heads=4, groups=2, size=16, dtype=torch.float32, extent=scoring.extent
    )
    ours = triton_attention.paged_attention(*tensors, **where, scoring=scoring)
    assert error(ours, attend_plainly(tensors, where, scoring)) < 2e-6


@pytest.mark.parametrize(
    "longest, setting",
    [(4, "full"), (8, "window"), (64, "sinks")]
    + [(4, "window"), (4, "sinks"), (8, "full"), (8, "sinks"), (64, "full"), (64, "window")]
    * HAS_GPU,
)
def test_lengths_that_the_device_alone_knows_change_nothing(setting: str, longest: int) -> None:
    """As in captured steps of guesses; some sequences are there for padding, or bring nothing."""
    scoring = scoring_of(setting, 4)
    tensors, where = laid_out(
        "guesses", heads=4, groups=2, size=16, dtype=torch.float32, extent=scoring.extent
    )
    expected = attend_plainly(tensors, where, scoring)
    table = torch.zeros(7, where["page_table"].shape[1], dtype=torch.int64, device=DEVICE)
    table[:4] = where["page_table"]
    starts, lengths = [*where["query_starts"].tolist(), 12, 14, 14], [0] * 7
    lengths[:4], lengths[4:] = where["plan"].context_lengths, (2, 2, 1)
    count = len(tensors[0])
    query = torch.cat([tensors[0], drawn(14 - count, 4, 16, seed=5)])
    for each in tensors[1:]:
        each[0] = 0.0  # what padding reads was written by some
    ours = triton_attention.paged_attention(
        query,
        *tensors[1:],
        page_table=table,
        query_starts=torch.tensor(starts, device=DEVICE),
        context_lengths=torch.tensor(lengths, device=DEVICE),
        plan=ShapePlan((longest,) * 7, (longest,) * 7, most_queries=longest),
        scoring=scoring,
    )
    assert error(ours[:count], expected) < 2e-6 and bool(ours.isfinite().all())


@pytest.mark.parametrize("form", [triton_attention, triton_segments], ids=["split", "segments"])
def test_a_step_with_prompts_may_stand_in_the_places_of_a_larger_one(form) -> None:
    """As captured: 2 of 4 places of one token, 2 of 4 of chunks, and one of padding behind."""
    scoring = scoring_of("full", 4)
    tensors, where = laid_out("mixed", heads=4, groups=2, size=16, dtype=torch.float32)
    expected = attend_plainly(tensors, where, scoring)
    table = torch.zeros(8, where["page_table"].shape[1], dtype=torch.int64, device=DEVICE)
    table[:2], table[4:6] = where["page_table"][:2], where["page_table"][2:]
    places = [0, 1, *range(4, 36)]  # of 4 and 40 rows
    query = drawn(44, 4, 16, seed=5)
    query[places] = tensors[0]
    for each in tensors[1:]:
        each[SCRATCH_PAGE] = 0.0
    ours = form.paged_attention(
        query,
        *tensors[1:],
        page_table=table,
        query_starts=torch.tensor([0, 1, 2, 3, 4, 34, 36, 44, 44], device=DEVICE),
        context_lengths=torch.tensor([33, 70, 1, 1, 45, 2, 8, 1], device=DEVICE),
        plan=ShapePlan((1,) * 4 + (40,) * 4, (1,) * 8, bucket=8),
        scoring=scoring,
    )
    assert error(ours[places], expected) < 2e-6 and bool(ours.isfinite().all())


@pytest.mark.parametrize("heads, groups, size", [(3, 3, 64), (6, 2, 24), (8, 1, 128)])
@pytest.mark.parametrize("dtype", SHORT, ids=str)
@pytest.mark.parametrize("case", ["decode", "mixed"])
def test_attention_in_short_floats_is_near_the_plain_one(
    case: str, dtype: torch.dtype, heads: int, groups: int, size: int
) -> None:
    tensors, where = laid_out(case, heads=heads, groups=groups, size=size, dtype=dtype)
    scoring = scoring_of("full", heads)
    ours = triton_attention.paged_attention(*tensors, **where, scoring=scoring)
    assert error(ours, attend_plainly(tensors, where, scoring)) < ROUNDING[dtype]


@pytest.mark.parametrize("heads, groups, size", [(3, 3, 64), (6, 2, 128)])
@pytest.mark.parametrize("dtype", SHORT, ids=str)
@pytest.mark.parametrize("setting", ["full", "sinks"])
@pytest.mark.parametrize("case", ["prompt", "chunk", "mixed", "long chunk"])
def test_chunks_over_gathered_rows_are_near_the_plain_ones(
    case: str, setting: str, dtype: torch.dtype, heads: int, groups: int, size: int, monkeypatch
) -> None:
    monkeypatch.setattr(gathered, "LEAST_QUERIES", 1)
    tensors, where = laid_out(case, heads=heads, groups=groups, size=size, dtype=dtype)
    scoring = replace(scoring_of(setting, heads), softmax_scale=0.1)
    assert gathered.takes(tensors[0], tensors[1], where["plan"], 0, scoring)
    ours = triton_attention.paged_attention(*tensors, **where, scoring=scoring)
    assert error(ours, attend_plainly(tensors, where, scoring)) < ROUNDING[dtype]


def test_gathered_rows_of_a_sequence_without_numbers_spoil_no_other(monkeypatch) -> None:
    monkeypatch.setattr(gathered, "LEAST_QUERIES", 1)
    tensors, where = laid_out("chunk", heads=2, groups=2, size=64, dtype=SHORT[-1])
    scoring = scoring_of("full", 2)
    before = triton_attention.paged_attention(*tensors, **where, scoring=scoring)
    tensors[2][where["page_table"][1]] = math.nan
    after = triton_attention.paged_attention(*tensors, **where, scoring=scoring)
    assert torch.equal(before[:21], after[:21]) and after[21:].isnan().all()


def test_what_is_gathered_follows_from_the_shape_of_a_step() -> None:
    (query, pages, _), where = laid_out("prompt", heads=2, groups=2, size=64, dtype=SHORT[-1])
    scoring = scoring_of("full", 2)
    long, short = ShapePlan((1, 256), (9, 300)), ShapePlan((1, 255), (9, 300))
    assert gathered.takes(query, pages, long, 1, scoring)
    assert not gathered.takes(query, pages, short, 1, scoring)
    assert not gathered.takes(query.float(), pages.float(), long, 1, scoring)
    for setting in ("window", "cap"):
        assert not gathered.takes(query, pages, long, 1, scoring_of(setting, 2))
    del where


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kept", [torch.int8, torch.float8_e4m3fn], ids=str)
@pytest.mark.parametrize("case", ["decode", "chunk"])
def test_attention_reads_numbers_of_eight_bits_and_their_scales(
    case: str, kept: torch.dtype, dtype: torch.dtype
) -> None:
    (query, *pages), where = laid_out(case, heads=4, groups=2, size=32, dtype=torch.float32)
    query = (query * 40).to(dtype)  # 0.3 of it: sharp enough that rounding shows
    packed = [scale_rows(each.nan_to_num(0.0) * 0.01, kept) for each in pages]
    scales = {"key_scales": packed[0][1] * 100, "value_scales": packed[1][1]}
    scoring = scoring_of("full", 4)
    tensors = [query, packed[0][0], packed[1][0]]
    ours = triton_attention.paged_attention(*tensors, **where, scoring=scoring, **scales)
    exact = attend_plainly(tensors, where, scoring, **scales)
    assert error(ours, exact) < 2 * ROUNDING[dtype]


@pytest.mark.parametrize("dtype", SHORT, ids=str)
@pytest.mark.parametrize("kept", [torch.int8, torch.float8_e4m3fn], ids=str)
@pytest.mark.parametrize("setting", SETTINGS)
def test_numbers_of_eight_bits_are_attended_in_pairs_in_every_setting(
    setting: str, kept: torch.dtype, dtype: torch.dtype
) -> None:
    scoring = scoring_of(setting, 6)
    sizes = {"heads": 6, "groups": 2, "size": 48, "dtype": torch.float32}
    (query, *pages), where = laid_out("drafts", **sizes, extent=scoring.extent)
    packed = [scale_rows(each.nan_to_num(0.0), kept) for each in pages]
    scales = {"key_scales": packed[0][1], "value_scales": packed[1][1]}
    tensors = [query.to(dtype), packed[0][0], packed[1][0]]
    assert triton_attention.eighths.kind_of(tensors[1], tensors[0]) is not None
    ours = triton_attention.paged_attention(*tensors, **where, scoring=scoring, **scales)
    exact = attend_plainly(tensors, where, scoring, **scales)
    assert error(ours, exact) < 2 * ROUNDING[dtype]


@pytest.mark.parametrize("dtype", SHORT, ids=str)
@pytest.mark.parametrize("kept", [torch.int8, torch.float8_e4m3fn], ids=str)
def test_every_number_of_eight_bits_is_itself_as_a_short_float(
    kept: torch.dtype, dtype: torch.dtype
) -> None:
    """A value that is all there is to see comes out as it is, the smallest ones of e4m3 too."""
    codes = torch.arange(256, dtype=torch.uint8)
    codes[(codes & 127) == 127] = 0  # NaN, which no page holds
    pages = codes.view(8, 1, 1, 32).view(kept).to(DEVICE)
    ours = triton_attention.paged_attention(
        drawn(8, 1, 32, dtype=dtype),
        *(pages, pages),
        page_table=torch.arange(8, device=DEVICE)[:, None],
        query_starts=torch.arange(9, device=DEVICE),
        context_lengths=torch.ones(8, dtype=torch.int64, device=DEVICE),
        plan=ShapePlan((1,) * 8, (1,) * 8),
        scoring=Scoring(0.1, FULL, None, None),
        key_scales=torch.ones(8, 1, 1, device=DEVICE),
        value_scales=torch.ones(8, 1, 1, device=DEVICE),
    )
    assert torch.equal(ours[:, 0], pages.cpu().float().view(8, 32).to(dtype).to(DEVICE))


@pytest.mark.parametrize("most", [{"_MANY_PROGRAMS": 1}, {"_FEW_PROGRAMS": 6}], ids=str)
def test_keys_are_shared_out_in_every_way(most: dict[str, int], monkeypatch) -> None:
    """As if sequences were so many that each takes more keys at once, or fewer warps."""
    tensors, where = laid_out("decode", heads=4, groups=2, size=16, dtype=SHORT[-1])
    scoring = scoring_of("full", 4)
    exact = attend_plainly(tensors, where, scoring)
    for name, value in most.items():
        monkeypatch.setattr(triton_attention, name, value)
    ours = triton_attention.paged_attention(*tensors, **where, scoring=scoring)
    assert error(ours, exact) < 4 * ROUNDING[SHORT[-1]]


def test_a_sequence_is_summed_alike_in_tables_of_any_width_that_split_it_alike() -> None:
    """The order of summation follows from the shape of a step, never from other sequences' keys."""
    tensors, where = laid_out("decode", heads=4, groups=2, size=16, dtype=SHORT[-1])
    scoring = scoring_of("full", 4)
    before = triton_attention.paged_attention(*tensors, **where, scoring=scoring)
    where["page_table"] = where["page_table"].clone()
    tensors[1][where["page_table"][2]] = 1.0
    after = triton_attention.paged_attention(*tensors, **where, scoring=scoring)
    assert torch.equal(before[:2], after[:2]) and not torch.equal(before[2], after[2])


def rows_of(count: int, **settings: float) -> list[SamplerRow]:
    params = SamplingParams(**settings)
    return [SamplerRow(params=params, seed=7 + i, position=3 * i) for i in range(count)]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", [5, 4096, 9001])
def test_sampling_gives_the_bits_of_the_stages(size: int, dtype: torch.dtype) -> None:
    rows = [
        *rows_of(2, temperature=0.0),
        *rows_of(3, temperature=1.0),
        *rows_of(3, temperature=0.7, min_p=0.1),
        *rows_of(2, temperature=1.7),
    ]
    logits = (drawn(len(rows), size, seed=size) * 5).to(dtype)
    logits[1] = logits[1].round()  # equal ones: the smaller id is taken
    logits[2, :3] = -math.inf
    assert_bits_of_the_stages(logits, rows)
    assert_bits_of_the_stages(logits, [replace(row, scores_drawn=True) for row in rows])


def assert_bits_of_the_stages(logits: Tensor, rows: list[SamplerRow]) -> None:
    expected = sampler.sample_plain(logits.cpu(), rows)
    order, draws, (part,) = sampler._sample_fused(logits, rows, list(range(len(rows))))
    assert order == list(range(len(rows)))
    ours = [
        sampler._read(numbers[:-2], u, int(numbers[-2]) | int(numbers[-1]) << 32)
        for numbers, u in zip(part.tolist(), draws, strict=True)
    ]
    assert ours == expected


CUTS = (
    *({"top_k": k} for k in (1, 3, 40, 100_000)),
    *({"top_p": p} for p in (0.0, 0.3, 0.95, 1 - 2**-31)),
    *({"top_k": k, "top_p": 0.8, "min_p": m} for k in (3, 400) for m in (0.0, 0.01)),
    *({"top_p": 0.9, "min_p": 0.2}, {"temperature": 0.0, "top_k": 3}, {"temperature": 0.6}),
)


@pytest.mark.parametrize(
    "size, kind", [(5, "spread"), (5, "equal"), (4100, "round")] + [(9001, "spread")] * HAS_GPU
)
def test_cuts_keep_the_tokens_of_the_stages(kind: str, size: int) -> None:
    """All in one step; among equals the smaller ids stay.

    In the interpreter a cut takes a second, of whatever row: each is tried once there.
    """
    chosen = CUTS if HAS_GPU else CUTS[("round", "spread", "equal").index(kind) :: 3]
    rows = [
        rows_of(1, **{"temperature": (1.0, 0.8)[place % 2], **each})[0]
        for place, each in enumerate(chosen)
    ]
    logits = drawn(len(rows), size, seed=size) * 4
    if kind != "spread":
        logits = logits.round() if kind == "round" else torch.zeros_like(logits)
    logits[:, 2] = -math.inf
    logits[0::3, 1] = -0.0
    assert_bits_of_the_stages(logits, rows)


def test_cuts_of_rows_that_are_bad_end_and_tell_it() -> None:
    rows = rows_of(3, temperature=1.0, top_k=5, top_p=0.5)
    logits = drawn(3, 4097)
    logits[0, 5], logits[1], logits[2, 4096] = math.nan, -math.inf, math.inf
    _, draws, (part,) = sampler._sample_fused(logits, rows, [0, 1, 2])
    read = [sampler._read(n[:-2], u, 0) for n, u in zip(part.tolist(), draws, strict=True)]
    assert all(each.is_bad for each in read)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_bad_row_is_told_by_its_numbers(value: float) -> None:
    rows = rows_of(2, temperature=0.0) + rows_of(2, temperature=0.8)
    logits = drawn(4, 5000)
    logits[0, 4500] = logits[2, 17] = value
    logits[3] = -math.inf
    _, draws, (part,) = sampler._sample_fused(logits, rows, [0, 1, 2, 3])
    read = [sampler._read(n[:-2], u, 0) for n, u in zip(part.tolist(), draws, strict=True)]
    assert [each.is_bad for each in read] == [True, False, True, True]


def test_a_weight_of_eight_bits_is_read_by_the_product_of_one_token() -> None:
    weight = KeptFloats8(rounded_floats(drawn(70, 520, seed=1).cpu())).to(DEVICE)
    x, scale = drawn(1, 520, dtype=SHORT[-1]), weight.quant_scale.view(-1)
    plain = plain_floats8.multiply(x.double(), weight.values, weight.quant_scale, few_tokens=1)
    ours = triton_linear.multiply_row(x, weight.values, scale, is_kept=True)
    assert error(ours, plain) < 2 * ROUNDING[SHORT[-1]]


@pytest.mark.parametrize(("count", "shares"), [(2, 1), (20, 2)])
def test_weights_of_eight_bits_are_read_by_the_products_of_few_tokens(
    count: int, shares: int
) -> None:
    weight = KeptFloats8(rounded_floats(drawn(70, 520, seed=1).cpu())).to(DEVICE)
    x = drawn(count, 520, dtype=SHORT[-1])
    plain = plain_floats8.multiply(x.double(), weight.values, weight.quant_scale, few_tokens=count)
    given = (x, weight.values, weight.quant_scale.view(-1))
    ours = triton_floats8.multiply_few(*given, tile=SomeTile(64, 128, shares, 4, 3))
    assert error(ours, plain) < 2 * ROUNDING[SHORT[-1]]
    assert error(triton_floats8.multiply_few(*given), plain) < 2 * ROUNDING[SHORT[-1]]


def a_matrix(rows: int, columns: int, *, word: str) -> KeptIntegers:
    """Rounded to a scheme, as a model has it on a GPU."""
    matrix = round_matrix(drawn(rows, columns, seed=1).cpu(), scheme_of(word))
    return KeptIntegers(matrix).to(DEVICE)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("word", ["int4", "int4-sym-g64", "int8-asym", "int8-g128"])
@pytest.mark.parametrize(
    "rows, columns", [(7, 128), (70 if HAS_GPU else 37, 1152), (20 if HAS_GPU else 9, 8320)]
)
def test_integers_are_multiplied_as_by_the_plain_form(
    rows: int, columns: int, word: str, dtype: torch.dtype
) -> None:
    weight = a_matrix(rows, columns, word=word)
    matrix = (weight.quants, weight.quant_scale, weight.zero)
    named = {"has_nibbles": word.startswith("int4")}
    whole = triton_integers.unpack(*matrix, **named, dtype=dtype)
    assert torch.equal(whole, weight.dense().to(dtype))
    x = drawn(33, columns, dtype=dtype)
    exact = x.double() @ weight.dense().double().T
    for count in (1, 2, 17, 33) if HAS_GPU else (1, 2, 33):
        ours = triton_integers.multiply(x[:count], *matrix, **named)
        plain = plain_integers.multiply(x[:count], *matrix, **named)
        assert error(ours, exact[:count]) < 2 * ROUNDING[dtype]
        assert error(ours, plain) < 3 * ROUNDING[dtype]


def test_segments_of_integers_are_joined_where_they_are_stored_alike() -> None:
    for words in (("int4", "int4"), ("int8", "int8"), ("int4-sym-g32", "int4")):
        parts = [a_matrix(8 * i, 64, word=word) for i, word in enumerate(words, start=1)]
        whole = KeptIntegers.stack(parts)
        assert whole is not None
        assert torch.equal(whole.dense(), torch.cat([part.dense() for part in parts]))
    assert KeptIntegers.stack([a_matrix(8, 64, word="int4"), a_matrix(8, 64, word="int8")]) is None


@pytest.mark.parametrize("width", [16, 100, 4096])
def test_rows_are_rounded_to_eight_bits_as_by_the_plain_form(width: int) -> None:
    x = drawn(5, width, dtype=SHORT[-1]) * 3
    x[1], x[2, 3], x[3, 0] = 0, math.inf, math.nan
    numbers, scale = triton_floats8.scale_rows(x)
    plain_numbers, plain_scale = scale_rows(x, torch.float8_e4m3fn)
    assert error(numbers.float(), plain_numbers.float()) < EIGHTHS
    assert torch.equal(numbers[1:4, :].float() == 0, plain_numbers[1:4].float() == 0)
    assert torch.allclose(scale, plain_scale, rtol=1e-6, equal_nan=True)


@pytest.mark.skipif(not HAS_GPU, reason="the product of two floats of 8 bits is the card's")
@pytest.mark.parametrize("count", [1, 16, 24, 40])
def test_floats_of_eight_bits_are_multiplied_as_by_the_plain_form(count: int) -> None:
    weight = KeptFloats8(rounded_floats(drawn(48, 256, seed=1).cpu())).to(DEVICE)
    x = drawn(count, 256, dtype=torch.bfloat16)
    assert floats8.is_taken(x, weight.values, weight.quant_scale)
    matrix = (weight.values, weight.quant_scale)
    plain = plain_floats8.multiply(x.double(), *matrix, few_tokens=32)
    assert error(weight.multiply(x), plain) < 2 * ROUNDING[torch.bfloat16]
    assert error(weight.multiply(x), x.double() @ weight.dense().double().T) < 0.04
    stacked = KeptFloats8.stack([weight, weight])
    assert stacked is not None
    assert torch.equal(stacked.multiply(x), weight.multiply(x).repeat(1, 2))


@pytest.mark.skipif(not HAS_GPU, reason="the interpreter has no bfloat16")
@pytest.mark.parametrize("shares", [1, 2, 4])
def test_every_number_of_eight_bits_is_widened_to_what_it_is(shares: int) -> None:
    """The smallest ones, whose bits are no usual short float, beside the largest."""
    values = torch.arange(512, dtype=torch.int32).to(torch.uint8).view(torch.float8_e4m3fn)
    numbers = values.float().nan_to_num(0.0).to(DEVICE)
    weight = torch.diag(numbers).to(torch.float8_e4m3fn)[:500]
    scale = drawn(500).abs() + 0.5
    for count in (1, 5, 17):
        x = drawn(count, 512, dtype=torch.bfloat16) * 2.0**20
        ours = triton_floats8.multiply_few(x, weight, scale, tile=SomeTile(64, 128, shares, 4, 3))
        exact = (x.float() * numbers)[:, :500] * scale
        assert torch.allclose(ours.float(), exact, rtol=2**-8, atol=0)


@pytest.mark.parametrize("norm", [None, "rounded"])
@pytest.mark.parametrize("kept", [torch.int8, torch.float8_e4m3fn], ids=str)
def test_heads_are_stored_in_eight_bits_as_by_the_plain_form(
    kept: torch.dtype, norm: str | None
) -> None:
    heads, angle = drawn(3, 10, 24) * 4, drawn(3, 12, seed=1)
    slots = torch.tensor([9, 2, 17], device=DEVICE)
    norms = {
        name: None if norm is None else HeadNorm(drawn(24, seed=seed), 1e-6, norm)
        for seed, name in enumerate(("query_norm", "key_norm"))
    }
    results = []
    for form in (plain_heads, triton_heads):
        pages = [torch.zeros(4, 8, 2, 24, dtype=kept, device=DEVICE) for _ in range(2)]
        scales = [torch.zeros(4, 8, 2, device=DEVICE) for _ in range(2)]
        named = {**norms, "key_scales": scales[0], "value_scales": scales[1]}
        form.turn_and_store(heads, angle.cos(), angle.sin(), *pages, slots, **named)
        results.append([a.float() * b[..., None] for a, b in zip(pages, scales, strict=True)])
    for plain, ours in zip(*results, strict=True):
        assert plain.any() and error(ours, plain) < EIGHTHS
        assert torch.equal(ours.any(-1), plain.any(-1))
