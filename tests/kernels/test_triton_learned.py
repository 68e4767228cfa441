"""Triton forms with a gradient beside their plain twins: on a GPU, or in Triton's interpreter.

The plain one computes in float64, and torch differentiates it.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="Triton is not installed: pip install triton")

HAS_GPU = torch.cuda.is_available()
import tiny  # noqa: E402
from cutaway.core.layout import FULL, Window  # noqa: E402
from cutaway.core.step import ShapePlan  # noqa: E402
from cutaway.kernels import dispatch  # noqa: E402
from cutaway.kernels import likelihood as kernels_likelihood  # noqa: E402
from cutaway.kernels.attention import plain as plain_attention  # noqa: E402
from cutaway.kernels.attention import trainable_attention  # noqa: E402
from cutaway.kernels.attention import triton_learned as learned_attention  # noqa: E402
from cutaway.kernels.gate import plain as plain_gate  # noqa: E402
from cutaway.kernels.gate import triton_learned as learned_gate  # noqa: E402
from cutaway.kernels.heads import triton_learned as learned_heads  # noqa: E402
from cutaway.kernels.likelihood import plain as plain_likelihood  # noqa: E402
from cutaway.kernels.likelihood import trainable as trainable_likelihood  # noqa: E402
from cutaway.kernels.likelihood import triton as triton_likelihood  # noqa: E402
from cutaway.kernels.linear import product_behind_norm, trainable_product  # noqa: E402
from cutaway.kernels.norm import plain as plain_norm  # noqa: E402
from cutaway.kernels.norm import triton_learned as learned_norm  # noqa: E402
from cutaway.kernels.norm.late import LateLearnedNorm  # noqa: E402
from cutaway.kernels.rotary import plain as plain_rotary  # noqa: E402
from cutaway.train.data.packing import MicroBatch, ScoredSequence  # noqa: E402
from cutaway.train.losses.likelihood import likelihood  # noqa: E402
from cutaway.train.losses.losses import cross_entropy  # noqa: E402
from cutaway.train.model import compute_forms  # noqa: E402
from cutaway.train.stage import deterministic  # noqa: E402

DEVICE = "cuda" if HAS_GPU else "cpu"
# The interpreter computes by NumPy, which has no bfloat16.
pytestmark = (
    [pytest.mark.gpu] if HAS_GPU else [pytest.mark.filterwarnings("ignore::RuntimeWarning")]
)
HALF = torch.bfloat16 if HAS_GPU else torch.float16
DTYPES = (torch.float32, HALF)
ROUNDING = {torch.float32: 2e-6, torch.bfloat16: 2**-7, torch.float16: 2**-10}
KINDS = ("rounded", "wide", "offset")


def drawn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator).to(dtype).to(DEVICE)


def error(ours: Tensor, exact: Tensor) -> float:
    """Relative distance; NaN is never near."""
    ours, exact = ours.double().cpu(), exact.double().cpu()
    distance = ((ours - exact).norm() / exact.norm().clamp_min(1e-30)).item()
    return math.inf if math.isnan(distance) else distance


def learned(*tensors: Tensor) -> list[Tensor]:
    return [each.detach().clone().requires_grad_() for each in tensors]


def exact(*tensors: Tensor) -> list[Tensor]:
    return [each.detach().double().cpu().requires_grad_() for each in tensors]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(1, 8), (37, 100), (2, 9, 7), (3, 1024)], ids=str)
@pytest.mark.parametrize("kind", range(3), ids=KINDS)
def test_a_norm_of_a_sum_and_its_gradients(
    kind: int, shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    """The sum in float32, what is added and the norm in dtype."""
    given = drawn(*shape), drawn(*shape, seed=1, dtype=dtype), drawn(shape[-1], seed=2)
    pulls = drawn(*shape, seed=3), drawn(*shape, seed=4, dtype=dtype)
    own = learned(*given)
    found = learned_norm.add_norm(*own, 1e-5, kind=kind, dtype=dtype)
    assert [each.dtype for each in found] == [torch.float32, dtype]
    truth = exact(*given)
    form = getattr(plain_norm, f"{KINDS[kind]}_rms_norm".removeprefix("rounded_"))
    total = truth[0] + truth[1]
    wanted = total, form(total, truth[2], 1e-5)
    grads = torch.autograd.grad(found, own, pulls)
    of_truth = torch.autograd.grad(wanted, truth, [each.double().cpu() for each in pulls])
    assert [each.dtype for each in grads] == [torch.float32, dtype, torch.float32]
    for ours, plain in zip((*found, *grads), (*wanted, *of_truth), strict=True):
        assert ours.shape == plain.shape
        assert error(ours, plain) < 3 * ROUNDING[dtype]


@pytest.mark.parametrize("kind", range(3), ids=KINDS)
def test_a_norm_alone_and_its_gradients(kind: int) -> None:
    given, pull = (drawn(37, 100), drawn(100, seed=2)), drawn(37, 100, seed=3)
    own, truth = learned(*given), exact(*given)
    found = learned_norm.norm(*own, 1e-5, kind=kind, dtype=torch.float32)
    wanted = getattr(plain_norm, f"{KINDS[kind]}_rms_norm".removeprefix("rounded_"))(*truth, 1e-5)
    grads = torch.autograd.grad(found, own, pull)
    of_truth = torch.autograd.grad(wanted, truth, pull.double().cpu())
    for ours, plain in zip((found, *grads), (wanted, *of_truth), strict=True):
        assert error(ours, plain) < 3 * ROUNDING[torch.float32]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(1, 8), (5, 100), (9, 1536)], ids=str)
@pytest.mark.parametrize("kind", range(2), ids=("silu", "gelu_tanh"))
def test_gates_pull_as_the_plain_ones(
    kind: int, shape: tuple[int, int], dtype: torch.dtype
) -> None:
    sides = 3 * drawn(shape[0], 2 * shape[1], dtype=dtype)
    pull = drawn(*shape, seed=1, dtype=dtype)
    of_sides, product = learned_gate.gradients(sides, pull, kind=kind)
    (truth,) = exact(sides)
    form = (plain_gate.silu_gate, plain_gate.gelu_tanh_gate)[kind]
    wanted = form(*truth.chunk(2, dim=-1))
    (of_truth,) = torch.autograd.grad(wanted, truth, pull.double().cpu())
    assert error(product, wanted) < 2 * ROUNDING[dtype]
    assert error(of_sides, of_truth) < 2 * ROUNDING[dtype]


def test_a_gate_of_huge_numbers_pulls_no_nan() -> None:
    sides = torch.tensor([[-300.0, 300.0, -90.0, 1.0, 2.0, 3.0]], device=DEVICE)
    for kind in range(2):
        of_sides, product = learned_gate.gradients(sides, torch.ones_like(sides[:, :3]), kind=kind)
        assert of_sides.isfinite().all() and product.isfinite().all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("gate", [None, 0], ids=["bare", "gate"])
def test_products_of_several_matrices_and_their_gradients(
    gate: int | None, dtype: torch.dtype
) -> None:
    x = drawn(37, 24 if gate is None else 48, dtype=dtype)
    weights, pull = (drawn(16, 24, seed=1), drawn(8, 24, seed=2)), drawn(37, 24, dtype=dtype)
    own, truth = learned(x, *weights), exact(x, *weights)
    found = trainable_product(own[0], own[1:], dtype=dtype, gate=gate)
    rows = truth[0] if gate is None else plain_gate.silu_gate(*truth[0].chunk(2, dim=-1))
    wanted = rows @ torch.cat(truth[1:]).T
    grads = torch.autograd.grad(found, own, pull)
    of_truth = torch.autograd.grad(wanted, truth, pull.double().cpu())
    assert [each.dtype for each in grads] == [dtype, torch.float32, torch.float32]
    for ours, plain in zip((found, *grads), (wanted, *of_truth), strict=True):
        assert error(ours, plain) < (1e-5 if dtype == torch.float32 else 2 * ROUNDING[dtype])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_a_product_takes_the_norm_before_it_and_keeps_the_sum_alone(
    kind: str, dtype: torch.dtype
) -> None:
    """The bits of the two apart: the norm that comes again in the pass back is the same one."""
    given = drawn(37, 24), drawn(37, 24, seed=1, dtype=dtype), drawn(24, seed=2)
    weights = drawn(16, 24, seed=3), drawn(8, 24, seed=4)
    pulls = drawn(37, 24, seed=5), drawn(37, 24, seed=6, dtype=dtype)
    made: list[list[Tensor]] = []
    kept: list[Tensor] = []
    for is_one in (True, False):
        own = learned(*given, *weights)
        late = LateLearnedNorm(*own[:2], own[0], own[2], 1e-5, kind, dtype)  # pyright: ignore
        with torch.autograd.graph.saved_tensors_hooks(
            lambda each: kept.append(each) or each, lambda each: each
        ):
            if is_one:
                product = product_behind_norm(late, own[3:])
                num_kept = len(kept)
            else:
                product = trainable_product(late.take(), own[3:], dtype=dtype)
        grads = torch.autograd.grad((late.total, product), own, pulls)
        made.append([late.total, product, *grads])
    for ours, apart in zip(*made, strict=True):
        assert ours.dtype == apart.dtype and torch.equal(ours, apart)
    assert [each.shape for each in kept[:num_kept]].count(given[0].shape) == 1


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_gradients_may_lie_where_kept_logits_lay(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second pass back over the same logits makes them again."""
    monkeypatch.setattr(kernels_likelihood, "_is_in_triton", lambda logits: True)
    targets = torch.randint(0, 50, (21,), generator=torch.Generator().manual_seed(1)).to(DEVICE)
    pulls = drawn(21, seed=2), drawn(21, seed=3)
    found: list[list[Tensor]] = []
    for room in (0, 10**6):
        monkeypatch.setattr(trainable_likelihood, "_room", lambda device, room=room: room)
        own = learned(drawn(21, 16), drawn(50, 16, seed=1))
        made = trainable_likelihood.log_probs(
            *(own[0], own[1], targets), temperature=0.7, rows_at_once=8, dtype=dtype
        )
        for _ in range(2):
            found.append(list(torch.autograd.grad(made, own, pulls, retain_graph=True)))
    for others in found[1:]:
        assert all(torch.equal(one, other) for one, other in zip(found[0], others, strict=True))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("heads, groups, size", [(9, 3, 64), (4, 1, 24), (1, 1, 8)])
def test_heads_are_turned_and_turned_back(
    heads: int, groups: int, size: int, dtype: torch.dtype
) -> None:
    whole = drawn(7, heads + 2 * groups, size, dtype=dtype)
    angles = drawn(7, size // 2, seed=1)
    cos, sin = angles.cos(), angles.sin()
    counts = [heads, groups, groups]
    pulls = [drawn(7, count, size, seed=2 + i, dtype=dtype) for i, count in enumerate(counts)]
    (own,), (truth,) = learned(whole), exact(whole)
    found = learned_heads.turn(own, cos, sin, num_groups=groups)
    turns = cos.double().cpu(), sin.double().cpu()
    query, key, value = truth.split(counts, dim=1)
    wanted = plain_rotary.rotate(query, *turns), plain_rotary.rotate(key, *turns), value
    (of_own,) = torch.autograd.grad(found, own, pulls)
    (of_truth,) = torch.autograd.grad(wanted, truth, [each.double().cpu() for each in pulls])
    for ours, plain in zip((*found, of_own), (*wanted, of_truth), strict=True):
        assert ours.shape == plain.shape and ours.dtype == dtype
        assert error(ours, plain) < ROUNDING[dtype]
    assert torch.equal(found[2], whole[:, heads + groups :])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rows, width", [(1, 3), (5, 50), (3, 9001)])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_scores_of_logits_and_what_they_pull(
    rows: int, width: int, temperature: float, dtype: torch.dtype
) -> None:
    logits = 20 * drawn(rows, width, dtype=dtype)
    targets = torch.randint(0, width, (rows,), generator=torch.Generator().manual_seed(1))
    targets = targets.to(DEVICE)
    pulls = drawn(rows, seed=2), drawn(rows, seed=3)
    found, sums = triton_likelihood.scores(logits, targets, temperature)
    (truth,) = exact(logits)
    wanted = plain_likelihood.scores(truth, targets.cpu(), temperature)
    for ours, plain in zip((found, sums), wanted, strict=True):
        torch.testing.assert_close(ours.double().cpu(), plain.detach(), rtol=2e-6, atol=2e-5)
    pulled = triton_likelihood.of_logits(logits, targets, sums, *pulls, temperature)
    (of_truth,) = torch.autograd.grad(wanted, truth, [each.double().cpu() for each in pulls])
    assert pulled.dtype == dtype and error(pulled, of_truth) < max(ROUNDING[dtype], 2e-5)


ATTENDED = [((5, 5, 5), None), ((1,), None), ((7, 70, 2, 33, 64), None)]
ATTENDED += [((70, 70), 6), ((7, 130, 2), 40), ((3, 9), 100)]


@pytest.mark.parametrize(
    "heads, groups, size, by_block",
    [(3, 1, 16, True), (4, 2, 24, False), (2, 2, 64, False), (2, 1, 64, True), (1, 1, 128, True)],
)
@pytest.mark.parametrize("lengths, width", ATTENDED, ids=str)
def test_attention_within_sequences_and_its_gradients(
    lengths: tuple[int, ...],
    width: int | None,
    heads: int,
    groups: int,
    size: int,
    by_block: bool,
    monkeypatch,
) -> None:
    """Small tiles, so that a sequence has several, and heads that lie in rows with others."""
    monkeypatch.setattr(learned_attention, "_has_copier", lambda device: by_block)
    for name in ("FORWARD", "QUERIES", "KEYS"):
        monkeypatch.setattr(learned_attention, name, (learned_attention.Tiles(32, 16, 4, 1),) * 2)
    monkeypatch.setattr(dispatch, "LEARNS_ON", frozenset({DEVICE}))
    joined = drawn(sum(lengths), heads + 2 * groups, size, dtype=HALF).requires_grad_()
    plan = ShapePlan(lengths, lengths)
    extent = FULL if width is None else Window(width)
    weight = drawn(sum(lengths), heads, size, seed=1, dtype=HALF)

    def pulled(form, rows: Tensor) -> list[Tensor]:
        sides = rows.split((heads, groups, groups), dim=1)
        mixed = form(*sides, plan=plan, softmax_scale=0.3, extent=extent)
        return [mixed, *torch.autograd.grad(mixed, rows, weight.to(mixed))]

    with deterministic():
        ours, again = (pulled(trainable_attention, joined) for _ in range(2))
    truth = pulled(plain_attention.attention, *exact(joined))
    for one, other, wanted in zip(ours, again, truth, strict=True):
        assert error(one, wanted) < 2 * ROUNDING[HALF]
        assert torch.equal(one, other), "the same bits each time"


@pytest.mark.gpu
@pytest.mark.parametrize("heads, groups, size", [(9, 3, 64), (2, 2, 128)])
def test_forward_by_cudnn_repeats_and_fits_our_way_back(
    heads: int, groups: int, size: int, monkeypatch
) -> None:
    lengths = (600, 600, 600)
    rows = [drawn(1800, n, size, seed=n, dtype=HALF) for n in (heads, groups, groups + 20)]
    rows[2] = rows[2][:, :groups]
    pull = drawn(1800, heads, size, seed=99, dtype=HALF)

    def found() -> list[Tensor]:
        made = learned_attention.attend(*rows, lengths, scale=0.1)
        given = {"made": made, "pull": pull, "scale": 0.1}
        return [*made[:2], *learned_attention.gradients(*rows, lengths, **given)]

    assert learned_attention._is_for_cudnn(rows[0], lengths, None)
    assert not learned_attention._is_for_cudnn(rows[0], lengths, 599)
    by_cudnn, again = found(), found()
    first = [each[:600] for each in rows]
    alone = learned_attention.attend(*first, lengths[:1], scale=0.1)
    monkeypatch.setattr(learned_attention, "_is_for_cudnn", lambda *given: False)
    for one, other, ours in zip(by_cudnn, again, found(), strict=True):
        assert torch.equal(one, other), "the same bits each time"
        assert error(one, ours) < 2 * ROUNDING[HALF]
    assert torch.equal(alone.mixed, by_cudnn[0][:600])


def test_a_sequence_attends_and_pulls_the_same_in_any_company(monkeypatch) -> None:
    monkeypatch.setattr(dispatch, "LEARNS_ON", frozenset({DEVICE}))
    heads = [drawn(90, n, 16, seed=n, dtype=HALF) for n in (4, 2, 3)]
    heads[2] = heads[2][:, :2]
    weight = drawn(90, 4, 16, seed=9, dtype=HALF)
    found: list[list[Tensor]] = []
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: True)
    for lengths, own in (((20, 60, 10), slice(20, 80)), ((60,), slice(0, 60))):
        rows = slice(0, 90) if len(lengths) > 1 else slice(20, 80)
        leaves = learned(*(each[rows] for each in heads))
        mixed = trainable_attention(*leaves, plan=ShapePlan(lengths, lengths), softmax_scale=0.3)
        grads = torch.autograd.grad(mixed, leaves, weight[rows])
        found.append([each[own] for each in (mixed, *grads)])
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


def whole_gradients(dtype: torch.dtype | None, device: str) -> Tensor:
    """The flat gradient of a small model over sequences of one length."""
    _, model = tiny.random_model(dtype=torch.float32)
    model.to(device)
    if dtype is not None:
        compute_forms.multiply_in(model, dtype)
    batch = MicroBatch(tuple(ScoredSequence.whole(list(range(n, n + 9))) for n in range(3)))
    cross_entropy(likelihood(model, batch)).total.backward()
    return torch.cat([p.grad.flatten().cpu() for p in model.parameters() if p.grad is not None])


@pytest.mark.parametrize("dtype", [None, HALF], ids=str)
def test_a_model_learns_by_them_as_by_the_plain_forms(
    dtype: torch.dtype | None, monkeypatch
) -> None:
    plain = whole_gradients(dtype, "cpu")
    monkeypatch.setattr(dispatch, "LEARNS_ON", frozenset({DEVICE}))
    with deterministic():
        ours, again = (whole_gradients(dtype, DEVICE) for _ in range(2))
    assert error(ours, plain) < (1e-4 if dtype is None else 0.03)
    assert torch.equal(ours, again), "the same bits each time"
