"""Fields of a config.json replaced by the user: one shape in several builds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import tiny
from cutaway import LLM
from cutaway.core.errors import ConfigError
from cutaway.core.layout import FULL, Window
from cutaway.core.step import Step
from cutaway.engine.build import load_model
from cutaway.engine.config import EngineConfig
from cutaway.weights.find.find import Found

BASE = {**tiny.config(), "architectures": ["MistralForCausalLM"], "sliding_window": 32}


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(BASE), encoding="utf-8")
    return path


def opened(config: Path, *override: str) -> Any:
    settings = {"cache_tokens": 1024, "dtype": "float32"}
    return LLM(f"random:{config}", override=override, **settings).engine.model


def test_heads_layers_and_windows_are_levers_of_a_random_model(config: Path) -> None:
    plain = opened(config)
    assert (plain.facts.num_groups, plain.facts.num_layers) == (2, 2)
    multi_query = opened(config, "num_key_value_heads=1", "num_hidden_layers=3")
    assert (multi_query.facts.num_groups, multi_query.facts.num_layers) == (1, 3)
    sizes = [
        sum(spec.bytes_per_token("float32") for spec in model.facts.cache_specs)
        for model in (plain, multi_query)
    ]
    assert sizes[1] * 4 == sizes[0] * 3, "half the heads in half as many layers again"
    extents = {
        value: opened(config, f"sliding_window={value}").facts.cache_specs[0].extent
        for value in ("8", "null")
    }
    assert extents == {"8": Window(8), "null": FULL}


def test_positions_can_be_taken_away(config: Path) -> None:
    # One layer without positions sees a set: the order of what came before plays no part.
    still = opened(config, "rope_parameters.rope_type=none", "num_hidden_layers=1")
    turned = opened(config, "num_hidden_layers=1")

    def last(model: Any, *ids: int) -> torch.Tensor:
        with torch.no_grad():
            return model.transformer(Step.without_cache([list(ids)]))[-1]

    assert torch.allclose(last(still, 5, 9, 7, 31), last(still, 7, 5, 9, 31), atol=1e-5)
    assert not torch.allclose(last(turned, 5, 9, 7, 31), last(turned, 7, 5, 9, 31), atol=1e-2)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("sliding_window", 'override is "sliding_window"; it must be NAME=VALUE'),
        ("=3", 'override is "=3"; it must be NAME=VALUE'),
        ("slidng_window=3", "does not read; did you mean sliding_window?"),
        ("hidden_size.deep=3", "hidden_size is 48 and no mapping"),
    ],
)
def test_an_override_that_changes_nothing_is_refused(
    config: Path, entry: str, message: str
) -> None:
    with pytest.raises(ConfigError) as fault:
        opened(config, entry)
    assert message in str(fault.value)


def test_a_gguf_file_has_no_config_to_override(tmp_path: Path) -> None:
    found = Found(kind="gguf", path=tmp_path / "model.gguf", name="model")
    with pytest.raises(ConfigError, match="model is a GGUF file and has no"):
        load_model(found, EngineConfig(override=("sliding_window=3",)))
