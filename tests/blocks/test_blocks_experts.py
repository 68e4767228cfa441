"""Experts: routers by hand and against transformers, products in any company, taps, gradients."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from cutaway.blocks.mlp import GatedMLP
from cutaway.blocks.moe import Experts, MixtureOfExperts
from cutaway.blocks.router import (
    CorrectedSigmoid,
    ExpertGroups,
    GroupedSoftmaxThenTop,
    Router,
    Rule,
    SoftmaxThenTop,
    TopThenSoftmax,
    WeighedSoftmax,
)
from cutaway.core.step import Step
from cutaway.kernels.experts import TILE, grouped_linear, sort_by_expert, tiled_linear

SCORES = torch.tensor([[2.0, 1.0, 0.0, -1.0]])  # softmax 0.6439, 0.2369, 0.0871, 0.0321


def mixture(
    rule: Rule | None = None,
    *,
    num_experts: int = 6,
    width: int = 20,
    inner: int = 12,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    **settings: Any,
) -> MixtureOfExperts:
    rule = rule or SoftmaxThenTop(2, is_renormalized=True)
    experts = Experts(num_experts, width, inner, **settings)
    module = MixtureOfExperts(Router(width, num_experts, rule), experts, GatedMLP(width, 8))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.4)
    return module.to(dtype)


def tokens(count: int, width: int = 20, *, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(count, width, generator=torch.Generator().manual_seed(9)).to(dtype)


def step(count: int, sink: Any = None) -> Step:
    return Step.without_cache([[0] * count], sink=sink)


def test_softmax_then_top_by_hand() -> None:
    ids, weights = SoftmaxThenTop(2, is_renormalized=False)(SCORES)
    assert ids.tolist() == [[0, 1]]
    assert weights[0].tolist() == pytest.approx([0.6439, 0.2369], abs=1e-4)
    _, weights = SoftmaxThenTop(2, is_renormalized=True, multiplier=3.0)(SCORES)
    assert weights[0].tolist() == pytest.approx([3 * 0.73106, 3 * 0.26894], abs=1e-4)


def test_top_then_softmax_is_the_renormalized_softmax() -> None:
    scores = torch.randn(50, 8, generator=torch.Generator().manual_seed(1))
    ids, weights = TopThenSoftmax(3)(scores)
    same_ids, same = SoftmaxThenTop(3, is_renormalized=True)(scores)
    assert torch.equal(ids, same_ids)
    assert torch.allclose(weights, same, atol=1e-6)


def test_factors_weigh_experts_and_choose_none() -> None:
    rule = WeighedSoftmax(4, num_chosen=2, multiplier=0.5)
    with torch.no_grad():
        rule.factors.copy_(torch.tensor([1.0, 2.0, 90.0, 90.0]))
    ids, weights = rule(2 * SCORES)
    assert ids.tolist() == [[0, 1]]
    assert weights[0].tolist() == pytest.approx([0.73106, 2 * 0.26894], abs=1e-4)


def test_groups_keep_the_experts_of_the_best_ones() -> None:
    scores = torch.tensor([[0.9, 0.0, 0.5, 0.5, 0.6, 0.1]])
    assert ExpertGroups(3, 1, num_counted=1).allow(scores).tolist() == [[True] * 2 + [False] * 4]
    assert ExpertGroups(3, 1, num_counted=2).allow(scores).tolist() == [
        [False, False, True, True, False, False]
    ]


def test_a_correction_changes_the_choice_and_not_the_weights() -> None:
    rule = CorrectedSigmoid(
        4, num_chosen=2, groups=ExpertGroups(1, 1, 2), is_renormalized=False, multiplier=2.0
    )
    with torch.no_grad():
        rule.correction.copy_(torch.tensor([-1.0, 0.0, 0.0, 1.0]))
    ids, weights = rule(SCORES)
    assert ids.tolist() == [[3, 1]]
    sigmoids = SCORES.sigmoid()[0]
    assert weights[0].tolist() == pytest.approx([2 * sigmoids[3].item(), 2 * sigmoids[1].item()])


def _dense(ids: Tensor, weights: Tensor, num_experts: int) -> Tensor:
    return torch.zeros(len(ids), num_experts).scatter(1, ids, weights.float())


@pytest.mark.parametrize("method", ["greedy", "group_limited_greedy"])
def test_grouped_softmax_equals_transformers(method: str) -> None:
    reference = pytest.importorskip("transformers.models.deepseek_v2.modeling_deepseek_v2")
    config = SimpleNamespace(
        num_experts_per_tok=3,
        num_experts=12,
        hidden_size=20,
        routed_scaling_factor=1.7,
        topk_method=method,
        n_group=4,
        topk_group=2,
    )
    theirs = reference.DeepseekV2TopkRouter(config)
    rule = (
        GroupedSoftmaxThenTop(3, ExpertGroups(4, 2, 1), 1.7)
        if method == "group_limited_greedy"
        else SoftmaxThenTop(3, is_renormalized=False, multiplier=1.7)
    )
    _compare(Router(20, 12, rule), theirs)


@pytest.mark.parametrize("is_renormalized", [True, False])
def test_corrected_sigmoid_equals_transformers(is_renormalized: bool) -> None:
    reference = pytest.importorskip("transformers.models.deepseek_v3.modeling_deepseek_v3")
    config = SimpleNamespace(
        num_experts_per_tok=3,
        num_local_experts=12,
        hidden_size=20,
        routed_scaling_factor=2.5,
        n_group=4,
        topk_group=2,
        norm_topk_prob=is_renormalized,
    )
    theirs = reference.DeepseekV3TopkRouter(config)
    correction = torch.randn(12, generator=torch.Generator().manual_seed(5)) * 0.3
    theirs.e_score_correction_bias.copy_(correction)
    rule = CorrectedSigmoid(
        12,
        num_chosen=3,
        groups=ExpertGroups(4, 2, 2),
        is_renormalized=is_renormalized,
        multiplier=2.5,
    )
    with torch.no_grad():
        rule.correction.copy_(correction)
    _compare(Router(20, 12, rule), theirs)


@torch.no_grad()
def _compare(ours: Router, theirs: Any) -> None:
    weight = torch.randn(12, 20, generator=torch.Generator().manual_seed(2))
    ours.scores.weight.copy_(weight)
    theirs.weight.copy_(weight)
    hidden = tokens(200)
    _, weights, ids = theirs(hidden)
    found = ours(hidden)
    assert torch.allclose(_dense(*found, 12), _dense(ids, weights, 12), atol=1e-6)


@torch.no_grad()
def test_the_sum_over_experts_equals_one_token_at_a_time() -> None:
    module = mixture(dtype=torch.float64, has_bias=True)
    hidden = tokens(40, dtype=torch.float64)
    expected = torch.zeros_like(hidden)
    ids, weights = module.router(hidden)
    assert module.experts.biases is not None
    for token, (row, chosen, shares) in enumerate(zip(hidden, ids, weights, strict=True)):
        for expert, share in zip(chosen, shares, strict=True):
            joined = module.experts.gate_up.weight[expert] @ row  # type: ignore[index]
            gate, up = (joined + module.experts.biases[0][expert]).chunk(2)
            down = module.experts.down.weight[expert]  # type: ignore[index]
            result = down @ (functional.silu(gate) * up) + module.experts.biases[1][expert]
            expected[token] += share * result
    assert module.shared is not None
    expected += module.shared(hidden, step(40), 0)
    assert torch.allclose(module(hidden, step(40), 0), expected, atol=1e-12)


def test_pairs_are_sorted_by_expert_and_found_again() -> None:
    ids = torch.tensor([[2, 0], [1, 2], [2, 1]])
    chosen = sort_by_expert(ids, 4)
    assert chosen.counts == (1, 2, 3, 0)
    assert chosen.rows.tolist() == [0, 1, 2, 0, 1, 2]
    assert ids.flatten().sort(stable=True).values[chosen.places].tolist() == [2, 0, 1, 2, 2, 1]


def test_only_matrices_of_chosen_experts_are_asked_for() -> None:
    asked: list[int] = []

    def matrix_of(expert: int) -> Tensor:
        asked.append(expert)
        return torch.full((3, 20), float(expert))

    grouped_linear(tokens(5), matrix_of, (0, 2, 0, 3, 0))
    assert asked == [1, 3]


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.parametrize(("columns", "rows"), [(48, 96), (100, 33), (576, 1536), (1000, 8)])
@torch.no_grad()
def test_a_row_has_the_same_bits_in_any_company(threads: int, columns: int, rows: int) -> None:
    generator = torch.Generator().manual_seed(3)
    weight = torch.randn(rows, columns, generator=generator)
    x = torch.randn(60, columns, generator=generator)
    alone = torch.cat([tiled_linear(x[i : i + 1], weight) for i in range(60)])
    for start, stop in ((0, 60), (0, 7), (3, 20), (1, 1 + TILE), (5, 59), (0, 2)):
        assert torch.equal(tiled_linear(x[start:stop], weight), alone[start:stop])


@torch.no_grad()
def test_a_token_has_the_same_bits_in_any_company(threads: int) -> None:
    module = mixture(num_experts=5, width=64, inner=48)
    module.shared = None  # a dense layer: its rows are not multiplied in tiles
    hidden = tokens(70, 64)
    alone = torch.cat([module(hidden[i : i + 1], step(1), 0) for i in range(70)])
    for start, stop in ((0, 70), (10, 13), (33, 64), (1, 69)):
        together = module(hidden[start:stop], step(stop - start), 0)
        assert torch.equal(together, alone[start:stop])
    mixed = torch.randperm(70, generator=torch.Generator().manual_seed(1))
    assert torch.equal(module(hidden[mixed], step(70), 0), alone[mixed])


@torch.no_grad()
def test_not_a_number_stays_with_its_token() -> None:
    module, hidden = mixture(), tokens(12)
    whole = module(hidden, step(12), 0)
    hidden[4] = torch.nan
    spoilt = module(hidden, step(12), 0)
    assert spoilt[4].isnan().all()
    others = [i for i in range(12) if i != 4]
    assert torch.allclose(spoilt[others], whole[others], atol=1e-6)


@torch.no_grad()
def test_taps_tell_who_went_where_and_may_change_it() -> None:
    module, hidden = mixture(), tokens(12)
    seen: dict[str, Tensor] = {}

    def watch(name: str, value: Tensor, layer: int | None) -> None:
        seen[name] = value

    plain = module(hidden, step(12, watch), 3)
    assert seen["blocks.experts.ids"].shape == seen["blocks.experts.weights"].shape == (12, 2)
    counts = seen["blocks.experts.counts"]
    assert counts.sum() == 24
    assert torch.equal(counts, seen["blocks.experts.ids"].flatten().bincount(minlength=6))

    def steer(name: str, value: Tensor, layer: int | None) -> Tensor | None:
        return torch.zeros_like(value) if name == "blocks.experts.ids" else watch(name, value, 0)

    steered = module(hidden, step(12, steer), 3)
    assert seen["blocks.experts.counts"].tolist() == [24, 0, 0, 0, 0, 0]
    assert not torch.allclose(plain, steered)


def test_gradients_equal_finite_differences() -> None:
    module = mixture(num_experts=3, width=6, inner=4, dtype=torch.float64, has_bias=True)
    names, values = zip(*module.named_parameters(), strict=True)
    hidden = tokens(5, 6, dtype=torch.float64)

    def forward(x: Tensor, *parameters: Tensor) -> Tensor:
        state = dict(zip(names, parameters, strict=True))
        return torch.func.functional_call(module, state, (x, step(5), 0))

    assert torch.autograd.gradcheck(forward, (hidden.requires_grad_(), *values), fast_mode=True)
