"""Models that also see, by transformers: their text part is loaded, and has the same logits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import architectures
from cutaway.core.errors import ConfigError, UnsupportedModelError
from cutaway.core.step import Step
from cutaway.engine.build import load_model
from cutaway.engine.config import EngineConfig
from cutaway.engine.loading.requantize import requantize
from cutaway.engine.loading.unloaded_model import open_hf
from cutaway.models.parts.nested import TEXT_PARTS, text_name, text_values
from cutaway.quantize.schemes import scheme_of
from cutaway.weights.find.find import find

pytest.importorskip("transformers")

EYES = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2}
SMALL = {**EYES, "num_hidden_layers": 1, "image_size": 28, "patch_size": 14}
QWEN = {
    **{"hidden_size": 16, "intermediate_size": 16, "depth": 1, "num_heads": 2},
    **{"out_hidden_size": 48, "num_position_embeddings": 16, "deepstack_visual_indexes": []},
}
# case: the whole model's class without its end, the text part's case, and the encoder
MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "Gemma3ForConditionalGeneration": ("Gemma3", "gemma3", SMALL),
    "Gemma4ForConditionalGeneration": (
        "Gemma4",
        "gemma4",
        {**EYES, "num_hidden_layers": 1, "num_key_value_heads": 2, "head_dim": 8},
    ),
    "Mistral3ForConditionalGeneration": ("Mistral3", "mistral", SMALL),
    "Qwen3_5ForConditionalGeneration": ("Qwen3_5", "qwen3.5", QWEN),
    "Qwen3_5MoeForConditionalGeneration": ("Qwen3_5Moe", "qwen3.5-flags", QWEN),
}


def whole(word: str) -> Any:
    """The model with its encoder, every parameter drawn away from its start."""
    import transformers

    name, case, eyes = MODELS[word]
    text = {**architectures.COMMON, **architectures.CASES[case][1]}
    # The head is the whole model's: both say whether it is tied.
    tied = text.get("tie_word_embeddings", name.startswith("Gemma"))
    text |= {"model_type": TEXT_PARTS[word], "tie_word_embeddings": tied, "pad_token_id": 0}
    config = getattr(transformers, f"{name}Config")(
        text_config=text, vision_config=eyes, tie_word_embeddings=tied
    )
    config._attn_implementation = "eager"
    torch.manual_seed(2)
    model = getattr(transformers, word)(config).float().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


@torch.no_grad()
@pytest.mark.parametrize("word", MODELS)
def test_the_text_part_has_the_whole_models_logits(word: str, tmp_path: Path) -> None:
    theirs = whole(word)
    architectures.save(theirs, tmp_path)
    ours = load_model(find(str(tmp_path)), EngineConfig(dtype="float32", device="cpu"))
    ids = torch.randint(0, 256, (66,), generator=torch.Generator().manual_seed(1)).tolist()
    logits = ours.transformer(Step.without_cache([ids]))
    expected = theirs(input_ids=torch.tensor([ids])).logits[0]
    assert expected.std() > 0.05, "logits so alike would equal anything"
    assert (logits - expected).abs().max() < 1e-4


def test_every_such_word_is_tested() -> None:
    assert MODELS.keys() == TEXT_PARTS.keys()


@pytest.mark.parametrize(
    ("stored", "name"),
    [
        ("model.language_model.layers.0.mlp.up_proj.weight", "model.layers.0.mlp.up_proj.weight"),
        ("language_model.model.norm.weight", "model.norm.weight"),
        ("language_model.lm_head.weight", "lm_head.weight"),
        ("lm_head.weight", "lm_head.weight"),
        ("mtp.fc.weight", "mtp.fc.weight"),
        ("model.visual.merger.norm.weight", None),
        ("vision_tower.ln_pre.weight", None),
        ("model.embed_audio.embedding_projection.weight", None),
        ("model.surprise.weight", "model.surprise.weight"),
    ],
)
def test_names_of_both_layouts_are_those_of_the_text_alone(stored: str, name: str | None) -> None:
    assert text_name(stored) == name


def test_what_a_published_gemma_3_leaves_out_is_what_transformers_takes() -> None:
    from transformers import Gemma3TextConfig

    given = {"hidden_size": 2560, "sliding_window": 1024, "vocab_size": None}
    values = {"text_config": given, "tie_word_embeddings": None, "eos_token_id": [1, 106]}
    made = text_values("Gemma3ForConditionalGeneration", values, file="config.json")
    theirs = Gemma3TextConfig(hidden_size=2560, sliding_window=1024, eos_token_id=[1, 106])
    assert made == {name: getattr(theirs, name) for name in made}
    assert len(made) == 10


@pytest.mark.parametrize("tied", [True, False])
def test_g05_a_head_is_tied_as_the_whole_model_says(tied: bool) -> None:
    inner = {"model_type": "mistral", "tie_word_embeddings": not tied}
    whole = {"text_config": inner, "tie_word_embeddings": tied}
    word = "Mistral3ForConditionalGeneration"
    assert text_values(word, whole, file="config.json")["tie_word_embeddings"] is tied
    del whole["tie_word_embeddings"]
    assert text_values(word, whole, file="config.json")["tie_word_embeddings"] is not tied


def test_a_text_part_of_another_kind_is_refused() -> None:
    values = {"text_config": {"model_type": "qwen2"}}
    with pytest.raises(UnsupportedModelError) as fault:
        text_values("Mistral3ForConditionalGeneration", values, file="config.json")
    assert 'config.json: text_config: model_type is "qwen2"; of Mistral3For' in str(fault.value)


def random_whole(folder: Path) -> Path:
    text = {**architectures.COMMON, "model_type": "mistral", "sliding_window": 16}
    config = {"architectures": ["Mistral3ForConditionalGeneration"], "text_config": text}
    path = folder / "config.json"
    path.write_text(json.dumps(config), encoding="utf-8")
    return path


def test_overrides_reach_the_text_part(tmp_path: Path) -> None:
    found = find(f"random:{random_whole(tmp_path)}")
    opened = open_hf(found, overrides=["num_hidden_layers=1"])
    assert opened.architecture.facts.num_layers == 1 and opened.is_part


def test_a_text_part_is_not_written_anew(tmp_path: Path) -> None:
    found = find(f"random:{random_whole(tmp_path)}")
    with pytest.raises(ConfigError) as fault:
        requantize(found, scheme_of("int8"), tmp_path / "out")
    assert "also sees, and its text part alone is read" in str(fault.value)
