"""Perplexity over the position: each figure recomputed by the same model, configured as scaled."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import tiny
from cutaway import LLM
from cutaway.bench import long_context
from cutaway.compare.variant import SCALINGS, lengthen
from cutaway.core.errors import ConfigError
from cutaway.core.layout import Window
from cutaway.core.step import Step

TRAINED, LENGTH = 32, 80  # ten stretches of 8, four of them within
TEXT = [(7 * at * at + 3 * at) % 250 + 1 for at in range(LENGTH)]


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("context") / "config.json"
    values = tiny.config(max_position_embeddings=TRAINED, architectures=["MistralForCausalLM"])
    path.write_text(json.dumps({**values, "sliding_window": None}), encoding="utf-8")
    return path


def opened(config: Path, *override: str) -> Any:
    return LLM(f"random:{config}", dtype="float64", cache_tokens=256, override=override).engine


def losses(model: Any, token_ids: list[int]) -> list[float]:
    """By one forward without a cache."""
    with torch.no_grad():
        logits = model.transformer(Step.without_cache([token_ids]))
    rows = logits[:-1].double().log_softmax(-1)
    told = rows.gather(1, torch.tensor(token_ids[1:])[:, None])[:, 0]
    return [0.0, *(-told).tolist()]


def stretches(each: list[float]) -> list[float]:
    means = []
    for start in range(0, LENGTH, 8):
        counted = [each[at] for at in range(start, start + 8) if at % TRAINED]
        means.append(math.exp(sum(counted) / len(counted)))
    return means


def test_every_reading_is_that_of_a_model_configured_so(config: Path) -> None:
    engine = opened(config)
    said: list[str] = []
    names = tuple(SCALINGS)
    report = long_context.run(engine.model, engine.config, TEXT, scalings=names, say=said.append)
    assert (report.trained, report.length, report.factor) == (TRAINED, LENGTH, 2.5)
    assert report.starts == tuple(range(0, LENGTH, 8))
    assert len(said) == 2 + len(names)
    found = {each.name: each.perplexities for each in report.readings}
    pieces = [TEXT[at : at + TRAINED] for at in range(0, LENGTH, TRAINED)]
    anew = [loss for piece in pieces for loss in losses(engine.model, piece)]
    assert found.pop("anew") == pytest.approx(stretches(anew), rel=1e-5)
    assert found.pop("unscaled") == pytest.approx(stretches(losses(engine.model, TEXT)), rel=1e-5)
    extra = {
        "yarn": [f"original_max_position_embeddings={TRAINED}"],
        "llama3": [
            "low_freq_factor=1",
            "high_freq_factor=4",
            f"original_max_position_embeddings={TRAINED}",
        ],
    }
    assert found.keys() == set(names)
    for name, figures in found.items():
        rope = [f"rope_type={name}", "factor=2.5", "rope_theta=10000", *extra.get(name, [])]
        scaled = opened(config, *(f"rope_parameters.{each}" for each in rope)).model
        assert figures == pytest.approx(stretches(losses(scaled, TEXT)), rel=1e-5), name
    assert len({figures[0] for figures in found.values()}) == len(names), "each does something"


def test_a_layer_with_a_window_turns_as_before(config: Path) -> None:
    model = opened(config, "sliding_window=16").model
    longer = lengthen(model, LENGTH, scaling="yarn")
    assert all(isinstance(spec.extent, Window) for spec in longer.facts.cache_specs)
    assert longer.transformer.frequencies == model.transformer.frequencies
    assert (model.facts.max_length, longer.facts.max_length) == (TRAINED, LENGTH)


@pytest.mark.parametrize(
    ("num_tokens", "scalings", "message"),
    [
        (39, (), "tokens is 39; it must be at least 40: "),
        (LENGTH, ("yarn", "rope"), 'scaling holds "rope"; it must be of linear, dynamic, yarn'),
    ],
)
def test_what_cannot_be_measured_is_refused(
    config: Path, num_tokens: int, scalings: tuple[str, ...], message: str
) -> None:
    engine = opened(config)
    with pytest.raises(ConfigError) as fault:
        long_context.run(engine.model, engine.config, TEXT[:num_tokens], scalings=scalings)
    assert message in str(fault.value)


def test_other_positions_are_refused(config: Path) -> None:
    scaled = opened(config, "rope_parameters.rope_type=linear", "rope_parameters.factor=2").model
    with pytest.raises(ConfigError, match=r"scaled already \(Linear\)"):
        lengthen(scaled, LENGTH, scaling="yarn")
    none = opened(config, "rope_parameters.rope_type=none").model
    with pytest.raises(ConfigError, match="has no rotary positions"):
        lengthen(none, LENGTH)


def test_a_text_beyond_the_memory_is_refused(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = opened(config)
    monkeypatch.setattr(long_context, "num_pages", lambda *_: 3)
    small = replace(engine.config, page_size=8)
    with pytest.raises(ConfigError, match="tokens is 32; the memory of this machine keeps 16"):
        long_context.run(engine.model, small, TEXT, scalings=())
