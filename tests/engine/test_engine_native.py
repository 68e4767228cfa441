"""The native CPU path as a whole: near the reference, and the same bits in any company."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

import tiny
from cutaway import LLM
from cutaway.core.request import Request
from cutaway.engine.drafters import NGramDrafter
from cutaway.engine.drafting import Drafting
from cutaway.engine.engine import Engine
from cutaway.kernels import capture
from engines import Answer, run, workload

pytestmark = pytest.mark.skipif(
    not capture.is_available(), reason="the native kernels are not built: run `make native`"
)

SIZES = {"hidden_size": 64, "intermediate_size": 96, "head_dim": 16}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("native")
    (path / "config.json").write_text(json.dumps(tiny.config(vocab_size=320, **SIZES)))
    return path


def opened(folder: Path, **settings: object) -> Engine:
    given = {"cache_tokens": 4096, "page_size": 8, **settings}
    return LLM(f"random:{folder}/config.json", **given).engine


def scores(answers: dict[tuple[str, int], Answer]) -> dict:
    """Token ids and log-probabilities, to the last bit."""
    return {
        key: (answer.token_ids, answer.logprobs, answer.prompt_logprobs)
        for key, answer in answers.items()
    }


def scored(seed: int) -> list[Request]:
    return [
        replace(request, params=replace(request.params, logprobs=1)) for request in workload(seed)
    ]


@pytest.fixture(scope="module", params=["auto", "int8"])
def kv_dtype(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def alone(folder: Path, kv_dtype: str) -> dict:
    requests = scored(1)
    answers: dict = {}
    for request in requests:
        answers |= run(opened(folder, prefix_cache=False, kv_dtype=kv_dtype), [request])
    return scores(answers)


@pytest.mark.parametrize(
    "settings",
    [
        {"prefix_cache": False},
        {"prefix_cache": True},
        {"prefill_chunk": 1},
        {"prefill_chunk": 17},
        {"cache_tokens": 144, "prefill_chunk": 16},
    ],
    ids=str,
)
def test_native_answers_are_the_same_bits_in_any_company(
    folder: Path, kv_dtype: str, alone: dict, settings: dict
) -> None:
    target = opened(folder, kv_dtype=kv_dtype, **settings)
    assert target.runner._native is not None, "auto on a CPU uses the native kernels"
    assert scores(run(target, scored(1))) == alone


def test_native_drafted_equals_plain_to_the_bit(folder: Path, kv_dtype: str, alone: dict) -> None:
    target = opened(folder, kv_dtype=kv_dtype)
    target.drafting = Drafting.of(NGramDrafter(shortest=1))
    assert scores(run(target, scored(1))) == alone


@pytest.mark.parametrize(("cache", "most"), [("float16", 2e-3), ("bfloat16", 0.02), ("int8", 0.05)])
def test_native_is_near_the_reference(folder: Path, cache: str, most: float) -> None:
    """Float weights: what moves log-probabilities is how keys and values are kept."""
    requests = scored(3)
    native = run(opened(folder, kv_dtype=cache), requests)
    plain = run(opened(folder, dtype="float32"), requests)
    compared = 0
    for key, answer in native.items():
        for ours, theirs in zip(answer.logprobs, plain[key].logprobs, strict=False):
            if ours.token_id != theirs.token_id:
                break  # a near tie: what follows has another history
            assert ours.logprob == pytest.approx(theirs.logprob, abs=most)
            compared += 1
    assert compared > 30
