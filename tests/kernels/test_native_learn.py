"""Native kernels of training against plain torch in float64: values, gradients, threads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import product

import pytest
import torch
from torch import Tensor

from cutaway.core.layout import Window
from cutaway.core.step import ShapePlan
from cutaway.host import processor
from cutaway.kernels import gate, native
from cutaway.kernels.attention import plain, trainable_attention
from cutaway.kernels.gate import plain as gate_plain
from cutaway.kernels.gate.trainable import trainable_activation, trainable_gate
from cutaway.kernels.linear import native_product
from cutaway.kernels.linear.plain import linear
from cutaway.kernels.native import learn, library
from cutaway.kernels.norm import rms_norm
from cutaway.kernels.norm.plain import rms_norm as plain_rms_norm
from cutaway.kernels.rotary import plain as plain_rotary
from cutaway.kernels.rotary import rotate

pytestmark = pytest.mark.skipif(not learn.learns(), reason=library.why_missing() or "an old one")

CURVES = (gate.silu, gate.gelu, gate.gelu_tanh)
GATES = (gate.silu_gate, gate.gelu_gate, gate.gelu_tanh_gate)


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def pulled(function: Callable[..., Tensor], *given: Tensor) -> list[Tensor]:
    """What a function gives, and the gradients of what it is given."""
    leaves = [each.clone().requires_grad_() for each in given]
    made = function(*leaves)
    grad = numbers(*made.shape, seed=9).to(made.dtype)
    return [made.detach(), *torch.autograd.grad(made, leaves, grad)]


def near(ours: list[Tensor], exact: list[Tensor], most: float = 4e-6) -> None:
    for own, other in zip(ours, exact, strict=True):
        assert own.dtype == torch.float32 and own.shape == other.shape
        assert float((own.double() - other).abs().max()) <= most * max(1, float(other.abs().max()))


@pytest.mark.parametrize(("curve", "width"), list(product(CURVES, (1, 15, 16, 33, 512))))
def test_activations_and_their_gradients(
    curve: Callable[[Tensor], Tensor], width: int, threads: int
) -> None:
    x = 3 * numbers(70, width)
    ours = pulled(lambda given: trainable_activation(curve, given), x)
    near(ours, pulled(curve, x.double()))
    assert "_Learned" in str(trainable_activation(curve, x.requires_grad_()).grad_fn)


@pytest.mark.parametrize(("curve", "width"), list(product(GATES, (1, 15, 16, 33, 344))))
def test_gates_and_their_gradients(
    curve: Callable[[Tensor, Tensor], Tensor], width: int, threads: int
) -> None:
    sides = 2 * numbers(70, 2 * width)
    ours = pulled(lambda given: trainable_gate(curve, given), sides)
    near(ours, pulled(lambda given: curve(*given.chunk(2, dim=-1)), sides.double()))


@pytest.mark.parametrize("curve", CURVES)
def test_gradients_are_finite_far_out(curve: Callable[[Tensor], Tensor]) -> None:
    far = torch.tensor([[-1e4, -200.0, -89.0, -0.0, 89.0, 200.0, 1e4]])
    near(pulled(lambda given: trainable_activation(curve, given), far), pulled(curve, far.double()))


def test_what_has_no_kernel_goes_the_plain_way() -> None:
    x = numbers(4, 6)
    for curve in (gate.relu, gate.relu2):
        assert torch.equal(trainable_activation(curve, x), curve(x))
    near(pulled(partial(trainable_activation, gate.relu2), x), pulled(gate_plain.relu2, x.double()))
    half = x.bfloat16()
    assert torch.equal(trainable_activation(gate.gelu, half), gate.gelu(half))
    assert trainable_activation(gate.gelu, x[:0]).shape == (0, 6)


@pytest.mark.parametrize("is_turned", [True, False])
@pytest.mark.parametrize(
    ("rows", "depth", "width"),
    [(1, 1, 1), (5, 3, 17), (130, 128, 65), (300, 520, 33), (780, 128, 384)],
)
def test_products(rows: int, depth: int, width: int, is_turned: bool, threads: int) -> None:
    x, matrix, bias = numbers(rows, depth), numbers(depth, width, seed=1), numbers(width, seed=2)
    given = matrix.T.contiguous() if is_turned else matrix
    exact = x.double() @ matrix.double()
    near([native.multiply_rows(x, given, is_turned=is_turned)], [exact], most=1e-5)
    made = native.multiply_rows(x, given, bias, is_turned=is_turned)
    near([made], [exact + bias], most=1e-5)
    right = numbers(rows, width, seed=3)
    found, sums = native.multiply_columns(x, right, sums=True)
    assert sums is not None
    exacts = [x.double().T @ right.double(), x.double().sum(0)]
    near([found, sums], exacts, most=1e-5)


def test_products_have_the_same_bits_whatever_the_threads_and_the_other_rows() -> None:
    x, matrix, bias = numbers(300, 70), numbers(40, 70, seed=1), numbers(40, seed=2)
    before = torch.get_num_threads()
    made: list[tuple[Tensor, ...]] = []
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        rows = native.multiply_rows(x, matrix, bias, is_turned=True)
        found, sums = native.multiply_columns(rows, x, sums=True)
        assert sums is not None
        made.append((rows, found, sums))
    torch.set_num_threads(before)
    for others in made[1:]:
        assert all(map(torch.equal, made[0], others))
    alone = native.multiply_rows(x[7:8].contiguous(), matrix, bias, is_turned=True)
    assert torch.equal(alone, made[0][0][7:8])


@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("segments", [(48,), (32, 16, 17)])
def test_products_that_learn(
    segments: tuple[int, ...], has_bias: bool, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(learn, "_multiplies", lambda: True)  # whatever this machine's registers
    weights = [numbers(rows, 40, seed=rows) for rows in segments]
    biases = [numbers(rows, seed=rows + 1) for rows in segments] if has_bias else []

    def multiply(x: Tensor, *parameters: Tensor) -> Tensor:
        made = native_product(x, parameters[: len(segments)], parameters[len(segments) :] or None)
        assert made is not None
        return made

    def plainly(x: Tensor, *parameters: Tensor) -> Tensor:
        bias = torch.cat(parameters[len(segments) :]) if has_bias else None
        return linear(x, torch.cat(parameters[: len(segments)]), bias)

    given = [numbers(70, 40), *weights, *biases]
    near(pulled(multiply, *given), pulled(plainly, *(each.double() for each in given)), most=1e-5)


def test_products_that_learn_nothing_or_of_few_rows_go_the_plain_way() -> None:
    weight = numbers(8, 16)
    assert native_product(numbers(70, 16), [weight], None) is None
    weight.requires_grad_()
    assert native_product(numbers(9, 16), [weight], None) is None
    assert native_product(numbers(70, 16).bfloat16(), [weight], None) is None
    assert native_product(numbers(2, 70, 16), [weight], None) is None


@pytest.mark.parametrize(
    ("name", "vendor", "multiplies"),
    [
        ("avx2", "GenuineIntel", True),
        ("avx512_vnni", "GenuineIntel", False),
        ("avx512_vnni", "AuthenticAMD", True),
        ("portable", "AuthenticAMD", False),
    ],
)
def test_products_are_own_where_torchs_library_has_no_wider_ones(
    name: str, vendor: str, multiplies: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(learn, "isa", lambda: name)
    monkeypatch.setattr(processor, "read_fields", lambda: {"vendor_id": vendor})
    assert learn._multiplies.__wrapped__() is multiplies


def test_a_frozen_matrix_hands_its_gradient_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learn, "_multiplies", lambda: True)
    x, weight = numbers(70, 16).requires_grad_(), numbers(8, 16)
    made = native_product(x, [weight], None)
    assert made is not None
    made.sum().backward()
    assert x.grad is not None
    near([x.grad], [torch.ones(70, 8, dtype=torch.float64) @ weight.double()])


ATTENTIONS = [
    ((12, 64, 65), 4, 4, 32),
    ((1, 17, 130, 2, 200), 4, 2, 64),
    ((16, 16), 6, 1, 16),
    ((3,), 1, 1, 128),
]


@pytest.mark.parametrize(("lengths", "heads", "groups", "size"), ATTENTIONS)
def test_attention_and_its_gradients(
    lengths: tuple[int, ...], heads: int, groups: int, size: int, threads: int
) -> None:
    plan = ShapePlan(lengths, lengths)
    rows = numbers(sum(lengths), heads + 2 * groups, size)

    def attend(form: Callable[..., Tensor]) -> Callable[[Tensor], Tensor]:
        """Heads are views of the rows that a product made."""
        return lambda given: form(
            *given.split((heads, groups, groups), dim=1), plan=plan, softmax_scale=size**-0.5
        )

    near(pulled(attend(trainable_attention), rows), pulled(attend(plain.attention), rows.double()))


def test_attention_bears_scores_of_hundreds() -> None:
    heads = [8 * numbers(40, 2, 16, seed=seed) for seed in range(3)]

    def attend(form: Callable[..., Tensor]) -> Callable[..., Tensor]:
        return lambda *given: form(*given, plan=ShapePlan((40,), (40,)), softmax_scale=1.0)

    near(
        pulled(attend(trainable_attention), *heads),
        pulled(attend(plain.attention), *(each.double() for each in heads)),
        most=1e-3,
    )


def test_attention_through_a_narrow_window_goes_another_way() -> None:
    heads = [numbers(40, 2, 16, seed=seed) for seed in range(3)]
    given = {"plan": ShapePlan((40,), (40,)), "softmax_scale": 0.25, "extent": Window(8)}
    exact = plain.attention(*(each.double() for each in heads), **given)
    near([trainable_attention(*heads, **given)], [exact])


@pytest.mark.parametrize("shape", [(1, 5), (64, 16), (130, 128), (9, 3, 40)])
def test_gradients_of_norms(shape: tuple[int, ...], threads: int) -> None:
    x, weight = numbers(*shape), numbers(shape[-1], seed=1)
    ours = pulled(lambda *given: rms_norm(*given, 1e-6), x, weight)
    assert torch.equal(ours[0], plain_rms_norm(x, weight, 1e-6))
    exact = pulled(lambda *given: plain_rms_norm(*given, 1e-6), x.double(), weight.double())
    near(ours, exact, most=1e-5)


def test_the_gradient_of_a_rotation_is_turned_back() -> None:
    x, angles = numbers(7, 3, 20), numbers(7, 8, seed=1)
    ours, plainly = (
        pulled(lambda given, form=form: form(given, angles.cos(), angles.sin()), x)
        for form in (rotate, plain_rotary.rotate)
    )
    assert torch.equal(ours[0], plainly[0])
    near(ours, [each.double() for each in plainly], most=1e-6)


def test_threads_change_no_bit() -> None:
    rows = numbers(300, 8, 32)
    heads = native.OwnHeads(*rows.split((4, 2, 2), dim=1))
    lengths, grad = (100, 1, 199), numbers(300, 4, 32, seed=1)
    before, found = torch.get_num_threads(), []
    for count in (1, 2):
        torch.set_num_threads(count)
        made = native.own_attention(heads, lengths, 0.2)
        pulls = native.own_attention_gradients(heads, lengths, 0.2, made, grad)
        flat = rows.view(300, -1)
        curve = native.curve(native.Activation.GELU, flat, flat)
        norm = native.rms_gradients(flat, flat[0], 1e-6, flat)
        found.append([*made, *pulls, curve, *norm])
    torch.set_num_threads(before)
    assert all(map(torch.equal, *found))
