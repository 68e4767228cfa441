"""A cache in another dtype than the activations: answers still depend on the request alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from cutaway.core.errors import ConfigError
from cutaway.core.work import cache_bytes_per_token
from cutaway.engine.build import num_pages, precision_of
from cutaway.engine.config import EngineConfig
from cutaway.engine.loading.loaded_model import LoadedModel
from engines import Answer, engine, loaded, run, workload

KV_DTYPES = [torch.bfloat16, torch.int8, torch.float8_e4m3fn]


def with_cache(dtype: torch.dtype) -> LoadedModel:
    return replace(loaded(), cache_dtype=dtype)


def essences(answers: dict[tuple[str, int], Answer]) -> dict:
    return {key: answer.essence for key, answer in answers.items()}


@pytest.mark.parametrize("dtype", KV_DTYPES, ids=str)
def test_batched_chunked_and_cached_equal_alone(dtype: torch.dtype) -> None:
    model, requests = with_cache(dtype), workload(4)
    alone: dict[tuple[str, int], Answer] = {}
    for request in requests:
        alone |= run(engine(model, prefix_cache=False), [request])
    expected = essences(alone)
    assert essences(run(engine(model, prefix_cache=False, prefill_chunk=5), requests)) == expected
    target = engine(model)
    assert essences(run(target, requests)) == expected
    assert essences(run(target, requests)) == expected  # now out of the prefix index
    assert target.cache_stats.hit_tokens > 0


@pytest.mark.parametrize("dtype", KV_DTYPES, ids=str)
def test_scores_are_near_those_of_an_exact_cache(dtype: torch.dtype) -> None:
    """Eight bits move the log-probabilities of a prompt, and not by much."""
    request = replace(workload(1)[0], params=replace(workload(1)[0].params, prompt_logprobs=0))
    key = (request.request_id, 0)
    ours, exact = (run(engine(m), [request])[key] for m in (with_cache(dtype), loaded()))
    pairs = list(zip(ours.prompt_logprobs[1:], exact.prompt_logprobs[1:], strict=True))
    gaps = [abs(a.logprob - b.logprob) for a, b in pairs]
    # Three bits of mantissa move them most: 0.09 here.
    assert len(gaps) > 5 and 0 < max(gaps) < 0.3


def test_setting_names_the_dtype_of_the_cache_alone() -> None:
    cpu = torch.device("cpu")
    assert precision_of("float32", cpu, kv_dtype="int8").cache == torch.int8
    assert precision_of("float32", cpu, kv_dtype="int8").activations == torch.float32
    assert precision_of("bfloat16", cpu).cache == torch.bfloat16
    with pytest.raises(ConfigError, match='kv_dtype is "int7"; it must be one of auto, float32'):
        EngineConfig(kv_dtype="int7")


def test_memory_counts_the_scales(monkeypatch: pytest.MonkeyPatch) -> None:
    model = loaded()
    token = cache_bytes_per_token(model.facts, "int8")
    assert token == 2 * 2 * 2 * (12 + 4)  # layers, key and value, heads, numbers and a scale
    monkeypatch.setattr("cutaway.engine.memory.free_bytes", lambda _: 1000 * token)
    assert num_pages(with_cache(torch.int8), EngineConfig()) == 1 + 400 // 16
