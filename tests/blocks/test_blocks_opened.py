"""Attention opened: every stage against the layer itself, and positions that only differ."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from cutaway.blocks.attention.grouped import GroupedAttention
from cutaway.blocks.attention.latent import LatentAttention
from cutaway.blocks.attention.opened import Openable, attention_weights, move_heads, of_head
from cutaway.blocks.positions import Plain, Yarn, angles
from cutaway.core.layout import Window
from cutaway.core.step import Step

HEADS, GROUPS, SIZE, WIDTH, COUNT = 4, 2, 6, 10, 11
SIZES = {"num_heads": HEADS, "num_groups": GROUPS, "head_size": SIZE}
TURNS = Plain(4, 100.0)
STRETCHED = Yarn(SIZE, 100.0, factor=4.0, trained_length=32, attention_factor=1.3)


def grouped(**changes: object) -> GroupedAttention:
    return GroupedAttention(WIDTH, **{**SIZES, "frequencies": TURNS, **changes})


def latent(pairs: str = "neighbours") -> LatentAttention:
    sizes = {"num_heads": HEADS, "rank": 8, "plain_size": 5, "rotary_size": 4, "value_size": 7}
    return LatentAttention(
        WIDTH, **sizes, query_rank=None, softmax_scale=0.3, frequencies=TURNS, pairs=pairs
    )


MODULES = {
    "plain": lambda: grouped(),
    "capped": lambda: grouped(cap=0.8, softmax_scale=0.9),
    "windowed": lambda: grouped(extent=Window(3, sinks=2)),
    "with sinks": lambda: grouped(has_sinks=True, has_output_bias=True),
    "gated": lambda: grouped(has_gate=True, num_groups=1),
    "stretched": lambda: grouped(frequencies=STRETCHED),
    "latent": latent,
    "latent halves": lambda: latent("halves"),
}
PARTS = pytest.mark.parametrize("name", MODULES)


@torch.no_grad()
def run(name: str) -> tuple[Openable, dict[str, Tensor], Tensor]:
    """A layer with drawn weights, its taps over one sequence, and its update."""
    module = MODULES[name]().double()
    generator = torch.Generator().manual_seed(3)
    for parameter in module.parameters():
        parameter.copy_(torch.randn(parameter.shape, generator=generator).double() * 0.7)
    taps: dict[str, Tensor] = {}

    def sink(name: str, value: Tensor, layer: int | None) -> None:
        taps[name.removeprefix("blocks.attention.")] = value

    step = Step.without_cache([[0] * COUNT], sink=sink)
    hidden = torch.randn(COUNT, WIDTH, generator=generator).double()
    frequencies = module.frequencies
    assert frequencies is not None
    rotation = angles(frequencies, step.positions, step.declared_lengths, torch.float64)
    return module, taps, module(hidden, rotation, step, 0)


@PARTS
@torch.no_grad()
def test_weights_are_those_with_which_the_layer_mixes(name: str) -> None:
    attention, taps, update = run(name)
    keys, values = attention.entries(taps)
    places = torch.arange(COUNT)
    opened = attention_weights(attention, taps["query"], keys, positions=places)
    torch.testing.assert_close(opened.mix(values), taps["mixed"])
    assert not opened.weights.masked_fill(opened.visible[:, None], 0).any(), "0 where masked"
    assert not opened.visible.triu(1).any() and opened.visible.diagonal().all()
    torch.testing.assert_close(
        opened.weights.sum(-1) + opened.sink, torch.ones(COUNT, HEADS).double()
    )
    assert bool((opened.sink > 0).any()) == (name == "with sinks")
    for head in range(HEADS):
        rows = places[4:6]
        one = attention_weights(attention, taps["query"][4:6], keys, positions=rows, head=head)
        torch.testing.assert_close(one.weights[:, 0], opened.weights[4:6, head])
        torch.testing.assert_close(one.products[:, 0], opened.products[4:6, head])
        torch.testing.assert_close(
            one.mix(of_head(attention, values, head))[:, 0], taps["mixed"][4:6, head]
        )
    mixed = taps["mixed"] * taps["gate"] if "gate" in taps else taps["mixed"]
    biases = attention.output.biases
    added = attention.updates(mixed).sum(dim=1) + (0.0 if biases is None else biases[0])
    torch.testing.assert_close(added, update)


@torch.no_grad()
def test_stages_are_those_of_the_formula() -> None:
    attention, taps, _ = run("capped")
    keys, _ = attention.entries(taps)
    row = attention_weights(attention, taps["query"][3:4], keys, positions=torch.tensor([3]))
    query, key = taps["query"][3, 2].tolist(), taps["key"][:, 1].tolist()  # heads 2, 3: group 1
    products = [sum(a * b for a, b in zip(query, each, strict=True)) for each in key]
    scaled = [0.8 * math.tanh(each * 0.9 / 0.8) for each in products]
    raised = [math.exp(each) for each in scaled[:4]]
    weights = [each / sum(raised) for each in raised] + [0.0] * (COUNT - 4)
    for stage, expected in (("products", products), ("scaled", scaled), ("weights", weights)):
        assert getattr(row, stage)[0, 2].tolist() == pytest.approx(expected)
    assert row.visible[0].tolist() == [True] * 4 + [False] * (COUNT - 4)


@PARTS
@torch.no_grad()
def test_scores_depend_on_the_distance_alone(name: str) -> None:
    attention, taps, _ = run(name)
    keys, _ = attention.entries(taps)
    places = torch.arange(COUNT)
    shift = torch.full((COUNT,), 1234)
    query = move_heads(attention, taps["query"], by=shift, declared_length=COUNT)
    key = move_heads(attention, keys, by=shift, declared_length=COUNT)
    before = attention_weights(attention, taps["query"], keys, positions=places).products
    after = attention_weights(attention, query, key, positions=places).products
    torch.testing.assert_close(after, before, rtol=1e-9, atol=1e-9)
    alone = attention_weights(attention, query, keys, positions=places).products
    assert not torch.allclose(alone, before), "one of the two moved is another distance"


@torch.no_grad()
def test_a_moved_key_is_the_key_of_that_position() -> None:
    attention, taps, _ = run("stretched")
    places = torch.arange(COUNT)
    first = move_heads(attention, taps["key"], by=-places, declared_length=COUNT)
    again = move_heads(attention, first, by=places, declared_length=COUNT)
    torch.testing.assert_close(again, taps["key"])
    torch.testing.assert_close(first[0], taps["key"][0])
    assert not torch.allclose(first[1:], taps["key"][1:])
    bare = grouped(frequencies=None)
    assert move_heads(bare, first, by=places, declared_length=COUNT) is first
