"""One reading of a model's configuration: a config.json, or the metadata of a GGUF file.

Facts, sizes for estimates, places of weights and the model itself follow from what it gives. Free
of torch: only an architecture's build() needs it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol, cast

from cutaway.core.claims import check_claims
from cutaway.core.errors import ModelFormatError
from cutaway.core.shapes import ModelShape
from cutaway.host.gguf_file import GgufFile
from cutaway.models import ARCHITECTURES, GGUF_ARCHITECTURES, architecture_file, gguf_word
from cutaway.models.parts.architecture import Architecture
from cutaway.models.parts.config_fields import Fields
from cutaway.models.parts.nested import TEXT_PARTS, text_values
from cutaway.models.parts.overrides import check_read, overridden
from cutaway.models.parts.rotary_config import GGUF_FACTORS


class ConfigFile(NamedTuple):
    """A config.json, understood.

    values: its fields, of a model that also sees those of the text part.   is_part: whether it is.
    asked: names of fields that the architecture reads, there or not.
    """

    architecture: Architecture
    values: Mapping[str, object]
    is_part: bool
    asked: frozenset[str]


class _ReadsHf(Protocol):
    def from_hf(self, config: Fields) -> Architecture: ...


class _ReadsGguf(Protocol):
    def from_gguf(
        self,
        metadata: Fields,
        shapes: Mapping[str, tuple[int, ...]],
        factors: Mapping[str, tuple[float, ...]],
    ) -> Architecture: ...


def read_config(
    values: Mapping[str, object],
    *,
    file: str = "config.json",
    overrides: Sequence[str] = (),
    num_tensors: int | None = None,
) -> ConfigFile:
    """Read a config.json that was parsed; of a model that also sees, its text part.

    overrides: fields to replace, as in "num_key_value_heads=1".
    num_tensors: that there are, which bounds what it may claim; None where there are none.

    Raises: UnsupportedModelError, ModelFormatError naming the field, ConfigError for overrides.
    """
    word = word_of(values, file=file)
    reader = cast(_ReadsHf, architecture_file(word, ARCHITECTURES, file=file))
    is_part = word in TEXT_PARTS
    own = text_values(word, values, file=file) if is_part else values
    own = overridden(own, overrides)
    check_claims(own, file=file, num_tensors=num_tensors)
    fields = Fields(own, file=file)
    architecture = reader.from_hf(fields)
    check_read(fields, overrides)
    return ConfigFile(architecture, own, is_part, frozenset(fields.asked))


def word_of(values: Mapping[str, object], *, file: str) -> str:
    """The architecture that a config.json names.

    Raises: ModelFormatError where it names none, UnsupportedModelError for an unknown one.
    """
    words = values.get("architectures")
    word = cast("list[object]", words)[0] if isinstance(words, list) and words else None
    if not isinstance(word, str):
        raise ModelFormatError(
            'names no architecture; it must be a list such as ["LlamaForCausalLM"].',
            file=file,
            field="architectures",
        )
    architecture_file(word, ARCHITECTURES, file=file)
    return word


def read_gguf(file: GgufFile) -> Architecture:
    """Read the metadata of a file. Raises: UnsupportedModelError, ModelFormatError."""
    word = file.text("general.architecture")
    fields = Fields(file.metadata, file=file.file, prefix=f"{word}.")
    has_experts = fields.has("expert_count") and fields.integer("expert_count", least=0) > 0
    entry = gguf_word(word, has_experts=has_experts)
    reader = cast(_ReadsGguf, architecture_file(entry, GGUF_ARCHITECTURES, file=file.file))
    check_claims(file.metadata, file=file.file, prefix=f"{word}.", num_tensors=len(file.tensors))
    factors = {name: file.vector(name) for name in GGUF_FACTORS if name in file.tensors}
    shapes = {name: tensor.shape for name, tensor in file.tensors.items()}
    return reader.from_gguf(fields, shapes, factors)


def shape_of(config: Mapping[str, object], *, file: str = "config.json") -> ModelShape:
    """The shape of a config.json that was parsed. Raises: as read_config."""
    return read_config(config, file=file).architecture.shape
