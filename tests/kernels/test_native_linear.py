"""Packed products against float64, and their bits across rows, threads and instruction sets."""

from __future__ import annotations

import pytest
import torch
from native_cases import INTEGER_KINDS, ISAS, KINDS, needs_native, packed, random, rounded, running
from torch import Tensor

from cutaway.kernels import native
from cutaway.kernels.gate import gelu_gate, gelu_tanh_gate, relu_gate, silu_gate
from cutaway.kernels.native import library
from cutaway.kernels.native.structs import Rows
from cutaway.kernels.norm import layer_norm, rms_norm

pytestmark = needs_native

TWINS = {
    native.Activation.SILU: silu_gate,
    native.Activation.GELU_TANH: gelu_tanh_gate,
    native.Activation.GELU: gelu_gate,
    native.Activation.RELU: relu_gate,
}
CAP = 3.0
CURVES = {
    **TWINS,
    native.Activation.SIGMOID: lambda gate, up: gate.sigmoid() * up,
    native.Activation.IDENTITY: lambda gate, up: gate * up,
    native.Activation.CAPPED: lambda gate, up: CAP * (gate / CAP).tanh() * up,
}


def linear(x: Tensor, *weights: native.PackedWeight, **options: object) -> Tensor:
    out = torch.full((len(x), sum(w.num_rows for w in weights)), torch.nan)
    run_rows(native.linear(x, weights, out=out, **options), len(x))  # type: ignore[arg-type]
    return out


def run_rows(operation: native.Operation, count: int) -> None:
    native.run(operation, native.NativeStep.of_rows(count))


def expected(x: Tensor, weight: native.PackedWeight) -> Tensor:
    seen = rounded(x) if weight.kind.is_integer else x.double()
    return seen @ weight.dense().double().T


def assert_close(found: Tensor, wanted: Tensor) -> None:
    # Sums of up to 2048 float32 terms; what is left is rounding, far below one part in 1e5.
    torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1e-5 * wanted.abs().max())


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
@pytest.mark.parametrize(("rows", "columns"), [(16, 32), (7, 64), (83, 576), (40, 1536), (33, 96)])
def test_product_is_that_of_the_dense_weight(
    isa: str, kind: native.Kind, rows: int, columns: int
) -> None:
    weight = packed(kind, rows, columns)
    for count in (1, 2, 5, 9, 40):
        x = random(count, columns, seed=count)
        with running(isa):
            assert_close(linear(x, weight), expected(x, weight))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_row_has_the_same_bits_alone_and_among_any_mates(kind: native.Kind) -> None:
    weight = packed(kind, 83, 672)
    x = random(40, 672, seed=1)
    with running(threads=1):
        alone = torch.cat([linear(x[i : i + 1], weight) for i in range(40)])
    for threads in (1, 2, 3):
        with running(threads=threads):
            for count in range(1, 41):
                assert torch.equal(linear(x[:count], weight), alone[:count])
            for start in (1, 7, 30):
                assert torch.equal(linear(x[start:], weight), alone[start:])


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_all_instruction_sets_give_the_same_bits_for_any_number_of_rows(kind: native.Kind) -> None:
    weight = packed(kind, 50, 1216)
    x = random(26, 1216, seed=2)
    with running("portable"):
        wanted = linear(x, weight)
    for isa in library.isas():
        with running(isa):
            for count in range(1, 27):
                assert torch.equal(linear(x[:count], weight), wanted[:count]), (isa, count)


def extreme(kind: native.Kind, high: bool) -> native.PackedWeight:
    """32 rows of the kind's largest or smallest integers, all scales and minima 1."""
    if kind is native.Kind.Q4:
        block = bytes((0x00, 0x3C)) + bytes((0xFF if high else 0x00,)) * 16
        return native.PackedWeight.from_blocks(block * 64, "Q4_0", shape=(32, 64))
    number = (127 if high else -128) if kind.has_bytes else (15 if high else 0)
    quants = torch.full((32, 64), number, dtype=torch.int8 if kind.has_bytes else torch.uint8)
    scales = torch.ones(32, 64 // kind.scale_columns)
    groups = native.Groups(quants, scales, scales if kind.is_affine else None)
    weight = native.PackedWeight.from_groups(kind, [groups], shape=(32, 64))
    assert weight is not None
    return weight


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", INTEGER_KINDS, ids=lambda kind: kind.name)
def test_the_largest_sums_of_a_group_are_exact(isa: str, kind: native.Kind) -> None:
    # Signs by columns: all alike, in turn, in pairs, by halves of four and of 32.
    column = torch.arange(64)
    signs = torch.stack([1 - 2 * (column // each % 2) for each in (64, 1, 2, 4, 16)]).float()
    x = torch.cat((signs, -signs, torch.where(signs > 0, signs, signs * 120 / 127)))
    for high in (True, False):
        weight = extreme(kind, high)
        with running(isa):
            assert_close(linear(x, weight), expected(x, weight))
            assert_close(linear(x[3:4], weight), expected(x[3:4], weight))


def test_many_rows_over_many_blocks_match_single_rows() -> None:
    weight = packed(native.Kind.Q4_AFFINE, 48, 8192)
    x = random(100, 8192, seed=3)
    with running(threads=2):
        whole = linear(x, weight)
        for row in (0, 23, 24, 47, 48, 99):
            assert torch.equal(linear(x[row : row + 1], weight)[0], whole[row])


def test_segments_stand_side_by_side_with_bias_and_residual() -> None:
    weights = [
        packed(kind, rows, 96, seed=rows)
        for kind, rows in zip(KINDS[:4], (5, 16, 33, 7), strict=True)
    ]
    biases = [random(5), None, random(33), random(7)]
    for count in (1, 6, 30):
        x = random(count, 96, seed=count)
        residual = random(count, 61, seed=4)
        out = residual.clone()
        run_rows(native.linear(x, weights, out=out, biases=biases, residual=out), count)
        parts = [linear(x, weight) for weight in weights]
        parts = [p if b is None else p + b for p, b in zip(parts, biases, strict=True)]
        assert torch.equal(out, residual + torch.cat(parts, dim=-1))


@pytest.mark.parametrize("count", [1, 7, 33])
def test_norm_before_a_product_is_the_norm_alone(count: int) -> None:
    norm = native.NormWeights(random(96, seed=5), 1e-5)
    x = random(count, 96, seed=6)
    normed = torch.empty_like(x)
    run_rows(native.norm(x, norm.weight, norm.epsilon, out=normed), count)
    for kind in KINDS:
        weight = packed(kind, 35, 96)
        assert torch.equal(linear(x, weight, norm=norm), linear(normed, weight))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
@pytest.mark.parametrize("count", [1, 9, 21])
@pytest.mark.parametrize("activation", TWINS, ids=lambda each: each.name)
def test_gated_is_its_parts(kind: native.Kind, count: int, activation: native.Activation) -> None:
    gate, up = packed(kind, 37, 64), packed(kind, 37, 64, seed=1)
    biases = (random(37, seed=7), random(37, seed=8))
    norm = native.NormWeights(random(64, seed=9), 1e-6)
    x = random(count, 64, seed=10)
    out = torch.empty(count, 37)
    wanted = torch.empty(count, 37)
    with running(threads=2):
        operation = native.multiply_gate(
            x, gate, up, out=out, norm=norm, biases=biases, activation=activation
        )
        run_rows(operation, count)
        both = linear(x, gate, up, norm=norm, biases=biases)
        operation = native.gate(both[:, :37], both[:, 37:], out=wanted, activation=activation)
        run_rows(operation, count)
    assert torch.equal(out, wanted)
    plain = TWINS[activation](both[:, :37].double(), both[:, 37:].double())
    atol = 1e-4 if activation is native.Activation.GELU else 1e-7
    torch.testing.assert_close(wanted.double(), plain, rtol=1e-5, atol=atol)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("width", [1, 15, 16, 64, 577])
def test_norm_is_that_of_the_plain_twin(isa: str, width: int) -> None:
    weight = random(width, seed=11)
    for count in (1, 5):
        x, add = random(count, width, seed=12), random(count, width, seed=13)
        total, out = torch.empty_like(x), torch.empty_like(x)
        with running(isa, threads=2):
            run_rows(native.norm(x, weight, 1e-5, out=out, add=add, total=total), count)
        assert torch.equal(total, x + add)
        torch.testing.assert_close(out, rms_norm(total, weight, 1e-5), rtol=1e-5, atol=1e-6)
        added = torch.empty_like(x)
        with running(isa, threads=2):
            run_rows(native.norm(total, weight, 1e-5, out=added, residual=add), count)
        assert torch.equal(added, add + out)
        part, apart = torch.cat((add, total, x), dim=1)[:, width : 2 * width], torch.empty_like(x)
        with running(isa, threads=2):
            run_rows(native.norm(part, weight, 1e-5, out=apart), count)
        assert torch.equal(apart, out), "a part of wider rows"


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("activation", CURVES, ids=lambda each: each.name)
def test_gate_is_that_of_the_plain_twin(isa: str, activation: native.Activation) -> None:
    gate = torch.cat((random(3, 90) * 10, torch.tensor([[-200.0, 200.0, 0.0]] * 3)), dim=1)
    up = random(3, 93, seed=1)
    out = torch.empty(3, 93)
    with running(isa):
        run_rows(native.gate(gate, up, out=out, activation=activation, cap=cap_of(activation)), 3)
    # In float64, since torch's own 1 + tanh loses what is far below 1. Exponents up to 87 are
    # rounded to 2^-24 of themselves, so powers are right to 5e-6; float64 saturates at 1e-16.
    plain = CURVES[activation](gate.double(), up.double())
    # The error of the sum 1 - erf and the difference under a cap are absolute.
    is_relative = activation not in (native.Activation.GELU, native.Activation.CAPPED)
    atol = 1e-15 if is_relative else 2e-6
    torch.testing.assert_close(out.double(), plain, rtol=1e-5, atol=atol)


def cap_of(activation: native.Activation) -> float | None:
    return CAP if activation is native.Activation.CAPPED else None


@pytest.mark.parametrize("isa", ISAS)
def test_gates_of_heads_that_lie_apart_with_residual_and_multiplier(isa: str) -> None:
    memory, residual = random(5, 3, 2, 20), random(5, 60, seed=1)
    gate, up, out = memory[:, :, 0], memory[:, :, 1], torch.empty(5, 60)
    sigmoid = native.Activation.SIGMOID
    with running(isa, threads=2):
        operation = native.gate(
            gate, up, out=out, activation=sigmoid, multiplier=0.5, residual=residual
        )
        run_rows(operation, 5)
        wanted = residual + 0.5 * (gate.sigmoid() * up).flatten(1)
        torch.testing.assert_close(out, wanted)
        # One number stands for a whole head; and nothing is multiplied but a number.
        run_rows(native.gate(gate[:, :, :1], up, out=out, activation=sigmoid), 5)
        torch.testing.assert_close(out, (gate[:, :, :1].sigmoid() * up).flatten(1))
        identity = native.Activation.IDENTITY
        run_rows(native.gate(residual, out=out, activation=identity, multiplier=3.0), 5)
    assert torch.equal(out, 3 * residual)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("width", [1, 15, 64, 577])
def test_norm_by_deviation_is_that_of_the_plain_twin(isa: str, width: int) -> None:
    weight, bias, x = random(width, seed=1), random(width, seed=2), 5 + random(7, width, seed=3)
    kind, out = native.NormKind.LAYER, torch.empty(7, width)
    with running(isa, threads=2):
        run_rows(native.norm(x, weight, 1e-5, out=out, bias=bias, kind=kind), 7)
    wanted = layer_norm(x.double(), weight.double(), bias.double(), 1e-5)
    torch.testing.assert_close(out.double(), wanted, rtol=1e-4, atol=1e-5)
    if width == 64:
        product, apart = torch.empty(7, 20), torch.empty(7, 20)
        matrix, before = (
            packed(native.Kind.Q8, 20, 64),
            native.NormWeights(weight, 1e-5, bias, kind),
        )
        run_rows(native.linear(x, [matrix], out=product, norm=before), 7)
        run_rows(native.linear(out, [matrix], out=apart), 7)
        assert torch.equal(product, apart)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_what_is_not_finite_shows_in_every_output_of_its_row_alone(
    kind: native.Kind, bad: float
) -> None:
    weight = packed(kind, 33, 64)
    x = random(12, 64)
    clean = linear(x, weight)
    x[3, 40] = bad
    found = linear(x, weight)
    assert not found[3].isfinite().any()
    rest = [row for row in range(12) if row != 3]
    assert torch.equal(found[rest], clean[rest])


def test_zeros_and_tiny_numbers_give_zeros() -> None:
    weight = packed(native.Kind.Q4_AFFINE, 16, 32)
    assert torch.equal(linear(torch.zeros(1, 32), weight), torch.zeros(1, 16))
    assert linear(torch.full((1, 32), 1e-38), weight).abs().max() < 1e-35


def test_rows_beyond_the_step_are_left_alone() -> None:
    weight = packed(native.Kind.Q8, 20, 32)
    out = torch.full((9, 20), -7.0)
    run_rows(native.linear(random(9, 32), [weight], out=out), 4)
    assert (out[4:] == -7.0).all() and (out[:4] != -7.0).all()


def test_logit_rows_count_the_rows_of_the_head() -> None:
    weight = packed(native.Kind.Q8, 20, 32)
    out = torch.full((9, 20), -7.0)
    operation = native.linear(random(9, 32), [weight], out=out, rows=Rows.LOGITS)
    step = native.NativeStep.of_rows(9)
    step.struct.num_logit_rows = 2
    native.run(operation, step)
    assert (out[2:] == -7.0).all() and (out[:2] != -7.0).all()
