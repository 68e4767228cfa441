"""Activations by the words that model files have for them."""

from __future__ import annotations

from collections.abc import Mapping

from cutaway.blocks.activations import ACTIVATIONS, GATES, Activation, Gate
from cutaway.core.errors import UnsupportedModelError
from cutaway.models.fields import Fields

# gelu_new and gelu_pytorch_tanh are the tanh form, written out or by torch.
_WORDS: Mapping[str, str] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
}


def activation_of(config: Fields, field: str, default: str) -> Activation:
    """The function that a field of config.json names. Raises: UnsupportedModelError."""
    return ACTIVATIONS[_name(config, field, default)]


def gate_of(config: Fields, field: str, default: str) -> Gate:
    """The product of gate and value that a field names. Raises: UnsupportedModelError."""
    return GATES[_name(config, field, default)]


def _name(config: Fields, field: str, default: str) -> str:
    word = config.text(field, default)
    if word not in _WORDS:
        raise UnsupportedModelError(
            f"{config.file}: {field} is {word!r}; known are {', '.join(_WORDS)}."
        )
    return _WORDS[word]
