"""Feed-forward units against gate, up and product in NumPy, and the tokens that they push."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cutaway.core.errors import RequestError
from cutaway.views.experts import ExpertRoutes
from cutaway.views.feedforward import FeedForwardUnits
from cutaway.views.parts.replay_values import Wanted
from opened_models import NATIVE, engine_of_case, llama_engine, look_at, payload
from subjects import engine_of, recomputed, rms_norm, weights


def test_units_are_those_of_the_formula() -> None:
    engine = engine_of()
    look = look_at(engine, range(20))
    inner, stored = recomputed(engine, look.subject.answer.token_ids[:-1]), weights(engine)
    for layer, position in ((0, 3), (1, 22)):
        shown: FeedForwardUnits = payload(
            look, "feedforward", layer=layer, position=position, top=7
        )
        product = inner.product[layer][position]
        down = stored[f"blocks.{layer}.mlp.down.segments.0.weight"]
        added = np.abs(product) * np.linalg.norm(down, axis=0)
        assert shown.units.tolist() == np.argsort(-added, kind="stable")[:7].tolist()
        units = shown.units
        for name in ("gate", "up", "product"):
            expected = getattr(inner, name)[layer][position][units]
            np.testing.assert_allclose(getattr(shown, name), expected, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(shown.added, added[units], rtol=1e-4)
        np.testing.assert_allclose(shown.columns, down.T[units, :8], rtol=1e-5)
        assert shown.near_zero == (np.abs(product) < np.abs(product).max() / 100).mean()
        squares = np.sort(product**2)[::-1].cumsum()
        assert shown.half == int(np.searchsorted(squares, squares[-1] / 2)) + 1
        directions = np.sign(product[units])[:, None] * down.T[units]
        normed = rms_norm(directions, stored["unembedding.norm.weight"])
        logits = normed @ stored["unembedding.table.weight"].T
        assert shown.pushed_ids.tolist() == np.argsort(-logits, axis=-1)[:, :5].tolist()
        assert shown.difference < 1e-6 and (shown.kind, shown.activation) == ("gated", "silu")


def test_the_picture_names_units_and_what_they_push() -> None:
    look = look_at(engine_of(), range(20))
    shown: FeedForwardUnits = payload(look, "feedforward", layer=1, position=5, top=4)
    lines = shown.draw().text().splitlines()
    assert max(map(len, lines)) <= 100
    assert lines[0].endswith("at 5, alone, through 96 units (2.00 times the width)")
    row = next(line for line in lines if line.startswith(f"{shown.units[0]:>4}"))
    assert row.split()[1:4] == [f"{each[0]:.2f}" for each in (shown.gate, shown.up, shown.product)]
    assert lines[-1] == "not shown: 92 other units"


@NATIVE
def test_native_products_are_told_as_served(tmp_path: Path) -> None:
    look = look_at(llama_engine(tmp_path), range(40))
    shown: FeedForwardUnits = payload(look, "feedforward", layer=1)
    assert shown.difference < 1e-4, "random weights are packed as they are"
    assert "recomputed" not in shown.draw().text()
    rounded = replace(shown, difference=0.003).draw().text()
    assert "products so made differ by 0.3% of the largest" in rounded


def test_a_plain_layer_has_no_gate(tmp_path: Path) -> None:
    look = look_at(engine_of_case(tmp_path, "gpt2-flags", dtype="float32"), range(20))
    shown: FeedForwardUnits = payload(look, "feedforward", layer=2)
    assert (shown.kind, shown.activation, shown.inner) == ("plain", "relu", 100)
    np.testing.assert_allclose(shown.product, np.maximum(shown.up, 0), rtol=1e-4, atol=1e-5)
    assert not shown.gate.any() and shown.difference < 1e-4
    assert "product = relu(up)" in shown.draw().text()


@pytest.mark.parametrize("case", ["olmo2", "granite", "cohere", "glm4", "phi3", "lfm2", "nanochat"])
def test_wherever_norms_and_factors_stand_parts_add_up_to_the_stream(
    tmp_path: Path, case: str
) -> None:
    look = look_at(engine_of_case(tmp_path, case, dtype="float32"), range(20))
    for layer in (0, 1):
        shown: FeedForwardUnits = payload(look, "feedforward", layer=layer)
        assert shown.difference < 1e-4, "the product is recomputed of what the layer read"
    names = [f"blocks.{name}" for name in ("hidden", "attention.update", "mlp.update")]
    layers = frozenset({0, 1})
    taken = look.take(Wanted(taps=frozenset(names), layers=layers, start=7, end=8))
    hidden, attention, mlp = (taken.value(name, 1) for name in names)
    before = taken.value(names[0], 0)
    np.testing.assert_allclose(before + attention + mlp, hidden, rtol=1e-4, atol=1e-5)
    for view in ("residual", "lens", "attention", "pages", "cost"):
        places = {"layer": 1} if view == "attention" else {}
        assert payload(look, view, **places).draw().text()


CASES = ["mixtral", "deepseek-v3", "gpt-oss-flags", "qwen3-moe-flags"]


@pytest.mark.parametrize("case", CASES)
def test_routes_are_those_of_the_router_and_experts_add_up(tmp_path: Path, case: str) -> None:
    """The weighted sum of told experts is what the layer added."""
    engine = engine_of_case(tmp_path, case, dtype="float32")
    look = look_at(engine, range(30))
    count = look.subject.num_positions
    routes: ExpertRoutes = payload(look, "experts")
    assert routes.ids.shape == (count, len(routes.layers), routes.num_chosen)
    assert routes.load.sum(axis=1).tolist() == [count * routes.num_chosen] * len(routes.layers)
    for m in range(len(routes.layers)):
        counts = np.bincount(routes.ids[:, m].ravel(), minlength=routes.num_experts)
        assert routes.load[m].tolist() == counts.tolist()
    layer, position = routes.layers[-1], 11
    ids, shares = routes.ids[position, -1].tolist(), routes.weights[position, -1].tolist()
    block = engine.model.transformer.blocks[layer]
    total = np.zeros(engine.model.facts.width)
    for expert, share in zip(ids, shares, strict=True):
        at = {"layer": layer, "position": position, "expert": expert, "top": 80}
        shown: FeedForwardUnits = payload(look, "feedforward", **at)
        assert (shown.expert, shown.num_experts) == (expert, routes.num_experts)
        down = block.mlp.experts.down.weight[expert].detach().numpy()
        result = down[:, shown.units] @ shown.product
        if block.mlp.experts.biases:
            result = result + block.mlp.experts.biases[1][expert].detach().numpy()
        total += share * result
        assert shown.inner == len(shown.units)
    if not routes.has_shared:
        taps, end = frozenset({"blocks.mlp.update"}), position + 1
        taken = look.take(Wanted(taps=taps, layers=frozenset({layer}), start=position, end=end))
        update = taken.value("blocks.mlp.update", layer)[0].numpy()
        np.testing.assert_allclose(total, update, rtol=1e-3, atol=1e-4)
    best: FeedForwardUnits = payload(look, "feedforward", layer=layer, position=position)
    assert best.expert == ids[0]
    with pytest.raises(RequestError, match=r"expert is 99; layer \d has experts 0 to"):
        payload(look, "feedforward", layer=layer, expert=99)
    for picture in (routes, best, payload(look, "experts", layer=layer)):
        lines = picture.draw().text().splitlines()
        assert max(map(len, lines)) <= 100
    assert f"{layer}: {ids[0]} (" in payload(look, "experts", position=position).draw().text()


def test_a_dense_model_says_that_it_has_no_experts() -> None:
    look = look_at(engine_of(), range(5))
    shown: ExpertRoutes = payload(look, "experts")
    text = shown.draw().text()
    assert text == "no layer of 2 has experts: each token passes every parameter"
    assert shown.layers == () and shown.num_experts == 0
