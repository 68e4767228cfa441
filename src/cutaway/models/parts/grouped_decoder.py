"""A decoder of grouped attention and gated layers, as data: most architectures are one of these.

One description gives the facts, the shape that estimates follow from, where each stored tensor
goes, and the model itself. Free of torch until build().
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from cutaway.core.facts import ModelFacts
from cutaway.core.layout import FULL, CacheSpec, Extent
from cutaway.core.shapes import Grouped, LayerShape, Mlp, ModelShape
from cutaway.core.weight_targets import Target
from cutaway.models.parts import rotary_config, tensor_names
from cutaway.models.parts.activation_words import activation_name
from cutaway.models.parts.architecture import Layout
from cutaway.models.parts.config_fields import Fields
from cutaway.models.parts.sizes import Sizes, facts_of, sizes_from_gguf, sizes_from_hf
from cutaway.models.parts.tensor_names import Names, Targets

if TYPE_CHECKING:
    from cutaway.blocks.attention.grouped import GroupedAttention
    from cutaway.blocks.block import Block
    from cutaway.blocks.positions import Frequencies
    from cutaway.blocks.slots import FeedForward, Norm
    from cutaway.blocks.transformer import Transformer


@dataclass(frozen=True, kw_only=True)
class AttentionForm:
    """What differs from Llama's attention; the parameters of blocks/attention/grouped.py.

    softmax_scale: None for head_size ** -0.5.   cap: of the scores.
    """

    has_bias: bool = False  # on queries, keys and values
    has_output_bias: bool = False
    has_head_norms: bool = False
    has_sinks: bool = False
    softmax_scale: float | None = None
    cap: float | None = None


class Sparse(Protocol):
    """Experts in place of the gated layer."""

    @property
    def shape(self) -> Mlp:
        """Their sizes, as estimates take them."""
        ...

    def targets(self, layout: Layout, at: str, to: str, width: int) -> Targets:
        """Where the tensors of a stored layer, at, go in the model's feed-forward, to."""
        ...

    def build(self, width: int) -> FeedForward:
        """The module with unset weights."""
        ...


_NAMES: Mapping[Layout, Names] = {"hf": tensor_names.HF, "gguf": tensor_names.GGUF}
SANDWICH: Mapping[Layout, Names] = {"hf": tensor_names.HF_SANDWICH, "gguf": tensor_names.GGUF}


@dataclass(frozen=True, kw_only=True)
class GroupedDecoder:
    """A decoder whose layers are grouped attention and a gated layer, or experts in its place.

    frequencies, extents: of each layer.
    gate:             the activation's name in blocks/activations.py.
    sparse:           experts of sparse_layers; the others have the gated layer.
    has_after_norms:  attention and feed-forward have a norm behind them too.
    has_offset_norms: norms multiply by 1 + w.
    multiplier:       of the embedding.
    names:            of stored tensors, by layout.
    is_interleaved:   GGUF files keep query and key rows in the order of interleaved pairs.
    """

    architecture: str
    sizes: Sizes
    frequencies: tuple[Frequencies | None, ...]
    extents: tuple[Extent, ...]
    gate: str = "silu"
    attention: AttentionForm = AttentionForm()
    has_mlp_bias: bool = False
    sparse: Sparse | None = None
    sparse_layers: frozenset[int] = frozenset()
    has_after_norms: bool = False
    has_offset_norms: bool = False
    multiplier: float | None = None
    logits_cap: float | None = None
    names: Mapping[Layout, Names] = field(default_factory=lambda: _NAMES)
    is_interleaved: bool = False

    @property
    def end_token_ids(self) -> tuple[int, ...]:
        """Ids that end an answer according to the model's own configuration."""
        return self.sizes.end_token_ids

    @property
    def cache_specs(self) -> tuple[CacheSpec, ...]:
        """Of each layer."""
        return self.shape.cache_specs

    @property
    def facts(self) -> ModelFacts:
        """What the engine has to know of the model before it is built."""
        return facts_of(
            self.sizes,
            self.architecture,
            targets=self.targets("hf"),
            cache_specs=self.cache_specs,
        )

    @property
    def shape(self) -> ModelShape:
        """Everything that sizes follow from, for estimates."""
        sizes = self.sizes
        return ModelShape(
            architecture=self.architecture,
            vocab_size=sizes.vocab_size,
            width=sizes.width,
            is_tied=sizes.is_tied,
            layers=tuple(self._layer_shape(layer) for layer in range(sizes.num_layers)),
            norms=sizes.width,
        )

    def _layer_shape(self, layer: int) -> LayerShape:
        sizes, form = self.sizes, self.attention
        sparse = self._sparse_of(layer)
        dense = Mlp(inner=sizes.inner, has_bias=self.has_mlp_bias)
        return LayerShape(
            attention=Grouped(
                num_heads=sizes.num_heads,
                num_groups=sizes.num_groups,
                head_size=sizes.head_size,
                extent=self.extents[layer],
                has_bias=form.has_bias,
                has_output_bias=form.has_output_bias,
                has_head_norms=form.has_head_norms,
                has_sinks=form.has_sinks,
            ),
            mlp=dense if sparse is None else sparse.shape,
            norms=sizes.width * (4 if self.has_after_norms else 2),
        )

    def _sparse_of(self, layer: int) -> Sparse | None:
        return self.sparse if layer in self.sparse_layers else None

    def targets(self, layout: Layout) -> Mapping[str, Target]:
        """Where each tensor of a file goes."""
        sizes, table = self.sizes, self.names[layout]
        shift = tensor_names.offset_shift(layout) if self.has_offset_norms else 0.0
        rest = 0.0 if self.has_offset_norms else 1.0
        targets = tensor_names.end_targets(sizes, table, shift=shift, rest=rest)
        widths = dict.fromkeys(self._norm_names, sizes.width)
        if self.attention.has_head_norms:
            widths |= {"query_norm": sizes.head_size, "key_norm": sizes.head_size}
        for layer in range(sizes.num_layers):
            targets |= tensor_names.norm_targets(table, layer, widths, shift=shift, rest=rest)
            targets |= self._attention_targets(layout, table, layer)
            sparse = self._sparse_of(layer)
            if sparse is None:
                targets |= tensor_names.gated_targets(
                    sizes, table, layer, has_bias=self.has_mlp_bias
                )
            else:
                at, to = table["layer"].format(layer), f"blocks.{layer}.mlp."
                targets |= sparse.targets(layout, at, to, sizes.width)
        return targets

    @property
    def _norm_names(self) -> tuple[str, ...]:
        return (
            tensor_names.SANDWICH_NORMS if self.has_after_norms else ("attention_norm", "mlp_norm")
        )

    def _attention_targets(self, layout: Layout, table: Names, layer: int) -> Targets:
        targets = tensor_names.attention_targets(
            self.sizes,
            table,
            layer,
            has_bias=self.attention.has_bias,
            has_output_bias=self.attention.has_output_bias,
            is_interleaved=self.is_interleaved and layout == "gguf",
        )
        if self.attention.has_sinks:
            sinks = Target(f"blocks.{layer}.attention.sinks", (self.sizes.num_heads,))
            targets[table["layer"].format(layer) + table["sinks"]] = sinks
        return targets

    def optional(self, layout: Layout) -> frozenset[str]:
        """Tensors that a file may hold although the model does not load them."""
        return tensor_names.optional_names(self.sizes, layout, self.names[layout])

    def build(self) -> Transformer:
        """The model with unset weights."""
        from cutaway.models.parts.decoder import decoder

        return decoder(
            self.sizes,
            [self._block(layer) for layer in range(self.sizes.num_layers)],
            norm=self._norm(self.sizes.width),
            multiplier=self.multiplier,
            cap=self.logits_cap,
        )

    def _block(self, layer: int) -> Block:
        from cutaway.blocks.activations import GATES
        from cutaway.blocks.block import Block
        from cutaway.blocks.mlp import GatedMLP

        sizes, sparse = self.sizes, self._sparse_of(layer)
        inner, gate = sizes.inner, GATES[self.gate]
        return Block(
            norms=(self._norm(sizes.width), self._norm(sizes.width)),
            attention=self._attention(layer),
            mlp=GatedMLP(sizes.width, inner, gate=gate, has_bias=self.has_mlp_bias)
            if sparse is None
            else sparse.build(sizes.width),
            after_norms=(self._norm(sizes.width), self._norm(sizes.width))
            if self.has_after_norms
            else None,
        )

    def _attention(self, layer: int) -> GroupedAttention:
        from cutaway.blocks.attention.grouped import GroupedAttention

        sizes, form = self.sizes, self.attention
        return GroupedAttention(
            sizes.width,
            num_heads=sizes.num_heads,
            num_groups=sizes.num_groups,
            head_size=sizes.head_size,
            frequencies=self.frequencies[layer],
            extent=self.extents[layer],
            has_bias=form.has_bias,
            has_output_bias=form.has_output_bias,
            head_norms=(self._norm(sizes.head_size), self._norm(sizes.head_size))
            if form.has_head_norms
            else None,
            softmax_scale=form.softmax_scale,
            cap=form.cap,
            has_sinks=form.has_sinks,
        )

    def _norm(self, width: int) -> Norm:
        from cutaway.blocks.norm import OffsetRMSNorm, RMSNorm

        return (OffsetRMSNorm if self.has_offset_norms else RMSNorm)(width, self.sizes.epsilon)


def decoder_from_hf(
    architecture: str,
    config: Fields,
    *,
    sizes: Sizes | None = None,
    extents: Sequence[Extent] | None = None,
    base: float = 10_000.0,
) -> GroupedDecoder:
    """Llama's form by a config.json; an architecture replaces what differs.

    sizes: read with other defaults.   extents: of each layer, where not all see all.
    base: of an absent rope_theta.
    """
    sizes = sizes_from_hf(config) if sizes is None else sizes
    frequencies = rotary_config.from_hf(
        config, head_size=sizes.head_size, max_length=sizes.max_length, base=base
    )
    return GroupedDecoder(
        architecture=architecture,
        sizes=rotary_config.stretch(sizes, frequencies),
        frequencies=(frequencies,) * sizes.num_layers,
        extents=(FULL,) * sizes.num_layers if extents is None else tuple(extents),
        gate=activation_name(config, "hidden_act", "silu"),
    )


def decoder_from_gguf(
    architecture: str,
    metadata: Fields,
    shapes: Mapping[str, tuple[int, ...]],
    factors: Mapping[str, tuple[float, ...]],
    *,
    base: float = 10_000.0,
) -> GroupedDecoder:
    """Llama's form by GGUF metadata; an architecture replaces what differs.

    metadata: fields without the prefix.
    shapes: of the tensors.   factors: as positions.from_gguf takes them, with base.
    """
    sizes = sizes_from_gguf(metadata, shapes)
    frequencies = rotary_config.from_gguf(
        metadata,
        head_size=sizes.head_size,
        max_length=sizes.max_length,
        factors=factors,
        base=base,
    )
    return GroupedDecoder(
        architecture=architecture,
        sizes=sizes,
        frequencies=(frequencies,) * sizes.num_layers,
        extents=(FULL,) * sizes.num_layers,
    )
