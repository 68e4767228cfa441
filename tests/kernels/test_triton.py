"""Triton forms beside their plain twins: compiled on a GPU, in Triton's interpreter without one.

Both twins get the same numbers; the plain one computes in float64 where a bound is asked for.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="Triton is not installed: pip install triton")

HAS_GPU = torch.cuda.is_available()
from cutaway.cache.table import unseen_pages  # noqa: E402
from cutaway.core.layout import FULL, SCRATCH_PAGE, Extent, Window  # noqa: E402
from cutaway.core.request import SamplingParams  # noqa: E402
from cutaway.core.step import ShapePlan  # noqa: E402
from cutaway.kernels.attention import plain as plain_attention  # noqa: E402
from cutaway.kernels.attention import triton as triton_attention  # noqa: E402
from cutaway.kernels.attention.plain import Scoring  # noqa: E402
from cutaway.kernels.gate import plain as plain_gate  # noqa: E402
from cutaway.kernels.gate import triton as triton_gate  # noqa: E402
from cutaway.kernels.heads import plain as plain_heads  # noqa: E402
from cutaway.kernels.heads import triton as triton_heads  # noqa: E402
from cutaway.kernels.heads.plain import HeadNorm  # noqa: E402
from cutaway.kernels.linear import plain as plain_linear  # noqa: E402
from cutaway.kernels.linear import triton as triton_linear  # noqa: E402
from cutaway.kernels.norm import plain as plain_norm  # noqa: E402
from cutaway.kernels.norm import triton as triton_norm  # noqa: E402
from cutaway.kernels.store import scaled  # noqa: E402
from cutaway.sampling import sampler  # noqa: E402
from cutaway.sampling.candidates import SamplerRow  # noqa: E402

DEVICE = "cuda" if HAS_GPU else "cpu"
# The interpreter computes by NumPy, which warns where a GPU gives infinity, and has no bfloat16.
pytestmark = (
    [pytest.mark.gpu] if HAS_GPU else [pytest.mark.filterwarnings("ignore::RuntimeWarning")]
)
SHORT = (torch.float16, torch.bfloat16) if HAS_GPU else (torch.float16,)
DTYPES = (torch.float32, *SHORT)
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
@pytest.mark.parametrize("rows, columns", [(7, 48), (130, 1024), (9000, 520)])
def test_a_few_tokens_are_multiplied_as_by_the_plain_form_and_alike_in_any_number(
    rows: int, columns: int, dtype: torch.dtype
) -> None:
    x, weight = drawn(16, columns, dtype=dtype), drawn(rows, columns, seed=1, dtype=dtype)
    exact = plain_linear.linear(x.double(), weight.double())
    ours = triton_linear.linear(x, weight)
    assert error(ours, exact) < 2 * ROUNDING[dtype]
    for count in (2, 5):
        assert torch.equal(triton_linear.linear(x[:count], weight), ours[:count])


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
    "prompt": [(40, 40)],
    "chunk": [(21, 90), (40, 41)],
    "mixed": [(1, 33), (1, 70), (30, 45), (2, 2)],
    "long": [(1, 300), (1, 5)],
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


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("case", CASES)
def test_attention_equals_the_plain_one(case: str, setting: str) -> None:
    scoring = scoring_of(setting, 4)
    tensors, where = laid_out(
        case, heads=4, groups=2, size=16, dtype=torch.float32, extent=scoring.extent
    )
    ours = triton_attention.paged_attention(*tensors, **where, scoring=scoring)
    assert error(ours, attend_plainly(tensors, where, scoring)) < 2e-6


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


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn], ids=str)
@pytest.mark.parametrize("case", ["decode", "chunk"])
def test_attention_reads_numbers_of_eight_bits_and_their_scales(
    case: str, dtype: torch.dtype
) -> None:
    (query, *pages), where = laid_out(case, heads=4, groups=2, size=32, dtype=torch.float32)
    packed = [scaled(each.nan_to_num(0.0), dtype) for each in pages]
    scales = {"key_scales": packed[0][1], "value_scales": packed[1][1]}
    scoring = scoring_of("full", 4)
    tensors = [query, packed[0][0], packed[1][0]]
    ours = triton_attention.paged_attention(*tensors, **where, scoring=scoring, **scales)
    assert error(ours, attend_plainly(tensors, where, scoring, **scales)) < 2e-6


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
    expected = sampler.sample_plain(logits.cpu(), rows)
    order, draws, (part,) = sampler._sample_fused(logits, rows, list(range(len(rows))))
    assert order == list(range(len(rows)))
    ours = [
        sampler._read(numbers[:-2], u, int(numbers[-2]) | int(numbers[-1]) << 32)
        for numbers, u in zip(part.tolist(), draws, strict=True)
    ]
    assert ours == expected


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_bad_row_is_told_by_its_numbers(value: float) -> None:
    rows = rows_of(2, temperature=0.0) + rows_of(2, temperature=0.8)
    logits = drawn(4, 5000)
    logits[0, 4500] = logits[2, 17] = value
    logits[3] = -math.inf
    _, draws, (part,) = sampler._sample_fused(logits, rows, [0, 1, 2, 3])
    read = [sampler._read(n[:-2], u, 0) for n, u in zip(part.tolist(), draws, strict=True)]
    assert [each.is_bad for each in read] == [True, False, True, True]
