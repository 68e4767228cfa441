"""nanochat: norms without weights, heads that turn backwards, a squared ReLU without a gate.

Source: transformers' NanoChatModel; github.com/karpathy/nanochat.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from cutaway.blocks.positions import Frequencies, Plain, scaling_name
from cutaway.core.errors import UnsupportedModelError
from cutaway.models.parts import tensor_names
from cutaway.models.parts.activation_words import activation_name
from cutaway.models.parts.architecture import Layout
from cutaway.models.parts.config_fields import Fields
from cutaway.models.parts.grouped_decoder import GroupedDecoder, decoder_from_hf
from cutaway.models.parts.layer_parts import AttentionForm

_NAMES: Mapping[Layout, tensor_names.Names] = {
    "hf": {**tensor_names.HF, "up": "mlp.fc1", "down": "mlp.fc2"}
}


def from_hf(config: Fields) -> GroupedDecoder:
    """Read a config.json. Raises: UnsupportedModelError for rotary frequencies that are scaled."""
    made = decoder_from_hf("nanochat", config)
    has_bias = config.flag("attention_bias", False)
    return replace(
        made,
        frequencies=tuple(_backwards(each, config.file) for each in made.frequencies),
        # Its norm of heads stands behind the rotation; one without weights before it is the same
        # up to rounding, as no rotation changes a root mean square.
        attention=AttentionForm(has_bias=has_bias, has_output_bias=has_bias, has_head_norms=True),
        gate=activation_name(config, "hidden_act", "relu2"),
        is_gated=False,
        norm="unit",
        norms_embedding=True,
        logits_cap=config.number_or_none("final_logit_softcapping", 15.0),
        names=_NAMES,
    )


def _backwards(frequencies: Frequencies | None, file: str) -> Frequencies | None:
    """The same by angles of the opposite sign."""
    if frequencies is None:
        return None
    if not isinstance(frequencies, Plain):
        raise UnsupportedModelError(
            f"{file}: rope_type is that of {scaling_name(frequencies)}; of NanoChat only default "
            "is known."
        )
    return replace(frequencies, factors=(-1.0,) * (frequencies.size // 2))
