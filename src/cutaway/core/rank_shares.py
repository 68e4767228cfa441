"""What one rank of a divided model holds, from the model's shape alone.

It follows the cuts of core/shards.py, of rank 0, which has no less than any other. Vectors count
whole, as do the weights that a norm has for each head: they are little. Where a file joins matrices
of which no rank has heads, they are cut as one, by some rows more or less than here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from cutaway.core.arithmetic import cache_bytes_per_token
from cutaway.core.layout import CacheSpec, grouped_cache_spec
from cutaway.core.shapes import Grouped, Latent, LayerShape, MatrixShape, ModelShape
from cutaway.core.shards import cuts, head_cuts


@dataclass(frozen=True, kw_only=True)
class RankShare:
    """Of rank 0 among so many. weight_bytes: as if all weights were kept alike."""

    ranks: int
    weight_bytes: int
    kv_bytes_per_token: int


@dataclass(frozen=True)
class _Kept:
    cache_specs: tuple[CacheSpec, ...]


def rank_share(shape: ModelShape, ranks: int, *, weight_bytes: int, kv_dtype: str) -> RankShare:
    """What rank 0 of so many has of a model whose weights take weight_bytes."""
    total = sum(matrix.values for matrix in shape.matrices) + shape.vectors()
    specs = tuple(spec for layer in shape.layers for spec in _specs(layer, ranks))
    return RankShare(
        ranks=ranks,
        weight_bytes=-(-weight_bytes * values_of_rank(shape, ranks) // total),
        kv_bytes_per_token=cache_bytes_per_token(_Kept(specs), kv_dtype),
    )


def values_of_rank(shape: ModelShape, ranks: int) -> int:
    """Numbers in rank 0's weights."""
    table = _first(shape.vocab_size, ranks) * shape.width * (1 if shape.is_tied else 2)
    more = sum(_kept(matrix, ranks) for matrix in shape.more)
    layers = sum(sum(_layer_values(layer, shape.width, ranks)) for layer in shape.layers)
    return table + more + layers + shape.vectors()


def _layer_values(layer: LayerShape, width: int, ranks: int) -> Iterator[int]:
    attention = layer.attention
    matrices = list(attention.matrices(width))
    if isinstance(attention, Grouped):
        # Query, then key and value where it has own ones, then output.
        shares = _head_shares(attention, ranks)
        for matrix, share in zip(matrices[:-1], shares, strict=False):
            yield _kept(matrix, ranks) if share is None else matrix.values * share[0] // share[1]
        yield _kept(matrices[-1], ranks)
    else:
        for index, matrix in enumerate(matrices):
            # The map from a latent row to keys and values is absorbed head by head.
            is_whole = isinstance(attention, Latent) and index == len(matrices) - 2
            yield matrix.values if is_whole else _kept(matrix, ranks)
    for matrix in (*layer.mlp.matrices(width), *layer.more):
        yield _kept(matrix, ranks)


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
    if matrix.kind != "layer" or matrix.rows < ranks:
        return matrix.values
    return _first(matrix.rows, ranks) * matrix.columns * matrix.copies


def _first(rows: int, ranks: int) -> int:
    return len(cuts(rows, ranks)[0])
