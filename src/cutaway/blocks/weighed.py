"""What the steps of a loaded model read and multiply: its matrices weighed as they are kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import cast

from torch import nn

from cutaway.blocks.attention.convolution import ShortConvolution
from cutaway.blocks.attention.delta import DeltaLayer
from cutaway.blocks.attention.grouped import GroupedAttention
from cutaway.blocks.attention.latent import LatentAttention
from cutaway.blocks.block import Block
from cutaway.blocks.linear import Linear
from cutaway.blocks.moe import MixtureOfExperts
from cutaway.blocks.router import Router
from cutaway.blocks.transformer import Transformer
from cutaway.core.facts import ModelFacts
from cutaway.core.layout import Extent
from cutaway.core.work import CacheReads, Matrices, ModelWork


def model_work(transformer: Transformer, facts: ModelFacts, cache_dtype: str) -> ModelWork:
    """Bytes and multiplications of every stage.

    cache_dtype: by name, as core/layout has them.
    """
    blocks = [cast(Block, block) for block in transformer.blocks]
    attentions = [cast(nn.Module, block.attention) for block in blocks]
    rest = [part for block in blocks for part in block.children() if part not in attentions]
    table, layer_inputs = transformer.unembedding, transformer.layer_inputs
    if layer_inputs is not None:
        rest += [layer_inputs.projection, cast(nn.Module, layer_inputs.norm)]
    row_bytes = stored_bytes(transformer.embedding.table) + (
        stored_bytes(layer_inputs.table) if layer_inputs else 0
    )
    return ModelWork(
        row_bytes=row_bytes / facts.vocab_size,
        attention=_matrices(attentions),
        mlp=_matrices(rest),
        unembedding=Matrices(stored_bytes(table), facts.vocab_size * facts.width),
        cache_reads=_cache_reads(attentions, facts, cache_dtype),
    )


def stored_bytes(module: nn.Module) -> int:
    """Bytes of everything that a module keeps, in whatever scheme."""
    num_bytes = getattr(module, "num_bytes", None)
    if isinstance(num_bytes, int):
        return num_bytes
    own = sum(parameter.nbytes for parameter in module.parameters(recurse=False))
    return own + sum(stored_bytes(child) for child in module.children())


def pair_values(attention: nn.Module) -> int:
    """Multiplications of one query with one token's keys and values, all heads."""
    if isinstance(attention, GroupedAttention):
        return 2 * attention.num_heads * attention.head_size
    if isinstance(attention, LatentAttention):
        rotary = attention.cache_spec.fields[1].shape[0]
        return attention.num_heads * (2 * attention.rank + rotary)
    return 0  # a state


def _matrices(modules: Iterable[nn.Module]) -> Matrices:
    num_bytes = values = expert_bytes = 0
    used = every = 1
    for module in modules:
        num_bytes += stored_bytes(module)
        for part in module.modules():
            values += _values(part)
            if isinstance(part, MixtureOfExperts):
                used, every = part.router.rule.num_chosen, part.experts.num_experts
                expert_bytes += stored_bytes(part.experts)
                values += 3 * part.experts.inner * part.experts.width * used
    return Matrices(num_bytes - expert_bytes, values, expert_bytes, used, every)


def _values(part: nn.Module) -> int:
    """Multiplications per token in a module's own matrices."""
    if isinstance(part, Linear):
        return part.in_features * sum(part.rows)
    if isinstance(part, LatentAttention):  # the matrix that is absorbed on both sides
        return part.rank * (part.num_heads * part.plain_size + part.output.in_features)
    if isinstance(part, DeltaLayer):
        sizes = part.sizes
        state = sizes.num_value_heads * sizes.key_size * sizes.value_size
        return 3 * state + sizes.channels * sizes.kernel  # read, write, read again; convolution
    if isinstance(part, ShortConvolution):
        return part.sizes.token_values
    if isinstance(part, Router):
        return part.num_experts * part.width
    return 0


def _cache_reads(
    attentions: Iterable[nn.Module], facts: ModelFacts, dtype: str
) -> tuple[CacheReads, ...]:
    alike: Counter[tuple[Extent, int, int, int]] = Counter()
    for attention, spec in zip(attentions, facts.cache_specs, strict=True):
        state = sum(field.num_bytes for field in spec.list_fields(dtype)) if spec.is_state else 0
        alike[spec.extent, spec.bytes_per_token(dtype), pair_values(attention), state] += 1
    return tuple(
        CacheReads(extent, count, kept, values, state)
        for (extent, kept, values, state), count in alike.items()
    )
