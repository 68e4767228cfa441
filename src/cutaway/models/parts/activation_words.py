"""Activations by the words that model files have for them."""

from __future__ import annotations

from collections.abc import Mapping

from cutaway.core.errors import UnsupportedModelError
from cutaway.core.limits import quote
from cutaway.models.parts.config_fields import Fields

# The names are those of blocks/activations.py.
# gelu_new and gelu_pytorch_tanh are the tanh form, written out or by torch.
_WORDS: Mapping[str, str] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "relu2": "relu2",
}


def activation_name(config: Fields, field: str, default: str) -> str:
    """The name of the activation that a field of config.json means.

    Raises: UnsupportedModelError for a word that is not known.
    """
    word = config.text(field, default)
    if word not in _WORDS:
        raise UnsupportedModelError(
            f"{config.file}: {field} is {quote(word)}; known are {', '.join(_WORDS)}."
        )
    return _WORDS[word]
