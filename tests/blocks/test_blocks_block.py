"""A layer as a sum: what attention and feed-forward add, in which order, and to which token."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

import tiny
from cutaway.core.step import Step

IDS = [5, 9, 200, 31, 9]


def tapped() -> dict[tuple[str, int | None], Tensor]:
    """Every tap of a run, in the order in which they came."""
    _, model = tiny.random_model()
    seen: dict[tuple[str, int | None], Tensor] = {}

    def watch(name: str, value: Tensor, layer: int | None) -> None:
        seen[name, layer] = value

    with torch.no_grad():
        model(replace(Step.without_cache([IDS]), sink=watch))
    return seen


def test_j7_a_layer_gives_what_came_and_what_its_two_parts_add() -> None:
    seen = tapped()
    before = seen["embedding.hidden", None]
    for layer in range(2):
        added = seen["blocks.attention.update", layer] + seen["blocks.mlp.update", layer]
        assert torch.allclose(seen["blocks.hidden", layer], before + added, atol=1e-12)
        before = seen["blocks.hidden", layer]


def test_j11_every_layer_attends_adds_feeds_forward_and_adds() -> None:
    parts = ("blocks.attention.update", "blocks.mlp.product", "blocks.mlp.update", "blocks.hidden")
    order = [place for place in tapped() if place[0] in parts]
    assert order == [(name, layer) for layer in range(2) for name in parts]


def test_j1_feed_forward_takes_each_token_alone() -> None:
    _, model = tiny.random_model()
    mlp, step = model.blocks[0].mlp, Step.without_cache([IDS])
    hidden = torch.randn(5, 48, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        whole, mixed = mlp(hidden, step, 0), mlp(hidden[[4, 0, 3, 1, 2]], step, 0)
        assert torch.allclose(mixed, whole[[4, 0, 3, 1, 2]], atol=1e-12)
        gate, up = mlp.sides(hidden)
        product = gate * torch.sigmoid(gate) * up
        assert torch.allclose(whole, mlp.down(product), atol=1e-12)


def test_k1_the_last_vector_becomes_a_logit_per_entry() -> None:
    _, model = tiny.random_model()
    with torch.no_grad():
        logits = model(Step.without_cache([IDS]))
    assert logits.shape == (5, 320)
    shares = torch.softmax(logits, dim=-1)
    assert torch.allclose(shares.sum(-1), torch.ones(5).double(), atol=1e-12)
    assert (shares > 0).all()
