"""What one rank of a divided model holds, from the model's shape alone.

It follows the cuts of core/shards.py, of rank 0, which has no less than any other. Vectors count
whole, as do the weights that a norm has for each head: they are little. Where a file joins matrices
of which no rank has heads, they are cut as one, by some rows more or less than here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from cutaway.core.errors import ConfigError
from cutaway.core.layout import CacheSpec, grouped_cache_spec
from cutaway.core.shapes import (
    AttentionShape,
    DeltaShape,
    Grouped,
    Latent,
    LayerShape,
    MatrixShape,
    ModelShape,
)
from cutaway.core.shards import balance, cuts, head_cuts
from cutaway.core.work import cache_bytes_per_token


@dataclass(frozen=True, kw_only=True)
class RankShare:
    """Of rank 0 among so many. weight_bytes: as if all weights were kept alike."""

    ranks: int
    weight_bytes: int
    kv_bytes_per_token: int


@dataclass(frozen=True)
class _Kept:
    cache_specs: tuple[CacheSpec, ...]


def rank_share(
    shape: ModelShape,
    *,
    tensor: int = 1,
    pipeline: int = 1,
    weight_bytes: int,
    kv_dtype: str,
) -> RankShare:
    """What a rank has of a model whose weights take weight_bytes.

    It is the first of its stage, which has no less than the others there. Of several stages it is
    the weights of the one with the most, and the pages of whichever has most.
    Raises: ConfigError for more stages than layers.
    """
    parts = layer_parts(shape, pipeline)
    values = [_stage_values(shape, part, tensor, is_first=not part.start) for part in parts]
    kept = [
        tuple(spec for layer in part for spec in _specs(shape.layers[layer], tensor))
        for part in parts
    ]
    total = sum(matrix.values for matrix in shape.matrices) + shape.vectors()
    return RankShare(
        ranks=tensor * pipeline,
        weight_bytes=-(-weight_bytes * max(values) // total),
        kv_bytes_per_token=max(cache_bytes_per_token(_Kept(specs), kv_dtype) for specs in kept),
    )


def layer_parts(shape: ModelShape, ranks: int) -> tuple[range, ...]:
    """The layers of each rank, by their numbers; rank 0 has the tables beside its own.

    Raises: ConfigError for more ranks than layers.
    """
    if ranks > len(shape.layers):
        raise ConfigError(
            f"pipeline is {ranks}, and the model has {len(shape.layers)} layers; it must be at "
            "most that."
        )
    return balance([_part(layer, shape.width) for layer in shape.layers], ranks, first=_rest(shape))


def values_of_rank(shape: ModelShape, ranks: int) -> int:
    """Numbers in rank 0's weights, where each has rows of every layer."""
    return _stage_values(shape, range(len(shape.layers)), ranks, is_first=True)


def _stage_values(shape: ModelShape, layers: range, ranks: int, *, is_first: bool) -> int:
    """Numbers of the first of so many ranks that divide some layers. is_first: tables too."""
    own = sum(_part(shape.layers[layer], shape.width, ranks) for layer in layers)
    return own + (_rest(shape, ranks) if is_first else 0)


def _part(layer: LayerShape, width: int, ranks: int = 1) -> int:
    """Numbers in one layer, of the first of so many ranks."""
    mlp = layer.mlp
    vectors = layer.attention.vectors(width) + mlp.vectors(width, mlp.num_experts) + layer.norms
    return sum(_layer_values(layer, width, ranks)) + vectors


def _rest(shape: ModelShape, ranks: int = 1) -> int:
    """Numbers outside of layers, of the first of so many ranks."""
    table = _first(shape.vocab_size, ranks) * shape.width * (1 if shape.is_tied else 2)
    return table + sum(_kept(matrix, ranks) for matrix in shape.more) + shape.norms


def _layer_values(layer: LayerShape, width: int, ranks: int) -> Iterator[int]:
    attention = layer.attention
    matrices = list(attention.matrices(width))
    shares = _shares(attention, len(matrices), ranks)
    for matrix, share in zip(matrices, shares, strict=True):
        yield _kept(matrix, ranks) if share is None else matrix.values * share[0] // share[1]
    experts = layer.mlp.expert_inner
    for matrix in (*layer.mlp.matrices(width), *layer.more):
        is_whole = matrix.kind == "expert" and min(experts, width) < ranks
        yield matrix.values if is_whole else _kept(matrix, ranks)


_WHOLE = (1, 1)


def _shares(attention: AttentionShape, count: int, ranks: int) -> list[tuple[int, int] | None]:
    """Of each of an attention's matrices what part rank 0 has; None where it is cut by its rows."""
    if isinstance(attention, Grouped):
        # Query, then key and value where it has own ones, then output.
        return [*_head_shares(attention, ranks)[: count - 1], None]
    if isinstance(attention, Latent):
        own = _own_heads(attention.num_heads, ranks)
        # Down for the query where it is compressed, query, down, up, output. The map from a latent
        # row to keys and values is absorbed head by head.
        before = [None if own is None else _WHOLE] * (count - 4)
        if own is None:
            return [*before, None, None, _WHOLE, None]
        return [*before, own, _WHOLE, own, None]
    if isinstance(attention, DeltaShape):
        own = _own_heads(attention.num_key_heads, ranks)
        return [own, own, None]
    return [None] * count


def _own_heads(num_heads: int, ranks: int) -> tuple[int, int] | None:
    """Of rank 0, of how many; None where each rank has all."""
    found = head_cuts(num_heads, num_heads, ranks) if num_heads >= ranks else None
    return None if found is None else (len(found[0].heads), num_heads)


def _head_shares(attention: Grouped, ranks: int) -> tuple[tuple[int, int] | None, ...]:
    """Heads of rank 0, of how many: query's, then key's and value's; None where all have all."""
    found = head_cuts(attention.num_heads, attention.num_groups, ranks)
    if found is None:
        return (None, None)
    own = found[0]
    heads = (len(own.heads), attention.num_heads)
    return (heads, (len(own.groups), attention.num_groups))


def _specs(layer: LayerShape, ranks: int) -> tuple[CacheSpec, ...]:
    attention = layer.attention
    if not isinstance(attention, Grouped) or not attention.has_cache:
        return attention.cache_specs
    share = _head_shares(attention, ranks)[1]
    groups = attention.num_groups if share is None else share[0]
    return (grouped_cache_spec(groups, attention.head_size, attention.extent),)


def _kept(matrix: MatrixShape, ranks: int) -> int:
    if matrix.kind not in ("layer", "expert") or matrix.rows < ranks:
        return matrix.values
    return _first(matrix.rows, ranks) * matrix.columns * matrix.copies


def _first(rows: int, ranks: int) -> int:
    return len(cuts(rows, ranks)[0])
