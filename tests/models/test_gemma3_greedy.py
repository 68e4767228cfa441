"""Gemma 3 270M by its name: found in the cache, and its greedy answer is transformers' own."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from test_gemma3_270m import reference

from cutaway import LLM, SamplingParams
from cutaway.core.errors import ModelError
from cutaway.weights.find.named_models import NAMED
from cutaway.weights.find.package import cached_path
from oracles import gemma3_gguf

pytestmark = [pytest.mark.oracle, pytest.mark.slow]

PROMPT = "The capital of France is"


@pytest.fixture
def llm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LLM:
    """The named model, in a cache of its own that was filled before."""
    monkeypatch.setenv("CUTAWAY_CACHE", str(tmp_path))
    monkeypatch.delenv("CUTAWAY_ACCEPT_LICENSE", raising=False)
    path = cached_path(NAMED["gemma3-270m"])
    with pytest.raises(ModelError, match="Gemma Terms of Use"):
        LLM("gemma3-270m")
    path.parent.mkdir(parents=True)
    path.symlink_to(gemma3_gguf())
    return LLM("gemma3-270m", dtype="float32", cache_tokens=512)


@torch.inference_mode()
def test_32_greedy_tokens_are_those_of_transformers(llm: LLM) -> None:
    prompt = llm.encode(PROMPT)
    assert prompt[0] == 2 and len(prompt) == 6
    (answer,) = llm.generate(PROMPT, SamplingParams(temperature=0.0, max_tokens=32))
    ids = [*prompt, *answer.token_ids]
    assert len(answer.token_ids) == 32
    logits = reference(llm)(torch.tensor([ids[:-1]])).logits[0, len(prompt) - 1 :]
    for row, token_id in zip(logits, answer.token_ids, strict=True):
        # The first that differs may be a near tie; then the two are equally good.
        assert row.max() - row[token_id] < 1e-3
