"""Layers of a model as plain data that sizes follow from; knows no tensors and reads no files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from cutaway.core.layout import (
    FULL,
    CacheField,
    CacheSpec,
    Extent,
    Window,
    grouped_cache_spec,
    latent_cache_spec,
)

_STATE_DTYPE = "float32"  # of states, whatever keys and values are kept in
_KEPT = Window(2)  # a token's own page and that of the token before it


@dataclass(frozen=True)
class MatrixShape:
    """Equal weight matrices, of which a token uses some.

    kind: what decides in which type it is kept; a lookup is read by row and never multiplied.
    """

    rows: int
    columns: int
    copies: int = 1
    used: int = 1
    kind: Literal["layer", "expert", "router", "table", "lookup"] = "layer"

    @property
    def values(self) -> int:
        """Numbers in all copies."""
        return self.rows * self.columns * self.copies


@dataclass(frozen=True, kw_only=True)
class Grouped:
    """Attention whose query heads share the keys and values of a group."""

    num_heads: int
    num_groups: int
    head_size: int
    extent: Extent = FULL
    has_bias: bool = False  # on query, key and value
    has_output_bias: bool = False
    has_head_norms: bool = False  # on each query and key head
    norms_rows: bool = False  # of these norms, each number of all heads has a weight of its own
    has_sinks: bool = False  # a learned score per head that takes weight and gives nothing
    has_gate: bool = False  # on what the heads give; comes out of the query's matrix
    has_value: bool = True  # False: values are the keys before their norm
    has_cache: bool = True  # False: keys and values of an earlier layer are used

    @property
    def cache_specs(self) -> tuple[CacheSpec, ...]:
        """Keys and values of a token; nothing where an earlier layer's are used."""
        spec = grouped_cache_spec(self.num_groups, self.head_size, self.extent)
        return (spec,) if self.has_cache else ()

    @property
    def state_values(self) -> int:
        """Numbers kept per sequence whatever its length: none."""
        return 0

    def matrices(self, width: int) -> Iterator[MatrixShape]:
        """Weight matrices: query, key and value, output."""
        rows = self.num_heads * self.head_size
        yield MatrixShape(2 * rows if self.has_gate else rows, width)
        if self.has_cache:
            copies = 2 if self.has_value else 1
            yield MatrixShape(self.num_groups * self.head_size, width, copies, copies)
        yield MatrixShape(width, rows)

    def vectors(self, width: int) -> int:
        """Numbers in biases, norms and sinks."""
        own = (2 if self.has_value else 1) if self.has_cache else 0
        biases = (self.num_heads + own * self.num_groups) * self.head_size if self.has_bias else 0
        biases += width if self.has_output_bias else 0
        norms = self.head_size * (1 + self.has_cache) if self.has_head_norms else 0
        if self.norms_rows:
            norms = self.head_size * (self.num_heads + self.has_cache * self.num_groups)
        return biases + norms + (self.num_heads if self.has_sinks else 0)

    @property
    def prefill_values(self) -> int:
        """Multiplications for one query and one key: score and weighted value, all heads."""
        return 2 * self.num_heads * self.head_size

    decode_values = prefill_values
    token_values = 0


@dataclass(frozen=True, kw_only=True)
class Latent:
    """Attention that keeps one compressed row and one rotary key for all heads."""

    num_heads: int
    query_rank: int  # 0: the query is not compressed
    rank: int
    plain_size: int
    rotary_size: int
    value_size: int
    extent: Extent = FULL
    has_bias: bool = False  # on both compressing maps and the output

    @property
    def cache_specs(self) -> tuple[CacheSpec, ...]:
        """The compressed row and the rotary key of a token."""
        return (latent_cache_spec(self.rank, self.rotary_size),)

    @property
    def state_values(self) -> int:
        """Numbers kept per sequence whatever its length: none."""
        return 0

    def matrices(self, width: int) -> Iterator[MatrixShape]:
        """Weight matrices: query, compressed row, its expansion, output."""
        query_rows = self.num_heads * (self.plain_size + self.rotary_size)
        if self.query_rank:
            yield MatrixShape(self.query_rank, width)
            yield MatrixShape(query_rows, self.query_rank)
        else:
            yield MatrixShape(query_rows, width)
        yield MatrixShape(self.rank + self.rotary_size, width)
        yield MatrixShape(self.num_heads * (self.plain_size + self.value_size), self.rank)
        yield MatrixShape(width, self.num_heads * self.value_size)

    def vectors(self, width: int) -> int:
        """Numbers in norms and biases."""
        norms = self.query_rank + self.rank  # of both compressed rows
        return norms + (norms + self.rotary_size + width if self.has_bias else 0)

    @property
    def prefill_values(self) -> int:
        """Expanded: keys and values are made from the compressed rows once, then compared."""
        return self.num_heads * (self.plain_size + self.rotary_size + self.value_size)

    @property
    def decode_values(self) -> int:
        """Absorbed: scores and values are taken on the compressed row itself."""
        return self.num_heads * (2 * self.rank + self.rotary_size)

    token_values = 0


@dataclass(frozen=True, kw_only=True)
class DeltaShape:
    """A gated delta layer: a state per sequence in place of keys and values.

    Source: Yang et al. 2024, arXiv 2412.06464; a short convolution runs before it.
    """

    num_key_heads: int
    num_value_heads: int  # H of the state: each key head serves several
    key_size: int  # K
    value_size: int  # V
    kernel: int  # tokens that the convolution sees, the newest included
    extent: Extent = FULL
    cache_specs: tuple[CacheSpec, ...] = ()

    @property
    def channels(self) -> int:
        """Of the convolution: queries, keys and values."""
        return 2 * self.num_key_heads * self.key_size + self.num_value_heads * self.value_size

    @property
    def shared(self) -> int:
        """Value heads that one key head serves."""
        return self.num_value_heads // self.num_key_heads

    def narrow(self, num_key_heads: int) -> DeltaShape:
        """The same with so many of its key heads, each with its value heads."""
        num_value_heads = num_key_heads * self.shared
        return replace(self, num_key_heads=num_key_heads, num_value_heads=num_value_heads)

    @property
    def state_spec(self) -> CacheSpec:
        """The state of each head, and the inputs that the convolution still needs."""
        state = (self.num_value_heads, self.key_size, self.value_size)
        inputs = (self.kernel - 1, self.channels)
        fields = tuple(
            CacheField(name, shape, _STATE_DTYPE)
            for name, shape in (("state", state), ("inputs", inputs))
        )
        return CacheSpec(fields, _KEPT, is_state=True)

    @property
    def state_values(self) -> int:
        """Per sequence: the state of each head, and the tokens that the convolution still needs."""
        matrix = self.num_value_heads * self.key_size * self.value_size
        return matrix + self.channels * (self.kernel - 1)

    def matrices(self, width: int) -> Iterator[MatrixShape]:
        """Weight matrices: queries, keys, values and gate; decay and step; output."""
        values = self.num_value_heads * self.value_size
        yield MatrixShape(self.channels + values, width)  # the gate's rows too
        yield MatrixShape(2 * self.num_value_heads, width)  # decay and step of each head
        yield MatrixShape(width, values)

    def vectors(self, width: int) -> int:
        """Numbers in the convolution, in decay and step, and in the norm."""
        return self.channels * self.kernel + 2 * self.num_value_heads + self.value_size

    @property
    def token_values(self) -> int:
        """Multiplications per token: read, write and read the state again; the convolution."""
        state = self.num_value_heads * self.key_size * self.value_size
        return 3 * state + self.channels * self.kernel

    prefill_values = decode_values = 0


@dataclass(frozen=True, kw_only=True)
class Mlp:
    """A dense MLP, experts of which a token uses some, or both beside each other.

    inner: of the dense or shared part; 0 where there is none.
    """

    inner: int = 0
    is_gated: bool = True  # three matrices; else two
    has_bias: bool = False
    expert_inner: int = 0
    num_experts: int = 0
    num_active: int = 0
    has_expert_bias: bool = False
    has_shared_gate: bool = False  # one number that scales the shared part
    router_vectors: int = 0  # biases and scales of the router

    def matrices(self, width: int) -> Iterator[MatrixShape]:
        """Weight matrices: dense or shared part, experts, router, shared gate."""
        first = 2 if self.is_gated else 1
        if self.inner:
            yield MatrixShape(self.inner, width, first, first)
            yield MatrixShape(width, self.inner)
        if self.num_experts:
            every, used = self.num_experts, self.num_active
            yield MatrixShape(self.expert_inner, width, first * every, first * used, "expert")
            yield MatrixShape(width, self.expert_inner, every, used, "expert")
            yield MatrixShape(self.num_experts, width, kind="router")
        if self.has_shared_gate:
            yield MatrixShape(1, width, kind="router")

    def vectors(self, width: int, num_used: int) -> int:
        """Numbers in biases and of the router, where a batch uses so many experts."""
        first = 2 if self.is_gated else 1
        count = first * self.inner + width if self.has_bias else 0
        if self.has_expert_bias:
            count += num_used * (first * self.expert_inner + width)
        return count + self.router_vectors


@dataclass(frozen=True, kw_only=True)
class ConvolutionShape:
    """A gated short convolution of each channel: a few inputs in place of keys and values."""

    width: int
    kernel: int  # tokens that it sees, the newest included
    has_bias: bool = False  # on the convolution and the matrices around it
    extent: Extent = FULL
    cache_specs: tuple[CacheSpec, ...] = ()

    @property
    def state_spec(self) -> CacheSpec:
        """The inputs that the convolution still needs."""
        field = CacheField("inputs", (self.kernel - 1, self.width), _STATE_DTYPE)
        return CacheSpec((field,), _KEPT, is_state=True)

    @property
    def state_values(self) -> int:
        """Per sequence: the inputs that the convolution still needs."""
        return self.width * (self.kernel - 1)

    def matrices(self, width: int) -> Iterator[MatrixShape]:
        """Weight matrices: of both gates and what is mixed, and the output."""
        yield MatrixShape(3 * self.width, width)
        yield MatrixShape(width, self.width)

    def vectors(self, width: int) -> int:
        """Numbers in the convolution and in biases."""
        return self.width * self.kernel + (4 * self.width + width if self.has_bias else 0)

    @property
    def token_values(self) -> int:
        """Multiplications per token: both gates, and the convolution."""
        return self.width * (self.kernel + 2)

    prefill_values = decode_values = 0


AttentionShape = Grouped | Latent | DeltaShape | ConvolutionShape


@dataclass(frozen=True, kw_only=True)
class LayerShape:
    """One layer. norms: numbers in its norms; more: matrices beside attention and MLP."""

    attention: AttentionShape
    mlp: Mlp
    norms: int
    more: tuple[MatrixShape, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """Everything that sizes follow from. norms: numbers in the norms outside of layers."""

    architecture: str
    vocab_size: int
    width: int
    is_tied: bool
    layers: tuple[LayerShape, ...]
    norms: int
    more: tuple[MatrixShape, ...] = ()

    @property
    def cache_specs(self) -> tuple[CacheSpec, ...]:
        """What each layer that keeps something keeps of a token, in the order of layers."""
        return tuple(spec for layer in self.layers for spec in layer.attention.cache_specs)

    @property
    def matrices(self) -> Iterator[MatrixShape]:
        """Every weight matrix; a tied table comes once, as the unembedding."""
        yield MatrixShape(self.vocab_size, self.width, kind="table")
        if not self.is_tied:
            yield MatrixShape(self.vocab_size, self.width, kind="lookup")
        yield from self.more
        for layer in self.layers:
            yield from layer.attention.matrices(self.width)
            yield from layer.mlp.matrices(self.width)
            yield from layer.more

    def vectors(self, batch: int | None = None) -> int:
        """Numbers in norms and biases that a batch can touch at most; None counts all."""
        count = self.norms
        for layer in self.layers:
            mlp, every = layer.mlp, layer.mlp.num_experts
            used = every if batch is None else min(every, batch * mlp.num_active)
            count += layer.norms + layer.attention.vectors(self.width)
            count += mlp.vectors(self.width, used)
        return count


def seen_tokens(extent: Extent, context: int) -> int:
    """Keys that the last of `context` tokens sees, its own included."""
    if not isinstance(extent, Window) or context <= extent.width:
        return context
    return extent.width + min(extent.sinks, context - extent.width)


def seen_pairs(extent: Extent, context: int) -> int:
    """Pairs of query and key over a whole prompt: the sum of seen_tokens from 1 to context."""
    if not isinstance(extent, Window) or context <= extent.width:
        return context * (context + 1) // 2
    width, rest = extent.width, context - extent.width
    growing = min(extent.sinks, rest)
    sinks = growing * (growing + 1) // 2 + (rest - growing) * extent.sinks
    return width * (width + 1) // 2 + rest * width + sinks
