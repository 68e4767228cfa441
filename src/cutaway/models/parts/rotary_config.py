"""Rotary frequencies as model files describe them: Hugging Face configs and GGUF metadata."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from cutaway.blocks.positions import (
    Dynamic,
    Frequencies,
    LinearScaling,
    Llama3,
    LongRope,
    Plain,
    Proportional,
    Yarn,
    yarn_attention_factor,
)
from cutaway.core.claims import MAX_LENGTH
from cutaway.core.errors import ModelFormatError, UnsupportedModelError
from cutaway.core.limits import quote
from cutaway.models.parts.config_fields import Fields, warn_of_two
from cutaway.models.parts.sizes import Sizes

# tensors of a GGUF file that hold divisors of the frequencies
GGUF_FACTORS = frozenset(
    {"rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"}
)

_SCALED_KIND = "full_attention"  # of layers whose entry rope_scaling changes
SCALINGS = ("none", "default", "proportional", "linear", "dynamic", "yarn", "longrope", "llama3")


def from_hf(
    config: Fields,
    *,
    head_size: int,
    max_length: int,
    kind: str | None = None,
    base: float = 10_000.0,
    share: float = 1.0,
) -> Frequencies | None:
    """Frequencies of a config.json, in its newer form (rope_parameters) or the older one.

    kind: of layer, where rope_parameters has an entry per kind. base: of an absent rope_theta.
    share: of each head that turns, by an absent partial_rotary_factor.
    None for rope_type "none", which no model has: a lever that takes positions away.

    Raises: UnsupportedModelError for a scaling not in SCALINGS, ModelFormatError naming the field.
    """
    rope = _rotation(config, kind)
    for name in ("rope_theta", "partial_rotary_factor"):
        warn_of_two(rope, name, config, name)
    warn_of_two(rope, "rope_type", rope, "type")
    base = rope.number("rope_theta", config.number("rope_theta", base))
    share = rope.number("partial_rotary_factor", config.number("partial_rotary_factor", share))
    if rope.text("rope_type", "default") == "proportional":
        turning = (
            _turning(rope, "partial_rotary_factor", 2 * (share * head_size // 2), head_size) // 2
        )
        return Proportional(head_size, base, turning, rope.number("factor", 1.0))
    size = _turning(rope, "partial_rotary_factor", head_size * share, head_size)
    return _scaled(config, rope, base, size=size, max_length=max_length)


def _rotation(config: Fields, kind: str | None) -> Fields:
    """What describes the rotation of such layers.

    Where rope_parameters has an entry per kind, rope_scaling changes the entry of the layers that
    see everything, field by field.
    Source: transformers, Gemma3TextConfig.convert_rope_params_to_dict.
    """
    entries = config.read_mapping("rope_parameters")
    if kind is not None and entries.has(kind):
        entry, scaling = entries.read_mapping(kind), config.read_mapping("rope_scaling")
        return entry.changed_by(scaling) if kind == _SCALED_KIND else entry
    warn_of_two(config, "rope_scaling", config, "rope_parameters")
    rope = config.read_mapping(rotation_field(config))
    return rope.read_mapping(kind) if kind is not None and rope.has(kind) else rope


def rotation_field(config: Fields) -> str:
    """The field that describes the rotation: as in transformers, rope_scaling where both do."""
    is_there = config.has("rope_scaling") and not config.is_empty("rope_scaling")
    return "rope_scaling" if is_there else "rope_parameters"


def _turning(fields: Fields, name: str, size: float, head_size: int) -> int:
    """Numbers of each head that turn, in pairs."""
    if not 0 <= size < head_size + 1 or int(size) % 2:
        raise ModelFormatError(
            f"lets {size:g} numbers of a head turn; they must be even and at most {head_size}.",
            file=fields.file,
            field=name,
        )
    return int(size)


def _scaled(
    config: Fields, rope: Fields, base: float, *, size: int, max_length: int
) -> Frequencies | None:
    kind = rope.text("rope_type", rope.text("type", "default"))
    if kind == "su" or (kind == "yarn" and rope.has("short_factor")):
        kind = "longrope"  # by the names that it had in the first Phi-3 models
    trained = max_length
    if kind in ("yarn", "longrope", "llama3"):
        trained = rope.integer("original_max_position_embeddings", max(2, max_length), least=2)
        name = "original_max_position_embeddings"
        warn_of_two(config, name, rope, name)
        trained = config.integer(name, trained, least=2)
    match kind:
        case "none":
            return None
        case "default":
            return Plain(size, base)
        case "linear":
            return LinearScaling(size, base, rope.number("factor"))
        case "dynamic":
            return Dynamic(size, base, rope.number("factor"), trained)
        case "yarn":
            return _yarn(rope, size, base, trained, max_length)
        case "longrope":
            return _longrope(rope, size, base, trained, max_length)
        case "llama3":
            return _llama3(rope, size, base, trained)
        case _:
            raise UnsupportedModelError(
                f"{rope.file}: rope_type is {quote(kind)}; known are {', '.join(SCALINGS)}."
            )


def _llama3(rope: Fields, size: int, base: float, trained: int) -> Llama3:
    low, high = rope.number("low_freq_factor"), rope.number("high_freq_factor")
    # The blend between the two divides by their distance.
    _check_above(rope, "high_freq_factor", high, low, f"low_freq_factor, {quote(low)}")
    return Llama3(size, base, rope.number("factor"), low, high, trained)


def _check_above(fields: Fields, name: str, value: float, least: float, words: str) -> None:
    if not value > least:
        raise ModelFormatError(
            f"is {quote(value)}; it must be above {words}.", file=fields.file, field=name
        )


def stretch(sizes: Sizes, frequencies: Frequencies | None) -> Sizes:
    """Sizes of a model whose configuration names the length before stretching."""
    length = sizes.max_length
    match frequencies:
        case LinearScaling(factor=factor) | Dynamic(factor=factor):
            length = int(min(length * factor, MAX_LENGTH))
        case Yarn(factor=factor, trained_length=trained):
            length = max(length, int(min(trained * factor, MAX_LENGTH)))
        case _:
            pass
    return replace(sizes, max_length=length)


def _yarn(rope: Fields, size: int, base: float, trained: int, max_length: int) -> Yarn:
    _check_above(rope, "rope_theta", base, 1, "1 for yarn")  # its ramp divides by the logarithm
    factor = rope.number("factor", max_length / trained)
    scales = [rope.number_or_none(name) for name in ("mscale", "mscale_all_dim")]
    computed = yarn_attention_factor(factor, *scales)
    return Yarn(
        size,
        base,
        factor,
        trained,
        beta_fast=rope.number("beta_fast", 32.0),
        beta_slow=rope.number("beta_slow", 1.0),
        truncate=rope.flag("truncate", True),
        attention_factor=rope.number("attention_factor", computed),
    )


def _longrope(rope: Fields, size: int, base: float, trained: int, max_length: int) -> LongRope:
    factor = rope.number("factor", max_length / trained)
    computed = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(trained))
    return LongRope(
        size,
        base,
        rope.numbers("short_factor", size // 2),
        rope.numbers("long_factor", size // 2),
        trained,
        attention_factor=rope.number("attention_factor", computed),
    )


def from_gguf(
    metadata: Fields,
    *,
    head_size: int,
    max_length: int,
    factors: Mapping[str, tuple[float, ...]],
    base: float = 10_000.0,
) -> Frequencies:
    """Frequencies of GGUF metadata (fields without the architecture's prefix).

    base: of an absent rope.freq_base.
    factors: those tensors of GGUF_FACTORS that the file holds, as numbers; they say what the
    metadata does not.

    Raises: UnsupportedModelError for an unknown scaling type, ModelFormatError naming the field.
    """
    name = "rope.dimension_count"
    size = _turning(metadata, name, metadata.integer(name, head_size), head_size)
    for name, values in factors.items():
        if len(values) != size // 2:
            raise ModelFormatError(
                f"has {len(values)} numbers; it must have one for each of {size // 2} pairs.",
                file=metadata.file,
                field=name,
            )
    base = metadata.number("rope.freq_base", base)
    trained = metadata.integer("rope.scaling.original_context_length", max(2, max_length), least=2)
    kind = metadata.text("rope.scaling.type", "none")
    if "rope_factors_long.weight" in factors:
        factor = max_length / trained
        computed = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(trained))
        return LongRope(
            size,
            base,
            factors["rope_factors_short.weight"],
            factors["rope_factors_long.weight"],
            trained,
            attention_factor=metadata.number("rope.scaling.attn_factor", computed),
        )
    match kind:
        case "none":
            return Plain(size, base, factors.get("rope_freqs.weight", ()))
        case "linear":
            return LinearScaling(size, base, metadata.number("rope.scaling.factor", 1.0))
        case "yarn":
            _check_above(metadata, "rope.freq_base", base, 1, "1 for yarn")
            factor = metadata.number("rope.scaling.factor")
            return Yarn(
                size,
                base,
                factor,
                trained,
                attention_factor=yarn_attention_factor(factor)
                * metadata.number("rope.scaling.attn_factor", 1.0),
            )
        case _:
            raise UnsupportedModelError(
                f"{metadata.file}: rope.scaling.type is {quote(kind)}; known are none, linear, "
                "yarn."
            )
