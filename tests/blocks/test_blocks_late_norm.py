"""Norms that a layer leaves to the product behind them: every number stays what it was."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import tiny
from cutaway.blocks.attention.grouped import GroupedAttention
from cutaway.blocks.linear import Linear
from cutaway.blocks.mlp import GatedMLP
from cutaway.core.step import LayerCache, Numbers, ShapePlan, Sink, Step
from cutaway.kernels import integers
from cutaway.kernels.gate import Gate
from cutaway.kernels.heads import HeadPlaces
from cutaway.kernels.linear import LowRankPairs
from cutaway.kernels.norm.late import LateNorm, norm_later
from cutaway.quantize.dense import DenseWeight
from cutaway.quantize.rounding import round_matrix
from cutaway.quantize.schemes import Scheme


def leave_norms(monkeypatch: pytest.MonkeyPatch) -> list[LateNorm]:
    """Every sum of one token is left to its reader, as on a GPU. Returns: what was left."""
    left: list[LateNorm] = []

    def later(hidden: Tensor, update: Tensor, weight: Tensor, epsilon: float, **named: Any) -> Any:
        if len(hidden) > 1:
            return None
        room = torch.full_like(hidden, torch.nan)
        left.append(LateNorm(hidden, update, room, weight, epsilon, named["kind"]))
        return left[-1]

    monkeypatch.setattr("cutaway.blocks.norm.norm_later", later)
    return left


def take_along(monkeypatch: pytest.MonkeyPatch) -> list[Gate | None]:
    """Dense weights take norms and gates along, by the parts. Returns: what gates were taken."""
    taken: list[Gate | None] = []

    def multiply(self: DenseWeight, x: LateNorm, gate: Gate | None) -> Tensor:
        taken.append(gate)
        rows = self.multiply(x.take())
        return rows if gate is None else gate(*rows.chunk(2, dim=-1))

    monkeypatch.setattr(DenseWeight, "multiply_normed", multiply)
    return taken


ARCHITECTURES: dict[str, dict[str, Any]] = {
    "llama": {},
    "experts": {
        **{"architectures": ["MixtralForCausalLM"], "model_type": "mixtral"},
        **{"num_local_experts": 4, "num_experts_per_tok": 2},
    },
}


@pytest.mark.parametrize("joins", [True, False])
@pytest.mark.parametrize("name", ARCHITECTURES)
@torch.no_grad()
def test_a_token_whose_norms_are_left_is_the_same(
    name: str, joins: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, model = tiny.random_model(tiny.config(**ARCHITECTURES[name]))
    if joins:
        model.join_segments()
    step, streams = Step.without_cache([[5]]), Streams(frozenset({0}))
    exact, many = model(step), Step.without_cache([[5, 6, 7]])
    exact_many = model(many)
    left, taken = leave_norms(monkeypatch), take_along(monkeypatch)
    assert torch.equal(model(step), exact) and len(left) == 3
    gates = 2 if name == "llama" and joins else 0
    assert len(taken) == (gates + 1 if joins else 0), "those of segments side by side are not taken"
    assert sum(gate is not None for gate in taken) == gates
    assert torch.equal(model(many), exact_many)
    assert torch.equal(model(replace(step, streams=streams)), exact)
    assert torch.isfinite(streams.seen[0]).all(), "a stream is told when it is there"
    seen: list[Tensor] = []
    watched = replace(step, sink=lambda name, value, layer: seen.append(value.clone()))
    assert torch.equal(model(watched), exact)
    assert all(torch.isfinite(value).all() for value in seen)


class Streams:
    def __init__(self, layers: frozenset[int]) -> None:
        self.layers, self.seen = layers, dict[int, Tensor]()

    def __call__(self, stream: Tensor, layer: int) -> None:
        self.seen[layer] = stream.clone()


@torch.no_grad()
def test_what_stands_between_norm_and_product_keeps_them_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    taken = take_along(monkeypatch)
    x = torch.randn(1, 8, generator=torch.Generator().manual_seed(0))
    late = LateNorm(x, x, torch.empty_like(x), torch.ones(8), 1e-5, "rounded")
    adapters = torch.zeros(1, dtype=torch.int64)

    def drawn(*rows: int, **named: Any) -> Linear:
        linear = Linear(8, rows, **named)
        for number, each in enumerate(linear.segments):
            torch.nn.init.normal_(each.weight, generator=torch.Generator().manual_seed(number))
        return linear

    biased, parted, plain = drawn(4, has_bias=True), drawn(4, 4), drawn(4)
    for linear in (biased, parted):
        assert torch.equal(linear(late), linear(late.take()))
    assert not taken
    assert torch.equal(plain(late, adapters), plain(late.take())) and len(taken) == 1
    plain.pairs = Adding()
    assert torch.equal(plain(late), plain(late.take())), "no row of the step has an adapter"
    assert len(taken) == 2
    assert torch.equal(plain(late, adapters), plain(late.take()) + 1) and len(taken) == 2


class Adding(LowRankPairs):
    """In the place of adapters: 1 more everywhere."""

    def __init__(self) -> None:
        pass

    def add_to(self, out: Tensor, x: Tensor, adapters: Tensor) -> Tensor:
        return out + 1


def test_norms_are_left_on_a_gpu_alone() -> None:
    x = torch.ones(1, 8, dtype=torch.bfloat16)
    assert norm_later(x, x, x[0], 1e-5, kind="rounded") is None
    assert GroupedAttention.takes_norm and GatedMLP.takes_norm


@torch.no_grad()
def test_a_product_may_put_its_heads_in_their_places(monkeypatch: pytest.MonkeyPatch) -> None:
    _, model = tiny.random_model()
    model.join_segments()

    def decoded(sink: Sink | None = None) -> list[Tensor]:
        """Logits of a second token, and what pages hold then."""
        drawn = torch.Generator().manual_seed(1)
        fields = [
            {name: torch.randn(3, 4, 2, 12, generator=drawn).double() for name in ("key", "value")}
            for _ in range(2)
        ]
        caches = tuple(LayerCache(each, 0, 4) for each in fields)
        plan, tables = ShapePlan((1,), (2,)), [[[1]]]
        numbers = Numbers([7], [1], [9], [0], plan, tables, [[5]])
        logits = model(Step.of(numbers, caches, device=torch.device("cpu"), sink=sink))
        return [logits, *(page for each in fields for page in each.values())]

    exact = decoded()
    left, placed = leave_norms(monkeypatch), list[HeadPlaces]()
    gates = take_along(monkeypatch)
    along = DenseWeight.multiply_normed

    def multiply(self: DenseWeight, x: LateNorm, after: Gate | HeadPlaces | None) -> Tensor | None:
        if not isinstance(after, HeadPlaces):
            return along(self, x, after)
        placed.append(after)
        return after.place(self.multiply(x.take()).view(1, -1, 12))

    monkeypatch.setattr(DenseWeight, "multiply_normed", multiply)
    assert all(map(torch.equal, decoded(), exact)) and not placed, "a CPU does it apart"
    monkeypatch.setattr("cutaway.blocks.attention.grouped.are_placed", lambda *_: True)
    assert all(map(torch.equal, decoded(), exact))
    assert len(placed) == 1 and len(left) == 6 and gates, "the first layer's norm is not late"
    assert all(map(torch.equal, decoded(lambda name, value, layer: None), exact))
    assert len(placed) == 1, "who looks at heads has them made apart"


@torch.no_grad()
def test_serving_names_the_matrix_behind_attention_s_own(monkeypatch: pytest.MonkeyPatch) -> None:
    scheme = Scheme("integers", 8, group_size=4)
    _, model = tiny.random_model()
    for module in model.modules():
        if isinstance(module, Linear):
            kept = [round_matrix(each.dense(), scheme).keep(None) for each in module.segments]
            module.segments = torch.nn.ModuleList(kept)
    model.join_segments()
    exact, product = model(Step.without_cache([[5]])), integers.multiply
    behind: list[Tensor | None] = []

    def multiply(*given: Any, following: Tensor | None, **named: Any) -> Tensor:
        behind.append(following)
        return product(*given, **named)

    monkeypatch.setattr(integers, "multiply", multiply)
    names = list(model.state_dict())
    assert torch.equal(model(Step.without_cache([[5]])), exact)
    named = [each.data_ptr() for each in behind if each is not None]
    wanted = [block.mlp.gate_up.segments[0].quants.data_ptr() for block in model.blocks]
    assert named == wanted and len(behind) == 4 * len(wanted)
    assert not any("behind" in name for name in names), "it is no part of a model's own tensors"
