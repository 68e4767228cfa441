"""Attention's arithmetic against the formula in NumPy, and its sum against the engine's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from cutaway.replay.look import Look
from cutaway.views import arithmetic
from cutaway.views.arithmetic import Arithmetic
from cutaway.views.parts.head_layers import MIXED, QUERY
from cutaway.views.parts.projection import EMBEDDING, HIDDEN
from cutaway.views.parts.replay_values import Wanted
from opened_models import NATIVE, engine_of_case, llama_engine, look_at, payload
from subjects import engine_of, recomputed

PROMPT = tuple(range(60, 80))


@pytest.fixture(scope="module")
def look() -> Look:
    return look_at(engine_of(), PROMPT)


def test_every_column_is_that_of_the_formula(look: Look) -> None:
    inner = recomputed(engine_of(), look.subject.answer.token_ids[:-1])
    shown: Arithmetic = payload(look, "arithmetic", layer=1, head=2, position=7)
    scores, weights = inner.scores[1][2, 7], inner.weights[1][2, 7]
    values = inner.value[1][:, 1]  # heads 2 and 3 share the second
    assert (shown.num_heads, shown.num_groups) == (4, 2), "of the model"
    assert shown.group == 1 and shown.softmax_scale == pytest.approx(12**-0.5)
    np.testing.assert_allclose(shown.scaled, scores, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(shown.products, scores * 12**0.5, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(shown.masked[:8], scores[:8], rtol=1e-5, atol=1e-6)
    assert np.isneginf(shown.masked[8:]).all() and len(shown.masked) == len(scores)
    np.testing.assert_allclose(shown.weights, weights, atol=1e-6)
    norms = weights * np.linalg.norm(values, axis=-1)
    np.testing.assert_allclose(shown.contributions, norms, rtol=1e-4, atol=1e-6)
    for name in ("query", "mixed"):
        expected = getattr(inner, name)[1][7, 2]
        np.testing.assert_allclose(getattr(shown, name), expected, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(shown.key, inner.key[1][7, 1], rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(shown.value, values[7], rtol=1e-4, atol=1e-6)
    assert shown.entropy == pytest.approx(-(weights[:8] * np.log2(weights[:8])).sum(), rel=1e-5)
    raised = np.exp(scores[:8] * 12**0.5)
    raised /= raised.sum()
    assert shown.entropy_unscaled == pytest.approx(-(raised * np.log2(raised)).sum(), rel=1e-5)
    assert shown.is_equal and shown.difference < 1e-6


def test_a_query_is_its_input_times_a_matrix_and_one_number_is_multiplied_out(look: Look) -> None:
    for layer in (0, 1):
        shown: Arithmetic = payload(look, "arithmetic", layer=layer, head=2, position=7)
        told = shown.projection
        assert told is not None and told.width == look.subject.facts.width
        half = len(told.output) // 2
        pairs = [each.reshape(2, half) for each in (told.output, shown.query)]
        lengths = [np.hypot(each[0], each[1]) for each in pairs]
        np.testing.assert_allclose(lengths[0], lengths[1], rtol=1e-4, err_msg="it only turns")
        assert told.value == pytest.approx(float(told.output[told.entry]), rel=1e-6)
        assert abs(told.value) == pytest.approx(np.abs(told.output).max(), rel=1e-6)
        terms = told.inputs.astype(float) * told.weights
        assert terms.sum() + told.rest + told.bias == pytest.approx(told.value, rel=1e-5)
        assert (np.diff(np.abs(terms)) <= 1e-7).all(), "those that count most, in order"


def test_of_too_many_keys_the_heaviest_are_told(
    look: Look, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole: Arithmetic = payload(look, "arithmetic", layer=1, head=2, position=17, top=3)
    monkeypatch.setattr(arithmetic, "MOST_KEYS", 6)
    shown: Arithmetic = payload(look, "arithmetic", layer=1, head=2, position=17, top=3)
    heaviest = sorted(np.argsort(-whole.weights[:18])[:6].tolist())
    later = list(range(18, len(whole.keys)))
    assert shown.keys.tolist() == [*heaviest, *later] and shown.num_left_out == 12
    for name in ("products", "scaled", "masked", "weights", "contributions"):
        np.testing.assert_array_equal(getattr(shown, name), getattr(whole, name)[shown.keys])
    assert shown.weight_left_out == pytest.approx(1 - shown.weights.sum(), abs=1e-6)
    assert shown.difference == whole.difference, "the sum is over all keys"
    assert shown.draw().text() == whole.draw().text()


def test_the_picture_has_the_five_columns_and_says_what_it_leaves_out(look: Look) -> None:
    shown: Arithmetic = payload(look, "arithmetic", layer=1, head=2, position=7, top=3)
    lines = shown.draw().text().splitlines()
    assert max(map(len, lines)) <= 100
    assert lines[0] == "layer 1, head 2: the query of C at 7 meets the keys of group 1"
    assert "scaled: times 0.2887 = 1/sqrt(12); softmax: shares that add up to 1" in lines
    header = next(line for line in lines if line.startswith("at  token"))
    assert header.split()[2:] == ["q.k", "scaled", "masked", "softmax", "|weight", "v|"]
    masked = next(line for line in lines if " -inf " in line).split()
    assert masked[0] == "8" and masked[4:6] == ["-inf", "0.0000"]
    assert any(line.startswith("5 other keys not shown; weight 0.") for line in lines)
    assert "it equals what the engine computed" in lines[-1]


def taken_once(look: Look, layers: frozenset[int]) -> None:
    """One replay for many looks."""
    taps, end = frozenset({QUERY, MIXED, EMBEDDING, HIDDEN}), look.subject.num_positions
    lower = frozenset(max(0, layer - 1) for layer in layers)
    look.take(Wanted(taps=taps, layers=layers | lower, end=end, stored=layers))


CASES = ["llama-flags", "mistral", "gemma2-flags", "gemma4-flags", "gpt-oss", "qwen3-next"]
CASES += ["deepseek-v2", "deepseek-v3-flags"]


@pytest.mark.parametrize("case", CASES)
def test_the_sum_is_the_engines_whatever_the_attention(tmp_path: Path, case: str) -> None:
    """Shared heads, windows, caps, sinks, gates, keys as values, latent rows; pages of 8 bits."""
    for kv_dtype in ("float32", "int8"):
        engine = engine_of_case(tmp_path, case, dtype="float32", kv_dtype=kv_dtype)
        look = look_at(engine, range(40))
        layers = {3} if case == "qwen3-next" else range(engine.model.facts.num_layers)
        taken_once(look, frozenset(layers))
        for layer in layers:
            for head in (0, 3):
                for position in (0, 17, 44):
                    at = {"layer": layer, "head": head, "position": position}
                    shown: Arithmetic = payload(look, "arithmetic", **at)
                    assert shown.is_equal, (kv_dtype, at, shown.difference)
                    assert shown.weights.sum() + shown.sink == pytest.approx(1, abs=1e-5)
                    assert max(map(len, shown.draw().text().splitlines())) <= 100


@NATIVE
@pytest.mark.parametrize("kv_dtype", ["float32", "float16", "int8"])
def test_the_sum_is_that_of_native_kernels(tmp_path: Path, kv_dtype: str) -> None:
    look = look_at(llama_engine(tmp_path, kv_dtype=kv_dtype), range(40))
    taken_once(look, frozenset({0, 1}))
    for layer in (0, 1):
        for head in (0, 3):
            for position in (0, 17, 44):  # of the first chunk, of a later one, and decoded
                at = {"layer": layer, "head": head, "position": position}
                shown: Arithmetic = payload(look, "arithmetic", **at)
                assert shown.is_equal, (at, shown.difference)
                assert shown.difference < 1e-5
