"""Architectures with windows, caps, head norms and sandwiches on the native kernels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import architectures
from cutaway.core.request import Request, SamplingParams
from cutaway.engine.build import load_model
from cutaway.engine.config import EngineConfig
from cutaway.engine.engine import Engine
from cutaway.kernels import capture, native
from cutaway.kernels.native import program
from cutaway.weights.find.find import find
from engines import engine, run

pytest.importorskip("transformers")
pytestmark = pytest.mark.skipif(
    not capture.is_available(), reason="the native kernels are not built: run `make native`"
)

# What each adds: a window; biases and YaRN; head norms; two rotary tables, a sandwich, GELU.
CASES = ("mistral", "qwen2", "qwen3", "gemma3")
PROMPTS = [[(7 * i + 3 * n) % 256 for i in range(n)] for n in (5, 70, 33)]


@pytest.fixture(scope="module", params=CASES)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    architectures.save(architectures.reference(request.param), path)
    return path


def opened(folder: Path, dtype: str, kv_dtype: str = "auto", **settings: Any) -> Engine:
    config = EngineConfig(dtype=dtype, kv_dtype=kv_dtype, device="cpu")
    target = engine(load_model(find(str(folder)), config), **settings)
    assert (target.runner._native is not None) == (dtype == "auto")
    return target


def requests() -> list[Request]:
    params = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True, prompt_logprobs=0)
    return [
        Request(request_id=f"r{i}", prompt_token_ids=tuple(p), params=params)
        for i, p in enumerate(PROMPTS)
    ]


def scores(answers: dict) -> dict:
    return {key: (each.token_ids, each.prompt_logprobs) for key, each in answers.items()}


@pytest.mark.parametrize("kv_dtype", ["auto", "int8"])
def test_native_answers_are_the_same_bits_in_any_company(folder: Path, kv_dtype: str) -> None:
    alone: dict = {}
    for request in requests():
        alone |= scores(run(opened(folder, "auto", kv_dtype), [request]))
    for settings in ({}, {"prefill_chunk": 7}):
        assert scores(run(opened(folder, "auto", kv_dtype, **settings), requests())) == alone


@pytest.mark.parametrize(("kv_dtype", "most"), [("auto", 2e-3), ("float32", 1e-4), ("int8", 0.1)])
def test_native_is_near_the_reference(folder: Path, kv_dtype: str, most: float) -> None:
    """Of prompts, so that no other token is ever drawn; float16 rounds keys to 11 bits."""
    ours = run(opened(folder, "auto", kv_dtype), requests())
    theirs = run(opened(folder, "float32"), requests())
    for key, answer in ours.items():
        pairs = zip(answer.prompt_logprobs[1:], theirs[key].prompt_logprobs[1:], strict=True)
        assert all(a.logprob == pytest.approx(b.logprob, abs=most) for a, b in pairs)


def test_layers_past_the_cache_groups_of_a_native_step_attend_in_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    architectures.save(architectures.reference("gemma3"), tmp_path)
    config = EngineConfig(dtype="auto", device="cpu")
    before = load_model(find(str(tmp_path)), config)
    assert len({each.extent for each in before.transformer.cache_specs}) == 2
    expected = run(engine(before), requests())
    monkeypatch.setattr(native, "MAX_GROUPS", 1)
    monkeypatch.setattr(program, "MAX_GROUPS", 1)
    target = engine(load_model(find(str(tmp_path)), config))
    assert set(target.runner._native.torch_calls) == {"store", "paged_attention"}
    for key, answer in run(target, requests()).items():
        assert answer.token_ids == expected[key].token_ids
