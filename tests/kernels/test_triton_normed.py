"""Products that take the norm before them and the gate behind: the bits of the parts, one by one.

Compiled on a GPU, in Triton's interpreter without one, as in test_triton.py.
"""

from __future__ import annotations

import math
from itertools import product

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="Triton is not installed: pip install triton")

HAS_GPU = torch.cuda.is_available()
from cutaway.kernels.gate import plain as plain_gate  # noqa: E402
from cutaway.kernels.gate import triton as triton_gate  # noqa: E402
from cutaway.kernels.heads import HeadPlaces  # noqa: E402
from cutaway.kernels.heads import triton as triton_heads  # noqa: E402
from cutaway.kernels.integers import triton as triton_integers  # noqa: E402
from cutaway.kernels.integers import triton_nibbles  # noqa: E402
from cutaway.kernels.linear import triton as triton_linear  # noqa: E402
from cutaway.kernels.norm import triton as triton_norm  # noqa: E402
from cutaway.kernels.norm.late import LateNorm, NormKind  # noqa: E402
from cutaway.kernels.triton_launches import chunk_of  # noqa: E402
from cutaway.quantize.integers import KeptIntegers  # noqa: E402
from cutaway.quantize.rounding import round_matrix  # noqa: E402
from cutaway.quantize.schemes import scheme_of  # noqa: E402

DEVICE = "cuda" if HAS_GPU else "cpu"
pytestmark = (
    [pytest.mark.gpu] if HAS_GPU else [pytest.mark.filterwarnings("ignore::RuntimeWarning")]
)
SHORT = (torch.float16, torch.bfloat16) if HAS_GPU else (torch.float16,)
ROUNDING = {torch.bfloat16: 2**-8, torch.float16: 2**-11}
Case = tuple[NormKind, int | None]
CASES: list[Case] = [
    *(("rounded", None), ("rounded", triton_gate.SILU)),
    *(("wide", triton_gate.SILU), ("offset", triton_gate.GELU_TANH)),
]


def settings(
    few: list[tuple[int, int]], many: list[tuple[int, int]]
) -> list[tuple[int, int, NormKind, int | None]]:
    """Small shapes in every case, and on a card those of models, whose bits people see."""
    chosen = list(product(few, CASES)) + (list(product(many, CASES[:2])) if HAS_GPU else [])
    return [(*shape, *case) for shape, case in chosen]


WIDE = settings([(7, 1152), (20, 2048)], [(3072, 4096), (14336, 4096)])
NARROW = settings([(7, 1000), (35, 520)], [(3072, 1024), (2048, 1024)])


def drawn(*shape: int, seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator).to(dtype).to(DEVICE)


def a_norm(width: int, kind: NormKind, dtype: torch.dtype) -> LateNorm:
    hidden, update = (drawn(1, width, seed=seed, dtype=dtype) for seed in (0, 1))
    room = torch.full_like(hidden, math.nan)
    return LateNorm(hidden, update, room, drawn(width, seed=2, dtype=dtype), 1e-5, kind)


def unfused(x: LateNorm) -> tuple[Tensor, Tensor]:
    """The sum and its norm, by the norm's own kernel."""
    return triton_norm.add_norm(x.hidden, x.update, x.weight, x.epsilon, kind=x.number)


def of_halves(rows: Tensor, gate: int | None) -> Tensor:
    if gate is None:
        return rows
    return triton_gate.gate(*rows.chunk(2, dim=-1), kind=gate)


def exactly(x: LateNorm, matrix: Tensor, gate: int | None) -> Tensor:
    """By the definitions, in float64."""
    parts = [each.double() for each in (x.hidden, x.update, x.total, x.weight)]
    plain = LateNorm(*parts, x.epsilon, x.kind).take() @ matrix.double().T
    if gate is None:
        return plain
    form = (plain_gate.silu_gate, plain_gate.gelu_tanh_gate)[gate]
    return form(*plain.chunk(2, dim=-1))


def error(ours: Tensor, exact: Tensor) -> float:
    return ((ours.double() - exact).norm() / exact.norm()).item()


@pytest.mark.parametrize("dtype", SHORT, ids=str)
@pytest.mark.parametrize("outs, width, kind, gate", NARROW)
def test_a_dense_product_takes_the_norm_and_the_gate_in_their_bits(
    outs: int, width: int, kind: NormKind, gate: int | None, dtype: torch.dtype
) -> None:
    x = a_norm(width, kind, dtype)
    weight = drawn(outs if gate is None else 2 * outs, width, seed=3, dtype=dtype)
    assert triton_linear.takes_norm(weight)
    total, normed = unfused(x)
    wanted = of_halves(triton_linear.multiply_row(normed, weight, is_kept=True), gate)
    for is_kept in (True, False):
        x.total.fill_(math.nan)
        ours = triton_linear.multiply_normed(x, weight, after=gate, is_kept=is_kept)
        assert torch.equal(ours, wanted) and torch.equal(x.total, total)
    assert error(wanted, exactly(x, weight, gate)) < 6 * ROUNDING[dtype]


@pytest.mark.parametrize("outs, width", [(14336, 4096)] if HAS_GPU else [(5, 2500)])
def test_a_wide_dense_product_takes_the_gate_alone(
    outs: int, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, weight = a_norm(width, "rounded", SHORT[-1]), drawn(2 * outs, width, seed=3, dtype=SHORT[-1])
    assert triton_linear.takes_pairs(weight) is HAS_GPU, "a program of few rows has one each"
    if not HAS_GPU:  # as of many
        monkeypatch.setattr(triton_linear, "_tile", lambda *_: (2, 2048, 8))
    assert triton_linear.takes_pairs(weight) and not triton_linear.takes_norm(weight)
    _, normed = unfused(x)
    wanted = of_halves(triton_linear.multiply_row(normed, weight, is_kept=True), triton_gate.SILU)
    ours = triton_linear.multiply_normed(x, weight, after=triton_gate.SILU, is_kept=True)
    assert torch.equal(ours, wanted)


@pytest.mark.parametrize("dtype", SHORT, ids=str)
@pytest.mark.parametrize("word", ["int4", "int4-sym-g64"])
@pytest.mark.parametrize("outs, width, kind, gate", WIDE)
def test_a_product_of_nibbles_takes_the_norm_and_the_gate_in_their_bits(
    outs: int,
    width: int,
    kind: NormKind,
    gate: int | None,
    word: str,
    dtype: torch.dtype,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not HAS_GPU:  # so that a program takes several blocks
        monkeypatch.setattr(triton_nibbles, "_MULTIPROCESSORS", 1)
    x = a_norm(width, kind, dtype)
    rows = outs if gate is None else 2 * outs
    weight = KeptIntegers(round_matrix(drawn(rows, width, seed=3), scheme_of(word)))
    matrix = (weight.quants, weight.quant_scale, weight.zero)
    assert triton_nibbles.takes_norm(rows, width)
    total, normed = unfused(x)
    wanted = of_halves(triton_integers.multiply(normed, *matrix, has_nibbles=True), gate)
    ours = triton_nibbles.multiply_normed(x, *matrix, after=gate)
    assert torch.equal(ours, wanted) and torch.equal(x.total, total)
    assert error(ours, exactly(x, weight.dense(), gate)) < 6 * ROUNDING[dtype]


@pytest.mark.parametrize("width", [64, 1024, 4128, 14336])
def test_a_width_whose_norm_would_be_summed_otherwise_is_left_to_its_kernel(width: int) -> None:
    assert not triton_nibbles.takes_norm(4096, width)
    weight = torch.empty(4096, {64: 512}.get(width, 2 * width), dtype=torch.bfloat16)
    assert not triton_linear.takes_norm(weight)


def placed(size: int, groups: int, dtype: torch.dtype) -> HeadPlaces:
    """Where the heads of such a product go; pages hold something already."""
    angle = drawn(1, size // 2, seed=4)
    pages = [drawn(4, 8, groups, size, seed=seed, dtype=dtype) for seed in (5, 6)]
    return HeadPlaces(angle.cos(), angle.sin(), *pages, torch.tensor([9], device=DEVICE))


def held(places: HeadPlaces, rows: Tensor) -> list[Tensor]:
    """By the kernels one after the other: queries, and both pages."""
    pages = [places.key_pages.clone(), places.value_pages.clone()]
    heads = rows.view(1, -1, pages[0].shape[3])
    turned = (places.cos, places.sin, *pages, places.slots)
    return [triton_heads.turn_and_store(heads, *turned), *pages]


@pytest.mark.parametrize("dtype", SHORT, ids=str)
@pytest.mark.parametrize("heads, groups, size", [(4, 2, 16), (6, 1, 24), (32, 8, 128)])
@pytest.mark.parametrize("width", [520, 1000, *([4096] if HAS_GPU else [])])
def test_a_dense_product_puts_heads_in_their_places(
    width: int, heads: int, groups: int, size: int, dtype: torch.dtype
) -> None:
    if size == 128 and not HAS_GPU:
        pytest.skip("as large as a model's: compiled alone")
    rows = (heads + 2 * groups) * size
    x, weight = a_norm(width, "rounded", dtype), drawn(rows, width, seed=3, dtype=dtype)
    if not triton_linear.takes_pairs(weight):
        pytest.skip("its programs have a row each")
    places = placed(size, groups, dtype)
    total, normed = unfused(x)
    wanted = held(places, triton_linear.multiply_row(normed, weight, is_kept=True))
    query = triton_linear.multiply_normed(x, weight, after=places, is_kept=True)
    for ours, other in zip((query, places.key_pages, places.value_pages), wanted, strict=True):
        assert torch.equal(ours, other)
    assert torch.equal(x.total, total)


@pytest.mark.parametrize("dtype", SHORT, ids=str)
@pytest.mark.parametrize("width, heads, groups, size", [(1152, 4, 2, 16), (4096, 32, 8, 128)])
def test_a_product_of_nibbles_puts_heads_in_their_places(
    width: int, heads: int, groups: int, size: int, dtype: torch.dtype, monkeypatch
) -> None:
    if size == 128 and not HAS_GPU:
        pytest.skip("as large as a model's: compiled alone")
    if not HAS_GPU:
        monkeypatch.setattr(triton_nibbles, "_MULTIPROCESSORS", 1)
    rows = (heads + 2 * groups) * size
    x = a_norm(width, "rounded", dtype)
    weight = KeptIntegers(round_matrix(drawn(rows, width, seed=3), scheme_of("int4")))
    matrix = (weight.quants, weight.quant_scale, weight.zero)
    places = placed(size, groups, dtype)
    total, normed = unfused(x)
    wanted = held(places, triton_integers.multiply(normed, *matrix, has_nibbles=True))
    query = triton_nibbles.multiply_normed(x, *matrix, after=places)
    for ours, other in zip((query, places.key_pages, places.value_pages), wanted, strict=True):
        assert torch.equal(ours, other)
    assert torch.equal(x.total, total)


@pytest.mark.parametrize("dtype", SHORT, ids=str)
def test_a_product_of_nibbles_has_the_next_matrix_fetched_and_its_own_bits(
    dtype: torch.dtype,
) -> None:
    outs, width = (4096, 4096) if HAS_GPU else (20, 1152)
    x = drawn(1, width, seed=0, dtype=dtype)
    weight, behind = (
        KeptIntegers(round_matrix(drawn(rows, width, seed=rows), scheme_of("int4")))
        for rows in (outs, 3 * outs)
    )
    matrix = (weight.quants, weight.quant_scale, weight.zero)
    alone = triton_integers.multiply(x, *matrix, has_nibbles=True)
    ours = triton_integers.multiply(x, *matrix, has_nibbles=True, following=behind.quants)
    assert torch.equal(ours, alone)


@pytest.mark.parametrize("num_bytes", [0, 5, 132 * 32 * 16 - 1, 132 * 32 * 16, 10**7, 10**9])
def test_chunks_that_are_fetched_lie_within_their_matrix(num_bytes: int) -> None:
    chunk = chunk_of(num_bytes)
    assert chunk % 16 == 0 and 132 * 32 * chunk <= num_bytes
    assert (chunk > 0) is (num_bytes >= 132 * 32 * 16)
