"""The numbers that decoders have in common, read from config.json and from GGUF metadata."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cutaway.core.errors import ModelFormatError
from cutaway.core.facts import ModelFacts
from cutaway.core.layout import CacheSpec
from cutaway.core.weight_targets import Target
from cutaway.models.parts.config_fields import Fields


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Sizes of a decoder. Letters of the house style in brackets."""

    vocab_size: int  # V
    width: int  # D
    inner: int  # F
    num_layers: int  # L
    num_heads: int  # H
    num_groups: int  # G
    head_size: int  # C
    epsilon: float  # of every norm
    max_length: int  # tokens of prompt and answer together
    is_tied: bool  # whether the unembedding is the embedding
    end_token_ids: tuple[int, ...] = ()


def sizes_from_hf(
    config: Fields,
    *,
    is_tied: bool = False,
    head_size: int | None = None,
    inner: int | None = None,
    epsilon: tuple[str, float] = ("rms_norm_eps", 1e-6),
) -> Sizes:
    """Read a config.json; is_tied, head_size and inner are what an absent field means.

    epsilon: name of the norms' field, and what it means where it is absent.

    Raises: ModelFormatError naming the field that is missing or wrong.
    """
    width, num_heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    return Sizes(
        vocab_size=config.integer("vocab_size"),
        width=width,
        inner=config.integer("intermediate_size", inner),
        num_layers=config.integer("num_hidden_layers"),
        num_heads=num_heads,
        num_groups=_groups(config, "num_key_value_heads", num_heads),
        head_size=config.integer("head_dim", head_size or max(1, width // num_heads)),
        epsilon=config.number(*epsilon),
        max_length=config.integer("max_position_embeddings", 2048),
        is_tied=config.flag("tie_word_embeddings", is_tied),
        end_token_ids=config.integers("eos_token_id"),
    )


def sizes_from_gguf(
    metadata: Fields,
    shapes: Mapping[str, tuple[int, ...]],
    *,
    epsilon: str = "attention.layer_norm_rms_epsilon",
    num_groups: int | None = None,
) -> Sizes:
    """Read GGUF metadata, its fields without the architecture's prefix; shapes: of the tensors.

    epsilon: name of the norms' field.   num_groups: where the file has them by layer.

    Raises: ModelFormatError naming the field that is missing or wrong.
    """
    width = metadata.integer("embedding_length")
    num_heads = metadata.integer("attention.head_count")
    table = shapes.get("token_embd.weight", (0, width))
    return Sizes(
        vocab_size=metadata.integer("vocab_size", table[0]),
        width=width,
        inner=metadata.integer("feed_forward_length"),
        num_layers=metadata.integer("block_count"),
        num_heads=num_heads,
        num_groups=_groups(metadata, "attention.head_count_kv", num_heads, count=num_groups),
        head_size=metadata.integer("attention.key_length", max(1, width // num_heads)),
        epsilon=metadata.number(epsilon, 1e-5),
        max_length=metadata.integer("context_length"),
        is_tied="output.weight" not in shapes,
    )


def facts_of(
    sizes: Sizes,
    architecture: str,
    *,
    targets: Mapping[str, Target],
    cache_specs: Sequence[CacheSpec],
) -> ModelFacts:
    """The sizes as facts, with the parameters that targets reach counted once each."""
    places = {(t.parameter, str(t.part)): math.prod(t.shape) for t in targets.values()}
    return ModelFacts(
        architecture=architecture,
        vocab_size=sizes.vocab_size,
        max_length=sizes.max_length,
        num_layers=sizes.num_layers,
        width=sizes.width,
        num_heads=sizes.num_heads,
        num_groups=sizes.num_groups,
        head_size=sizes.head_size,
        inner=sizes.inner,
        is_tied=sizes.is_tied,
        num_parameters=sum(places.values()),
        cache_specs=tuple(cache_specs),
    )


def _groups(config: Fields, name: str, num_heads: int, *, count: int | None = None) -> int:
    num_groups = config.integer(name, num_heads) if count is None else count
    if num_groups < 1 or num_heads % num_groups:
        raise ModelFormatError(
            f"is {num_groups}; it must divide the number of query heads, {num_heads}.",
            file=config.file,
            field=name,
        )
    return num_groups
