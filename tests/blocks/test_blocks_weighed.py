"""Loaded models weighed, against estimates from their configurations: two roads, one number."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cutaway.blocks.weighed import model_work
from cutaway.core.estimate import estimate
from cutaway.core.weight_types import weights_in
from cutaway.models import ARCHITECTURES
from cutaway.models.parts.reading import shape_of
from cutaway.service.llm import LLM
from published_shapes import CLASSES, tiny

# An estimate takes the biases of all experts as read; we, like their matrices, those of some.
NEAR = {"GptOssForCausalLM": 0.03}


@pytest.mark.parametrize("flags", [False, True], ids=["plain", "flags"])
@pytest.mark.parametrize("word", sorted(set(CLASSES) & set(ARCHITECTURES)))
def test_a_loaded_model_weighs_what_its_shape_says(word: str, flags: bool, tmp_path: Path) -> None:
    values: dict[str, object] = tiny(word, flags=flags)[1]
    values |= {"eos_token_id": 257, "bos_token_id": 256, "pad_token_id": None}
    path = tmp_path / "config.json"
    path.write_text(json.dumps(values))
    engine = LLM(f"random:{path}", dtype="float32", cache_tokens=64).engine
    model = model_work(engine.model.transformer, engine.model.facts, "float32")
    shape = shape_of(values)
    weights = weights_in(shape, "float32")
    for context in (1, 9, 40):
        told = estimate(shape, weights, context=context, kv_dtype="float32")
        alone = model.alone(context - 1, context)
        assert alone.flops == told.flops_decode
        # The estimate leaves out the embedding's row and the writing of the token's own keys.
        more = model.row_bytes + told.kv_bytes_per_token
        assert alone.num_bytes == pytest.approx(told.bytes_decode + more, rel=NEAR.get(word, 1e-4))
