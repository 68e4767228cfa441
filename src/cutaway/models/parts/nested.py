"""Models that also see or hear: their text part, as a configuration of its own, and its tensors.

Encoders and projectors are left out: their tensors are skipped, and images are not read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from cutaway.core.errors import UnsupportedModelError
from cutaway.core.limits import quote
from cutaway.models.parts.config_fields import Fields

# What text_config.model_type may be, by the whole model's word.
TEXT_PARTS: Mapping[str, str] = {
    "Gemma3ForConditionalGeneration": "gemma3_text",
    "Gemma4ForConditionalGeneration": "gemma4_text",
    "Mistral3ForConditionalGeneration": "mistral",
    "Qwen3_5ForConditionalGeneration": "qwen3_5_text",
    "Qwen3_5MoeForConditionalGeneration": "qwen3_5_moe_text",
}
# Fields that published files of Gemma 3 leave out, as transformers 5.24 fills them in.
_GEMMA3: Mapping[str, object] = {
    **{"vocab_size": 262_208, "hidden_size": 2304, "intermediate_size": 9216},
    **{"num_hidden_layers": 26, "num_attention_heads": 8, "num_key_value_heads": 4},
    **{"head_dim": 256, "max_position_embeddings": 131_072, "sliding_window": 4096},
}
# Stand beside text_config and mean the text: the head is the whole model's.
_OUTER = ("tie_word_embeddings", "eos_token_id")

_TEXT = ("model.language_model.", "language_model.model.")
_HEAD = "language_model.lm_head."
_SKIPPED = (
    *("vision_tower.", "visual.", "audio_tower.", "multi_modal_projector."),
    *("embed_vision.", "embed_audio."),
)


def text_values(word: str, values: Mapping[str, object], *, file: str) -> dict[str, object]:
    """The text part's configuration. word: of the whole model, one of TEXT_PARTS.

    Raises: UnsupportedModelError for a text part of another kind.
    """
    text = Fields(values, file=file).read_mapping("text_config")
    kind = text.text("model_type", TEXT_PARTS[word])
    if kind != TEXT_PARTS[word]:
        raise UnsupportedModelError(
            f"{text.file}: model_type is {quote(kind)}; of {word} a text part of "
            f"{TEXT_PARTS[word]} is supported."
        )
    inner = cast("Mapping[str, object]", values.get("text_config") or {})
    defaults = _GEMMA3 if kind == "gemma3_text" else dict[str, object]()
    own = {
        name: value for name, value in inner.items() if value is not None or name not in defaults
    }
    outer = {name: values[name] for name in _OUTER if values.get(name) is not None}
    return {**defaults, **own, **outer}


def text_name(stored: str) -> str | None:
    """What the text part alone calls a tensor; None for one that it does not have."""
    for prefix in _TEXT:
        if stored.startswith(prefix):
            return "model." + stored.removeprefix(prefix)
    if stored.removeprefix("model.").startswith(_SKIPPED):
        return None
    return stored.removeprefix("language_model.") if stored.startswith(_HEAD) else stored
