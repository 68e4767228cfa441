"""Positions shown against the rotary formula in NumPy; shifted scores; models that do not turn."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from cutaway.views.positions import Positions
from opened_models import engine_of_case, look_at, payload
from subjects import engine_of, recomputed, rotated

PROMPT = tuple(range(60, 90))


def test_angles_wavelengths_and_scores_are_those_of_the_formula() -> None:
    look = look_at(engine_of(), PROMPT)
    inner = recomputed(engine_of(), look.subject.answer.token_ids[:-1])
    shown: Positions = payload(look, "positions", layer=1, head=3, position=20)
    inverse = 10_000.0 ** (-np.arange(6) / 6)
    assert shown.kind == "rotary" and (shown.scaling, shown.num_slow) == ("Plain", 3)
    np.testing.assert_allclose(shown.inverse, inverse, rtol=1e-6)
    np.testing.assert_allclose(shown.angles, 20 * inverse % (2 * np.pi), rtol=1e-5)
    np.testing.assert_allclose(shown.wavelengths, 2 * np.pi / inverse, rtol=1e-6)
    np.testing.assert_allclose(shown.stretch, 1)
    # The key that counts most, the first and the last left out, and its score as it stands.
    key = 1 + int(inner.weights[1][3, 20, 1:20].argmax())
    assert shown.key_position == key
    assert shown.num_heads == 4 and shown.num_groups == 2
    assert shown.score == pytest.approx(inner.scores[1][3, 20, key], rel=1e-5, abs=1e-6)
    np.testing.assert_allclose(shown.shifted, shown.score, rtol=1e-5, atol=1e-6)
    # At every distance: what the formula gives for the key as it was before it turned.
    half = np.exp(-1j * key * inverse)
    stored = inner.key[1][key, 1]
    bare = (stored[:6] + 1j * stored[6:]) * half
    unturned = np.concatenate((bare.real, bare.imag))
    at = rotated(np.broadcast_to(unturned, (21, 1, 12)))[:, 0]
    expected = [inner.query[1][20, 3] @ at[20 - back] / 12**0.5 for back in range(21)]
    np.testing.assert_allclose(shown.by_distance[:21], expected, rtol=1e-4, atol=1e-5)
    assert shown.by_distance[20 - key] == pytest.approx(shown.score, rel=1e-5, abs=1e-6)


def test_the_picture_says_that_only_the_distance_counts() -> None:
    look = look_at(engine_of(), PROMPT)
    shown: Positions = payload(look, "positions", layer=1, position=20)
    lines = shown.draw().text().splitlines()
    assert max(map(len, lines)) <= 100
    assert lines[0].startswith("rotary: nothing is added; each query and key of layer 1 turns in 6")
    assert "3 of 6 pairs make no full turn within the model's 256 positions" in lines
    assert f"  both 10,000 positions further on: {shown.shifted[2]:.4f}" in lines


@pytest.mark.parametrize(
    ("case", "scaling", "slowed"),
    [("llama-flags", "Llama3", 8), ("qwen2-flags", "Yarn", 4), ("gemma3-flags", "Linear", 8)],
)
def test_scaling_slows_the_slowest_pair(
    tmp_path: Path, case: str, scaling: str, slowed: float
) -> None:
    look = look_at(engine_of_case(tmp_path, case, dtype="float32"), range(30))
    shown: Positions = payload(look, "positions", layer=1)
    assert shown.scaling == scaling and f"factor {slowed}" in shown.settings
    assert shown.stretch[-1] == pytest.approx(slowed, rel=1e-4) and shown.stretch[0] <= slowed
    np.testing.assert_allclose(shown.shifted, shown.score, rtol=1e-3, atol=1e-4)
    assert f"frequencies: {scaling}, size" in shown.draw().text()


def test_heads_that_turn_backwards_have_waves_of_the_same_lengths(tmp_path: Path) -> None:
    look = look_at(engine_of_case(tmp_path, "nanochat", dtype="float32"), range(30))
    shown: Positions = payload(look, "positions", layer=1)
    inverse = 10_000.0 ** (-np.arange(6) / 6)
    np.testing.assert_allclose(shown.inverse, -inverse, rtol=1e-6)
    np.testing.assert_allclose(shown.wavelengths, 2 * np.pi / inverse, rtol=1e-6)
    np.testing.assert_allclose(shown.stretch, 1)
    np.testing.assert_allclose(shown.shifted, shown.score, rtol=1e-3, atol=1e-4)
    assert "1.00x" in shown.draw().text()


@pytest.mark.parametrize("case", ["gemma4", "deepseek-v3", "deepseek-v2-flags"])
def test_scores_shift_in_heads_of_which_a_part_turns(tmp_path: Path, case: str) -> None:
    look = look_at(engine_of_case(tmp_path, case, dtype="float32"), range(30))
    for layer in (0, 2):
        shown: Positions = payload(look, "positions", layer=layer)
        np.testing.assert_allclose(shown.shifted, shown.score, rtol=1e-3, atol=1e-4)
        assert np.ptp(shown.by_distance) > 1e-4
        assert max(map(len, shown.draw().text().splitlines())) <= 100


def test_learned_positions_are_told_as_added(tmp_path: Path) -> None:
    engine = engine_of_case(tmp_path, "gpt2", dtype="float32")
    look = look_at(engine, range(30))
    shown: Positions = payload(look, "positions", position=7)
    named = dict(engine.model.transformer.named_parameters())
    row = named["embedding.positions.table.weight"][7].detach().numpy()
    assert shown.kind == "learned" and not len(shown.inverse)
    assert shown.added_norm == pytest.approx(float(np.linalg.norm(row)), rel=1e-5)
    assert "positions are learned: a vector of norm" in shown.draw().text()
