"""Experts in Triton beside their plain twin; see test_triton.py for where and how they run."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="Triton is not installed: pip install triton")

HAS_GPU = torch.cuda.is_available()
from cutaway.blocks.activations import clamp_gate  # noqa: E402
from cutaway.blocks.moe import Experts, halves, neighbours  # noqa: E402
from cutaway.blocks.router import (  # noqa: E402
    CorrectedSoftmax,
    SoftmaxThenTop,
    TopThenSoftmax,
    WeighedSoftmax,
)
from cutaway.kernels import experts as kernels  # noqa: E402
from cutaway.kernels.experts import plain, triton, triton_routing  # noqa: E402
from cutaway.kernels.gate import gelu_gate, gelu_tanh_gate, relu_gate, silu_gate  # noqa: E402

DEVICE = "cuda" if HAS_GPU else "cpu"
pytestmark = (
    [pytest.mark.gpu] if HAS_GPU else [pytest.mark.filterwarnings("ignore::RuntimeWarning")]
)
SHORT = (torch.float16, torch.bfloat16) if HAS_GPU else (torch.float16,)
DTYPES = (torch.float32, *SHORT)
ROUNDING = {torch.float32: 2e-6, torch.bfloat16: 2**-7, torch.float16: 2**-10}


def drawn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator).to(dtype).to(DEVICE)


def error(ours: Tensor, exact: Tensor) -> float:
    """Relative distance; NaN is never near."""
    ours, exact = ours.double().cpu(), exact.double().cpu()
    distance = ((ours - exact).norm() / exact.norm().clamp_min(1e-30)).item()
    return math.inf if math.isnan(distance) else distance


def made(
    *, num_experts: int, width: int, inner: int, dtype: torch.dtype, **settings: object
) -> Experts:
    """Experts with drawn weights, on the device."""
    experts = Experts(num_experts, width, inner, **settings).requires_grad_(False)  # type: ignore[arg-type]
    for seed, parameter in enumerate(experts.parameters()):
        parameter.copy_(drawn(*parameter.shape, seed=seed + 9) * parameter.shape[-1] ** -0.5)
    return experts.to(dtype).to(DEVICE)


def routed(tokens: int, num_experts: int, chosen: int, *, hot: int = 0) -> tuple[Tensor, Tensor]:
    """Experts of each token; the first hot tokens all choose the same ones."""
    scores = drawn(tokens, num_experts, seed=5)
    scores[:hot] = scores[:1]
    weights, ids = scores.softmax(-1).topk(chosen, -1)
    return ids, weights


def mixed(experts: Experts, x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
    """By Triton, whatever the device."""
    blocks = kernels._arrange(ids, experts)
    products = kernels._multiply(x, ids, experts, blocks)
    return kernels._add(products, ids, weights.to(x.dtype), experts, blocks)


@pytest.mark.parametrize("tokens", [1, 2, 7, 40, 150])
@pytest.mark.parametrize("num_experts, chosen", [(8, 2), (5, 3)])
def test_pairs_are_put_in_the_order_of_their_experts(
    tokens: int, num_experts: int, chosen: int, monkeypatch
) -> None:
    monkeypatch.setattr(triton, "_CHUNK", 64)  # so that a long prompt has several
    ids, _ = routed(tokens, num_experts, chosen, hot=tokens // 2)
    arranged = triton.arrange(ids, num_experts)
    flat = ids.flatten().cpu()
    assert arranged.order.tolist() == flat.argsort(stable=True).tolist()
    seen: list[int] = []
    for expert, begin, end in arranged.blocks.tolist():
        if expert >= 0:
            places = arranged.order[begin : min(end, begin + arranged.pairs)].tolist()
            assert places and {int(flat[place]) for place in places} == {expert}
            seen += places
    assert seen == arranged.order.tolist()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("tokens", [1, 3, 40])
@pytest.mark.parametrize("width, inner", [(64, 32), (72, 40)])
def test_experts_are_mixed_as_by_the_plain_form(
    width: int, inner: int, tokens: int, dtype: torch.dtype
) -> None:
    experts = made(num_experts=6, width=width, inner=inner, dtype=dtype)
    x = drawn(tokens, width, dtype=dtype)
    ids, weights = routed(tokens, 6, 2, hot=tokens // 3)
    exact = plain.mix_experts(x.double(), ids, weights.double(), experts.double())
    assert error(mixed(experts.to(dtype), x, ids, weights), exact) < ROUNDING[dtype]


@pytest.mark.parametrize("tokens", [1, 5])
@pytest.mark.parametrize(
    "gate, split",
    [
        (silu_gate, neighbours),
        (gelu_tanh_gate, halves),
        (gelu_gate, halves),
        (relu_gate, halves),
        (clamp_gate(alpha=1.702, limit=0.8), neighbours),
    ],
)
def test_gates_and_biases_of_experts_are_the_plain_ones(gate, split, tokens: int) -> None:
    experts = made(
        num_experts=4,
        width=48,
        inner=32,
        dtype=torch.float32,
        gate=gate,
        split=split,
        has_bias=True,
    )
    x = drawn(tokens, 48)
    ids, weights = routed(tokens, 4, 3)
    exact = plain.mix_experts(x.double(), ids, weights.double(), experts.double())
    assert error(mixed(experts.float(), x, ids, weights), exact) < ROUNDING[torch.float32]
    if isinstance(gate, partial):
        assert kernels._activation(gate) == ("clamped", 1.702, 0.8)


@pytest.mark.parametrize("mean", [4, 40, 120])
def test_a_pair_is_summed_alike_beside_any_others(mean: int, monkeypatch) -> None:
    """In blocks of each size: a token's result is the same first, last and among fewer."""
    dtype, size = SHORT[-1], {4: 16, 40: 64, 120: 128}[mean]
    monkeypatch.setattr(triton, "_pairs_of_a_block", lambda *_: size)
    experts = made(num_experts=3, width=128, inner=64, dtype=dtype)
    x = drawn(mean, 128, dtype=dtype)
    ids, weights = routed(mean, 3, 2)
    whole = mixed(experts, x, ids, weights)
    turned = torch.arange(mean - 1, -1, -1, device=DEVICE)
    assert torch.equal(mixed(experts, x[turned], ids[turned], weights[turned])[turned], whole)
    few = slice(1, mean // 2 + 1)
    assert torch.equal(mixed(experts, x[few], ids[few], weights[few]), whole[few])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("tokens", [1, 5, 70])
def test_scores_are_those_of_float32(tokens: int, dtype: torch.dtype) -> None:
    x, weight = drawn(tokens, 96, dtype=dtype), drawn(20, 96, seed=1, dtype=dtype)
    bias = drawn(20, seed=2)
    ours = triton_routing.score(x, weight, bias)
    exact = x.double() @ weight.double().T + bias.double()
    assert ours.dtype == torch.float32 and error(ours, exact) < 2e-6
    assert error(ours, plain.score_experts(x, weight, bias)) < 2e-6


RULES = {
    "softmax": SoftmaxThenTop(3, is_renormalized=False, multiplier=2.5),
    "renormalized": SoftmaxThenTop(3, is_renormalized=True),
    "among the chosen": TopThenSoftmax(4),
    "factors": WeighedSoftmax(20, num_chosen=3, multiplier=0.7),
    "corrected": CorrectedSoftmax(20, num_chosen=3),
}


@pytest.mark.parametrize("name", RULES)
def test_experts_are_chosen_as_by_the_rule(name: str) -> None:
    rule = RULES[name]
    if isinstance(rule, torch.nn.Module):
        for parameter in rule.requires_grad_(False).to(DEVICE).parameters():
            parameter.copy_(drawn(*parameter.shape, seed=3).abs() * 0.1 + 0.5)
    scores = drawn(9, 20, seed=4) * 2
    scores[0, 7] = scores[0].max()  # of equal ones each form takes which it likes first
    ids, weights = triton_routing.choose(scores, rule.routing, torch.float32)
    plain_ids, plain_weights = rule(scores)
    assert torch.equal(ids[1:], plain_ids[1:])
    assert torch.equal(ids[0].sort().values, plain_ids[0].sort().values)
    assert error(weights[1:], plain_weights[1:]) < 2e-6


def test_a_bad_score_chooses_experts_that_are_there() -> None:
    scores = drawn(3, 20)
    scores[0, :] = math.nan
    scores[1, :] = -math.inf
    scores[2, 4] = math.inf
    ids, _ = triton_routing.choose(scores, TopThenSoftmax(4).routing, torch.float32)
    assert ids.min() >= 0 and ids.max() < 20 and ids[2, 0] == 4
    assert all(len(set(row)) == 4 for row in ids.tolist())


@pytest.mark.skipif(not HAS_GPU, reason="graphs are a card's")
def test_a_graph_holds_experts_and_gives_their_bits() -> None:
    experts = made(num_experts=8, width=256, inner=128, dtype=torch.bfloat16)
    assert experts.stays_on_device
    x = drawn(12, 256, dtype=torch.bfloat16)
    ids, weights = routed(12, 8, 2)
    given = (x.clone(), ids.clone(), weights.bfloat16())
    with torch.inference_mode():
        experts.mix(*given)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = experts.mix(*given)
        for turn in (0, 5):
            given[0].copy_(x.roll(turn, 0))
            given[1].copy_(ids.roll(turn, 0))
            graph.replay()
            assert torch.equal(out, experts.mix(*given))
            exact = plain.mix_experts(*given, experts)
            assert error(out, exact) < ROUNDING[torch.bfloat16]
