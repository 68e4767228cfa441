"""Native routing and experts against the plain forms, and their bits in any company."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from native_cases import (
    INTEGER_KINDS,
    ISAS,
    KINDS,
    needs_native,
    packed,
    random,
    rounded,
    running,
)
from torch import Tensor

from cutaway.blocks.router import (
    CorrectedSigmoid,
    CorrectedSoftmax,
    ExpertGroups,
    GroupedSoftmaxThenTop,
    SoftmaxThenTop,
    TopThenSoftmax,
    WeighedSoftmax,
)
from cutaway.core.shards import cuts
from cutaway.kernels import native
from cutaway.kernels.gate import clamped_gate, gelu_gate, gelu_tanh_gate, relu_gate, silu_gate

pytestmark = needs_native

E, K, D, F = 8, 3, 64, 96


def grouped_sigmoid(is_renormalized: bool) -> CorrectedSigmoid:
    groups = ExpertGroups(num_groups=4, num_chosen=2, num_counted=2)
    rule = CorrectedSigmoid(
        16, num_chosen=K, groups=groups, is_renormalized=is_renormalized, multiplier=2.5
    )
    rule.correction.data = random(16, seed=5)
    return rule


def weighed() -> WeighedSoftmax:
    rule = WeighedSoftmax(16, num_chosen=K, multiplier=0.3)
    rule.factors.data = random(16, seed=6)
    return rule


def corrected_softmax() -> CorrectedSoftmax:
    rule = CorrectedSoftmax(16, num_chosen=K)
    rule.correction.data = 0.2 * random(1, 16, seed=7)
    return rule


SIGMOID, CORRECTED = grouped_sigmoid(True), corrected_softmax()
WEIGHED = weighed()
FOUR_GROUPS = native.GroupChoice(4, 2, 2)
TOP, SOFTMAX = native.RoutingRule.TOP_THEN_SOFTMAX, native.RoutingRule.SOFTMAX_THEN_TOP
RULES: dict[str, tuple[Callable[[Tensor], tuple[Tensor, Tensor]], native.Routing]] = {
    "softmax": (SoftmaxThenTop(K, False, 1.5), native.Routing(SOFTMAX, K, multiplier=1.5)),
    "renormalized": (SoftmaxThenTop(K, True), native.Routing(SOFTMAX, K, is_renormalized=True)),
    "weighed": (
        WEIGHED,
        native.Routing(
            SOFTMAX, K, factors=WEIGHED.factors.data, score_multiplier=0.3, is_renormalized=True
        ),
    ),
    "corrected softmax": (
        CORRECTED,
        native.Routing(
            *(SOFTMAX, K),
            correction=CORRECTED.correction.data[0],
            is_renormalized=True,
            least_sum=1e-12,
        ),
    ),
    "top first": (TopThenSoftmax(K), native.Routing(TOP, K)),
    "grouped softmax": (
        GroupedSoftmaxThenTop(K, ExpertGroups(4, 2, 1), 16.0),
        native.Routing(SOFTMAX, K, native.GroupChoice(4, 2, 1), multiplier=16.0),
    ),
    "sigmoid": (
        SIGMOID,
        native.Routing(
            native.RoutingRule.SIGMOID_THEN_TOP,
            K,
            FOUR_GROUPS,
            correction=SIGMOID.correction.data,
            multiplier=2.5,
            is_renormalized=True,
            least_sum=1e-20,
        ),
    ),
    "sigmoid as it is": (
        grouped_sigmoid(False),
        native.Routing(
            native.RoutingRule.SIGMOID_THEN_TOP,
            K,
            FOUR_GROUPS,
            correction=SIGMOID.correction.data,
            multiplier=2.5,
        ),
    ),
}


def routed(scores: Tensor, routing: native.Routing) -> tuple[Tensor, Tensor]:
    count = len(scores)
    ids = native.room(count, routing.num_chosen, dtype=torch.int64)
    weights = native.room(count, routing.num_chosen)
    operation = native.route(scores, routing, ids=ids, weights=weights)
    native.run(operation, native.NativeStep.of_rows(count))
    return ids, weights


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", RULES)
def test_a_route_is_that_of_the_plain_rule(name: str, isa: str) -> None:
    plain, routing = RULES[name]
    scores = 3 * random(200, 16)
    with running(isa, 2):
        ids, weights = routed(scores, routing)
    wanted_ids, wanted = plain(scores)
    assert torch.equal(ids, wanted_ids)
    torch.testing.assert_close(weights, wanted.detach(), rtol=2e-6, atol=1e-7)


@pytest.mark.parametrize("name", RULES)
def test_a_route_is_the_same_alone_and_under_any_instruction_set(name: str) -> None:
    _, routing = RULES[name]
    scores = 3 * random(37, 16)
    with running("portable"):
        ids, weights = routed(scores, routing)
    for row in (0, 17, 36):
        alone_ids, alone = routed(scores[row : row + 1].clone(), routing)
        assert torch.equal(alone_ids[0], ids[row]) and torch.equal(alone[0], weights[row])


@pytest.mark.parametrize("num_experts", [8, 60, 128, 512])
@pytest.mark.parametrize("num_chosen", [1, 2, 8])
def test_equal_scores_are_chosen_as_torch_chooses_them(num_experts: int, num_chosen: int) -> None:
    generator = torch.Generator().manual_seed(num_experts)
    scores = torch.randint(0, 4, (50, num_experts), generator=generator).float()
    ids, _ = routed(scores, native.Routing(TOP, num_chosen))
    assert torch.equal(ids, scores.topk(num_chosen, dim=-1).indices)


def test_scores_far_below_the_best_are_told_apart() -> None:
    scores = torch.tensor([[0.0, -300.0, -90.0, -200.0]])
    ids, weights = routed(scores, native.Routing(SOFTMAX, 3))
    assert ids.tolist() == [[0, 2, 3]] and weights[0, 0] == 1 and (weights[0, 1:] < 1e-18).all()


def stack(kind: native.Kind, rows: int, columns: int, seed: int) -> native.WeightStack:
    return native.WeightStack.of([packed(kind, rows, columns, seed + e) for e in range(E)])


def seen(x: Tensor, kind: native.Kind) -> Tensor:
    """Activations as a weight of this kind sees them, in float64."""
    return rounded(x) if kind.is_integer else x.double()


GATES: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], native.Activation | native.Clamp]] = {
    "silu": (silu_gate, native.Activation.SILU),
    "gelu_tanh": (gelu_tanh_gate, native.Activation.GELU_TANH),
    "gelu": (gelu_gate, native.Activation.GELU),
    "relu": (relu_gate, native.Activation.RELU),
    "clamped": (
        lambda gate, up: clamped_gate(gate, up, alpha=1.702, limit=2.0),
        native.Clamp(1.702, 2.0),
    ),
}


class Case:
    """Experts of one kind with random ids, weights and biases for some tokens."""

    def __init__(
        self,
        count: int,
        kind: native.Kind,
        *,
        gate: str = "silu",
        down_kind: native.Kind | None = None,
        inner: int = F,
        width: int = D,
        has_bias: bool = False,
        is_interleaved: bool = False,
    ) -> None:
        generator = torch.Generator().manual_seed(count)
        self.gate, activation = GATES[gate]
        self.x, self.residual = random(count, width, seed=1), random(count, width, seed=2)
        self.ids = torch.stack(
            [torch.randperm(E, generator=generator)[:K] for _ in range(count)]
        ).contiguous()
        self.weights = torch.rand(count, K, generator=generator)
        self.gate_up = stack(kind, 2 * inner, width, 100)
        self.down = stack(down_kind or kind, width, inner, 200)
        self.biases = (random(E, 2 * inner, seed=3), random(E, width, seed=4)) if has_bias else None
        self.norm = native.NormWeights(random(width, seed=5), 1e-5)
        self.is_interleaved, self.activation = is_interleaved, activation

    def run(self, rows: Tensor | None = None, *, has_norm: bool = False) -> Tensor:
        """Outputs of some of the tokens in one step, all of them at first."""
        rows = torch.arange(len(self.x)) if rows is None else rows
        out = torch.empty(len(rows), self.down.num_rows)
        operation = native.experts(
            self.x[rows].contiguous(),
            self.gate_up,
            self.down,
            ids=self.ids[rows].contiguous(),
            weights=self.weights[rows].contiguous(),
            out=out,
            norm=self.norm if has_norm else None,
            biases=self.biases,
            is_interleaved=self.is_interleaved,
            activation=self.activation,
            residual=self.residual[rows].contiguous(),
        )
        native.run(operation, native.NativeStep.of_rows(len(rows)))
        return out

    def wanted(self) -> Tensor:
        """The same of dense matrices in float64, with activations rounded where they are."""
        out = self.residual.double()
        for token in range(len(self.x)):
            for choice in range(K):
                expert = int(self.ids[token, choice])
                x = seen(self.x[token], self.gate_up.kind)
                joined = self.gate_up.matrix(expert).dense().double() @ x
                if self.biases:
                    joined = joined + self.biases[0][expert]
                half = len(joined) // 2
                gate, up = (
                    (joined[0::2], joined[1::2])
                    if self.is_interleaved
                    else (joined[:half], joined[half:])
                )
                inner = seen(self.gate(gate, up).float(), self.down.kind)
                result = self.down.matrix(expert).dense().double() @ inner
                if self.biases:
                    result = result + self.biases[1][expert]
                out[token] += result * self.weights[token, choice]
        return out


def assert_near(found: Tensor, wanted: Tensor, bound: float = 2e-3) -> None:
    """Within what a step of the int8 grid of some inner values may move."""
    error = (found.double() - wanted).abs().max() / wanted.abs().max()
    assert error < bound, error


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [1, 2, 40])
def test_experts_are_the_sum_of_dense_products(count: int, kind: native.Kind, isa: str) -> None:
    case = Case(count, kind)
    with running(isa, 2):
        assert_near(case.run(), case.wanted())


@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("is_interleaved", [False, True])
@pytest.mark.parametrize("count", [1, 9])
def test_gates_biases_and_both_orders_of_rows(gate: str, is_interleaved: bool, count: int) -> None:
    case = Case(count, native.Kind.Q8, gate=gate, has_bias=True, is_interleaved=is_interleaved)
    assert_near(case.run(), case.wanted())


@pytest.mark.parametrize("is_interleaved", [False, True])
@pytest.mark.parametrize(("inner", "width"), [(50, 37), (8, 8), (33, 130)])
@pytest.mark.parametrize("count", [1, 23])
def test_float_experts_of_any_size(
    inner: int, width: int, count: int, is_interleaved: bool
) -> None:
    case = Case(
        count,
        native.Kind.F32,
        inner=inner,
        width=width,
        has_bias=True,
        is_interleaved=is_interleaved,
    )
    assert_near(case.run(), case.wanted(), 1e-5)


def test_float_and_integer_matrices_in_one_layer() -> None:
    case = Case(5, native.Kind.F16, down_kind=native.Kind.Q4_AFFINE)
    assert_near(case.run(), case.wanted())


@pytest.mark.parametrize("is_interleaved", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [1, 40])
def test_parts_of_every_expert_make_the_whole_bit_for_bit(
    count: int, kind: native.Kind, is_interleaved: bool
) -> None:
    """As ranks have them: some units of each expert, then some rows of each result."""
    case = Case(count, kind, gate="clamped", has_bias=True, is_interleaved=is_interleaved)
    case.residual.zero_()
    assert case.biases is not None
    products: list[Tensor] = []
    for units in cuts(F, 5):
        own = torch.arange(units.start, units.stop)
        rows = torch.cat([own, own + F])
        if is_interleaved:
            rows = torch.arange(2 * units.start, 2 * units.stop)
        out = torch.empty(count, K * len(units))
        operation = native.expert_units(
            *(case.x, taken(case.gate_up, rows)),
            ids=case.ids,
            out=out,
            norm=case.norm,
            bias=case.biases[0][:, rows].contiguous(),
            is_interleaved=is_interleaved,
            activation=case.activation,
        )
        native.run(operation, native.NativeStep.of_rows(count))
        products.append(out.view(count, K, -1))
    joined = torch.cat(products, dim=-1).view(count, -1)
    results: list[Tensor] = []
    for part in cuts(D, 3):
        rows = torch.arange(part.start, part.stop)
        out = torch.empty(count, len(rows))
        operation = native.expert_sums(
            *(joined, taken(case.down, rows)),
            ids=case.ids,
            weights=case.weights,
            out=out,
            bias=case.biases[1][:, rows].contiguous(),
        )
        native.run(operation, native.NativeStep.of_rows(count))
        results.append(out)
    assert torch.equal(torch.cat(results, dim=-1), case.run(has_norm=True))


def taken(whole: native.WeightStack, rows: Tensor) -> native.WeightStack:
    """Some rows of every matrix."""
    return native.WeightStack.of([whole.matrix(index).take(rows) for index in range(E)])


@pytest.mark.parametrize("kind", KINDS)
def test_a_token_has_the_same_bits_in_any_company(kind: native.Kind) -> None:
    case = Case(120, kind, has_bias=True)
    with running("portable"):
        wanted = case.run(has_norm=True)
    for isa in (each for each in ISAS if each != "neon"):
        for threads in (1, 2, 5):
            try:
                with running(isa, threads):
                    assert torch.equal(case.run(has_norm=True), wanted), (isa, threads)
                    for rows in (range(1), range(7, 9), range(40, 57)):
                        chosen = torch.tensor(rows)
                        assert torch.equal(case.run(chosen, has_norm=True), wanted[chosen])
            except pytest.skip.Exception:
                continue


def test_norm_before_experts_is_the_norm_alone() -> None:
    case = Case(7, native.Kind.Q4)
    wanted = case.run(has_norm=True)
    normed = torch.empty_like(case.x)
    operation = native.norm(case.x, case.norm.weight, case.norm.epsilon, out=normed)
    native.run(operation, native.NativeStep.of_rows(7))
    case.x = normed
    assert torch.equal(case.run(), wanted)


@pytest.mark.parametrize("count", [1, 6])
def test_ids_that_repeat_or_lie_outside_are_followed_nowhere(count: int) -> None:
    case = Case(count, native.Kind.Q8)
    case.ids[:] = 2
    assert_near(case.run(), case.wanted())
    case.ids[:] = torch.tensor([-1, E, 1 << 60])
    found = case.run()
    case.ids[:] = 0
    assert torch.equal(found, case.run())


def test_what_is_no_layer_of_experts_is_refused() -> None:
    case = Case(2, native.Kind.Q8)
    case.down = stack(native.Kind.Q8, D, 2 * F, 0)
    with pytest.raises(AssertionError, match="gate and up"):
        case.run()
    with pytest.raises(AssertionError, match="one shape and kind"):
        native.WeightStack.of([packed(kind, 32, 32) for kind in INTEGER_KINDS])
    with pytest.raises(AssertionError, match="int64"):
        native.route(
            random(2, 8), native.Routing(TOP, 2), ids=torch.zeros(2, 2), weights=torch.zeros(2, 2)
        )
