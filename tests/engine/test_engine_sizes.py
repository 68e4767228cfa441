"""Sizes of steps that nobody gave follow from the device."""

from __future__ import annotations

import pickle

import pytest

from cutaway.core.errors import ConfigError
from cutaway.engine.config import EngineConfig
from engines import engine, loaded


def sizes(config: EngineConfig) -> tuple[int, int, int]:
    return config.max_sequences, config.max_tokens_per_step, config.prefill_chunk


def test_a_gpu_takes_more_at_once() -> None:
    assert sizes(EngineConfig().on("cpu")) == (64, 2048, 512)
    assert sizes(EngineConfig().on("cuda")) == (256, 16384, 8192)
    assert sizes(engine(loaded(), prefill_chunk=16).config) == (64, 2048, 16)


def test_what_is_given_stays_and_the_rest_fits_it() -> None:
    given = EngineConfig(max_sequences=7, max_tokens_per_step=9, prefill_chunk=3)
    assert given.on("cuda") is given
    assert sizes(EngineConfig(max_tokens_per_step=100).on("cuda")) == (100, 100, 8192)
    assert sizes(EngineConfig(max_sequences=20_000).on("cuda")) == (20_000, 20_000, 8192)


def test_nothing_given_survives_a_pipe_and_a_none() -> None:
    sent = pickle.loads(pickle.dumps(EngineConfig.of({"max_sequences": None})))
    assert sizes(sent.on("cuda")) == (256, 16384, 8192)


@pytest.mark.parametrize("name", ["max_sequences", "max_tokens_per_step", "prefill_chunk"])
def test_zero_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} is 0; it must be at least 1"):
        EngineConfig(**{name: 0})
