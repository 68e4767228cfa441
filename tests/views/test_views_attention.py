"""Attention shown against weights computed in NumPy, and turning it on against leaving it off."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from cutaway.core.errors import RequestError
from cutaway.replay.look import Look
from cutaway.views import view_of
from cutaway.views.parts import head, head_grid
from cutaway.views.parts.head import Head
from cutaway.views.parts.head_grid import HeadGrid
from cutaway.views.parts.query import Query
from cutaway.views.parts.replay_values import Wanted
from opened_models import engine_of_case, look_at, payload
from subjects import Numbers, answered, engine_of, recomputed

PROMPT = (72, 105, 32, 72, 105, 33, 32, 72, 105, 32, 72, 105, 9, 9, 9, 7, 8)


@pytest.fixture(scope="module")
def look() -> Look:
    return look_at(engine_of(), PROMPT)


@pytest.fixture(scope="module")
def weights(look: Look) -> Numbers:
    """[L, H, T, T], from weights and ids alone."""
    return np.stack(recomputed(engine_of(), look.subject.answer.token_ids[:-1]).weights)


def test_rows_are_those_of_the_formula(look: Look, weights: Numbers) -> None:
    for layer, each in ((0, 3), (1, 0)):
        shown: Head = payload(look, "attention", layer=layer, head=each, position=12, top=4)
        np.testing.assert_allclose(shown.weights, weights[layer, each, :13, :13], atol=1e-6)
        assert shown.weights.shape == (13, 13) and shown.group == each // 2
        assert shown.tokens == tuple(look.subject.texts()[:13]) and shown.tiles is None
        order = np.argsort(-weights[layer, each, 12], kind="stable")[:4]
        assert shown.top_keys.tolist() == order.tolist()
        np.testing.assert_allclose(shown.top_weights, weights[layer, each, 12, order], rtol=1e-5)
        assert shown.hidden == pytest.approx(1 - shown.top_weights.sum(), abs=1e-5)
        assert not shown.before.any() and not shown.sink.any()


def test_the_picture_of_a_head_says_what_it_shows(look: Look, weights: Numbers) -> None:
    shown: Head = payload(look, "attention", layer=1, head=2, position=12, top=3)
    lines = shown.draw().text().splitlines()
    assert max(map(len, lines)) <= 100
    assert lines[0] == (
        "layer 1 of 0 to 1, head 2 of 0 to 3; keys and values of group 1, shared by 2 heads"
    )
    row = next(line for line in lines if line.startswith("  12 "))
    cells = row[14:]
    assert len(cells) == 2 * 13, "two columns a key, none to the right of the query"
    for key, cell in enumerate(cells[::2]):
        weight = weights[1, 2, 12, key]
        least = {"\u2588": 0.5, "\u2593": 0.2, "\u2592": 0.05, "\u2591": 0.01, "\u00b7": 0.0}[cell]
        assert least <= weight
    assert f"10 other tokens: {shown.hidden:.3f} together, not shown" in lines


def test_an_early_token_of_a_long_answer_costs_no_later_ones() -> None:
    look = look_at(engine_of(), range(3, 11), max_tokens=120)
    view, query = view_of("attention"), Query(layer=1, head=2, position=12)
    assert look.predict_cost(view, query).num_tokens <= 13 + engine_of().config.page_size
    shown: Head = payload(look, "attention", layer=1, head=2, position=12)
    assert shown.position == 12 and shown.weights.shape == (13, 13)


def test_a_long_text_is_told_by_a_window_and_tiles(
    look: Look, weights: Numbers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(head, "SQUARE", 8)
    monkeypatch.setattr(head, "TILES", 4)
    shown: Head = payload(look, "attention", layer=1, head=1, position=15)
    assert (shown.start, shown.weights.shape) == (8, (8, 8))
    np.testing.assert_allclose(shown.weights, weights[1, 1, 8:16, 8:16], atol=1e-6)
    np.testing.assert_allclose(shown.before, weights[1, 1, 8:16, :8].sum(-1), atol=1e-6)
    assert shown.tile_start == 0 and shown.tiles is not None and shown.tiles.dtype == np.uint8
    pooled = weights[1, 1, :16, :16].reshape(4, 4, 4, 4).max(axis=(1, 3))
    np.testing.assert_allclose(shown.tiles * shown.tile_scale, pooled, atol=shown.tile_scale)
    lines = shown.draw().text().splitlines()
    assert max(map(len, lines)) <= 100 and any("rows: who looks, 0 to 15" in x for x in lines)
    # Where all queries cost too much, the last ones: as many as make up the most weights.
    monkeypatch.setattr(head, "MOST_TILED", 16 * 12)
    few: Head = payload(look, "attention", layer=1, head=1, position=15)
    assert few.tile_start == 4 and few.tiles is not None
    pooled = weights[1, 1, 4:16, :16].reshape(4, 3, 4, 4).max(axis=(1, 3))
    np.testing.assert_allclose(few.tiles * few.tile_scale, pooled, atol=few.tile_scale)


def entropies(rows: Numbers) -> Numbers:
    return -(rows * np.log2(np.where(rows > 0, rows, 1))).sum(-1)


def test_statistics_are_means_over_queries(look: Look, weights: Numbers) -> None:
    shown: HeadGrid = payload(look, "attention", position=13)
    assert (shown.start, shown.end, shown.layers) == (1, 14, (0, 1))
    rows = weights[:, :, 1:14]
    at = np.arange(1, 14)
    np.testing.assert_allclose(shown.entropy, entropies(rows).mean(-1), rtol=1e-5)
    np.testing.assert_allclose(shown.first, rows[..., 0].mean(-1), rtol=1e-5)
    np.testing.assert_allclose(shown.previous, weights[:, :, at, at - 1].mean(-1), rtol=1e-5)
    np.testing.assert_allclose(shown.self, weights[:, :, at, at].mean(-1), rtol=1e-5)
    # By hand: of "Hi Hi! Hi Hi" and two tabs, where the same token last came, and one further.
    pairs = {3: 1, 4: 2, 6: 3, 7: 4, 8: 5, 9: 7, 10: 8, 11: 9}
    assert shown.num_repeated == len(pairs)
    keys = np.array(list(pairs.values()))
    expected = weights[:, :, list(pairs), keys].mean(-1)
    np.testing.assert_allclose(shown.induction, expected, rtol=1e-5)
    # "Hi Hi! Hi Hi\t\t": letters before the token before the last, without the very first one.
    words = [key for key in range(1, 12) if chr(PROMPT[key]).isalnum()]
    telling = weights[:, :, 13][..., words].max(-1)
    row = shown.telling
    assert row is not None
    assert (row.layer, row.head) == np.unravel_index(telling.argmax(), telling.shape)
    np.testing.assert_allclose(row.weights, weights[row.layer, row.head, 13, :14], atol=1e-6)
    assert row.start == 0 and row.tokens == tuple(look.subject.texts()[:14])
    assert payload(look, "attention", position=2).telling is None, "no word stands before it"
    assert not shown.sink.any() and shown.groups == (2, 2) and shown.windows == (None, None)


def test_the_row_of_a_long_text_has_its_latest_keys(
    look: Look, weights: Numbers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(head_grid, "ROW_KEYS", 6)
    shown: HeadGrid = payload(look, "attention", position=13)
    words = [key for key in range(8, 12) if chr(PROMPT[key]).isalnum()]
    telling = weights[:, :, 13][..., words].max(-1)
    row = shown.telling
    assert row is not None and (row.start, len(row.tokens)) == (8, 6)
    assert (row.layer, row.head) == np.unravel_index(telling.argmax(), telling.shape)
    np.testing.assert_allclose(row.weights, weights[row.layer, row.head, 13, 8:14], atol=1e-6)


def test_a_head_of_the_grid_needs_no_further_replay() -> None:
    fresh = look_at(engine_of(), PROMPT)
    payload(fresh, "attention", position=13)
    view = view_of("attention")
    assert fresh.predict_cost(view, Query(layer=1, head=2, position=13)).num_tokens == 0


def test_what_heads_add_is_their_part_of_the_output(look: Look) -> None:
    shown: HeadGrid = payload(look, "attention")
    engine = engine_of()
    inner = recomputed(engine, look.subject.answer.token_ids[:-1])
    count = look.subject.num_positions
    named = dict(engine.model.transformer.named_parameters())
    for layer in range(2):
        name = f"blocks.{layer}.attention.output.segments.0.weight"
        output = named[name].detach().numpy().reshape(48, 4, 12)
        added = np.einsum("thc,dhc->thd", inner.mixed[layer], output)
        np.testing.assert_allclose(added.sum(1), inner.attention[layer], atol=1e-9)
        expected = np.linalg.norm(added, axis=-1)[1:count].mean(0)
        np.testing.assert_allclose(shown.added[layer], expected, rtol=1e-5)


def test_the_grid_is_drawn_in_letters(look: Look, weights: Numbers) -> None:
    shown: HeadGrid = payload(look, "attention")
    lines = shown.draw().text().splitlines()
    assert max(map(len, lines)) <= 100 and sum(x.startswith("most ") for x in lines) == 4
    one: HeadGrid = payload(look, "attention", layer=1)
    assert one.layers == (1,)
    table = one.draw().text().splitlines()
    assert "layer 1: 4 heads, 2 groups of keys and values, seeing every earlier token" in table
    assert table[-2].split()[:3] == ["3", "1", f"{one.entropy[0, 3]:.2f}"]


def test_a_deep_model_is_looked_at_by_some_layers(
    look: Look, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(head_grid, "MOST_STORED", 2 * 2 * 12 * look.subject.num_positions)
    shown: HeadGrid = payload(look, "attention")
    assert shown.layers == (0,) and shown.entropy.shape == (1, 4)
    assert "not shown: 1 of 2 layers; --layer N shows one layer" in shown.draw().text()


def test_a_head_without_its_layer_is_refused(look: Look) -> None:
    with pytest.raises(RequestError, match="head is 2, of no layer; give layer, from 0 to 1"):
        payload(look, "attention", head=2)


def test_windows_and_sinks_are_told(tmp_path: Path) -> None:
    engine = engine_of_case(tmp_path, "gpt-oss", dtype="float32")
    look = look_at(engine, range(40))
    grid: HeadGrid = payload(look, "attention")
    assert 16 in grid.windows and None in grid.windows and bool((grid.sink > 0).all())
    layer = grid.windows.index(16)
    shown: Head = payload(look, "attention", layer=layer, head=1, position=39)
    assert shown.window == 16 and shown.reach == 15 * (layer + 1)
    assert not np.tril(shown.weights, -16).any() and not np.triu(shown.weights, 1).any()
    np.testing.assert_allclose(shown.weights.sum(-1) + shown.sink, 1, atol=1e-6)
    text = shown.draw().text()
    assert "each token sees 16 tokens, itself included" in text
    assert f"the head's sink, which has no value: {shown.sink[39]:.3f}" in text


def test_layers_that_keep_a_state_are_named(tmp_path: Path) -> None:
    engine = engine_of_case(tmp_path, "qwen3-next", dtype="float32")
    look = look_at(engine, range(20))
    grid: HeadGrid = payload(look, "attention")
    assert grid.layers == (3,) and grid.num_layers == 4
    with pytest.raises(RequestError, match=r"layer 1 keeps a state of fixed size.*keys are 3\."):
        payload(look, "attention", layer=1)


@pytest.mark.parametrize("case", ["llama", "gemma2", "gemma3-flags", "deepseek-v3"])
def test_j08_the_picture_shows_the_engines_numbers(tmp_path: Path, case: str) -> None:
    """With and without a cap on scores and on logits; and looking changes nothing."""
    engine = engine_of_case(tmp_path, case, dtype="float32")
    first = answered(engine, range(30), logprobs=3)
    look = Look(engine, first)
    layers = range(engine.model.facts.num_layers)
    for layer in layers:
        for each in range(4):
            shown: Head = payload(look, "attention", layer=layer, head=each)
            np.testing.assert_allclose(shown.weights.sum(-1), 1, atol=1e-6)
            assert not np.triu(shown.weights, 1).any(), "exactly 0 to the right"
    rows = look.take(Wanted(rows=frozenset(range(6)))).rows
    for index, token in enumerate(first.tokens):
        assert float(rows[index][token.token_id]) == pytest.approx(token.logit, abs=1e-5)
        assert float(torch.logsumexp(rows[index], 0)) == pytest.approx(token.logsumexp, abs=1e-5)
    again = answered(engine, range(30), logprobs=3)
    assert [t.token_id for t in again.tokens] == [t.token_id for t in first.tokens]
    # It finds its prompt in the cache: other shapes, whose last bit is promised to nobody here.
    logits = [t.logit for t in first.tokens]
    assert [t.logit for t in again.tokens] == pytest.approx(logits, abs=1e-5)
