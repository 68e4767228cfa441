"""A decoder of grouped attention and dense layers, as data: most architectures are one of these.

One description gives the facts, the shape that estimates follow from, where each stored tensor
goes, and the model itself. Free of torch until build().
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from cutaway.core.facts import ModelFacts
from cutaway.core.layout import FULL, CacheSpec, Extent
from cutaway.core.shapes import Grouped, LayerShape, Mlp, ModelShape
from cutaway.core.weight_targets import PairedRows, Target
from cutaway.models.parts import rotary_config, tensor_names
from cutaway.models.parts.activation_words import activation_name
from cutaway.models.parts.architecture import Layout
from cutaway.models.parts.config_fields import Fields
from cutaway.models.parts.layer_parts import AttentionForm, Mixer, NormKind, Sparse
from cutaway.models.parts.sizes import Sizes, facts_of, sizes_from_gguf, sizes_from_hf
from cutaway.models.parts.tensor_names import Names, Targets

if TYPE_CHECKING:
    from cutaway.blocks.attention.grouped import GroupedAttention
    from cutaway.blocks.block import Block
    from cutaway.blocks.positions import Frequencies
    from cutaway.blocks.slots import FeedForward, Norm
    from cutaway.blocks.transformer import Transformer

IN_GGUF: frozenset[Layout] = frozenset({"gguf"})
IN_BOTH: frozenset[Layout] = frozenset({"hf", "gguf"})
_NAMES: Mapping[Layout, Names] = {"hf": tensor_names.HF, "gguf": tensor_names.GGUF}
SANDWICH: Mapping[Layout, Names] = {"hf": tensor_names.HF_SANDWICH, "gguf": tensor_names.GGUF}

# Where the norms of a layer stand: before attention and feed-forward, behind both, on either side,
# or one before both, which then stand side by side.
Placement = Literal["before", "after", "around", "shared"]
_NORMS_AT: Mapping[Placement, tuple[str, ...]] = {
    "before": ("attention_norm", "mlp_norm"),
    "after": ("attention_after_norm", "mlp_after_norm"),
    "around": tensor_names.SANDWICH_NORMS,
    "shared": ("attention_norm",),
}


@dataclass(frozen=True, kw_only=True)
class GroupedDecoder:
    """A decoder whose layers are grouped attention and a dense layer, or experts in its place.

    frequencies, extents: of each layer.
    gate:              the activation's name in blocks/activations.py.
    is_gated:          whether dense layers have a gate beside up; else gate names what is done
                       to up alone.
    has_joined_gate:   one stored matrix holds gate and up.
    sparse:            experts of sparse_layers; the others have the dense layer.
    mixers:            what layers have in place of attention, where it is something else.
    norm, norms_at:    the kind of every norm, and where those of a layer stand.
    norms_embedding:   whether one such norm stands behind the embedding too; of kinds without
                       weights alone.
    multiplier:        of the embedding.   update_multiplier: of what attention and feed-forward
                       add.   logits_multiplier, logits_cap: of the logits.
    names:             of stored tensors, by layout.
    interleaved:       layouts whose files keep query and key rows in the order of rotary pairs.
    """

    architecture: str
    sizes: Sizes
    frequencies: tuple[Frequencies | None, ...]
    extents: tuple[Extent, ...]
    gate: str = "silu"
    is_gated: bool = True
    attention: AttentionForm = field(default_factory=AttentionForm)
    has_mlp_bias: bool = False
    has_joined_gate: bool = False
    sparse: Sparse | None = None
    sparse_layers: frozenset[int] = frozenset()
    mixers: Mapping[int, Mixer] = field(default_factory=dict[int, Mixer])
    norm: NormKind = "rms"
    norms_at: Placement = "before"
    norms_embedding: bool = False
    multiplier: float | None = None
    update_multiplier: float | None = None
    logits_multiplier: float | None = None
    logits_cap: float | None = None
    names: Mapping[Layout, Names] = field(default_factory=lambda: _NAMES)
    interleaved: frozenset[Layout] = frozenset()

    @property
    def end_token_ids(self) -> tuple[int, ...]:
        """Ids that end an answer according to the model's own configuration."""
        return self.sizes.end_token_ids

    @property
    def cache_specs(self) -> tuple[CacheSpec, ...]:
        """Of each layer."""
        own = iter(self.shape.cache_specs)
        layers = range(self.sizes.num_layers)
        return tuple(self.mixers[i].cache_spec if i in self.mixers else next(own) for i in layers)

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
            norms=self._norm_width,
        )

    @property
    def _norm_width(self) -> int:
        """Numbers that a norm of the stream learned."""
        return self.sizes.width if self._learns_norms else 0

    @property
    def _learns_norms(self) -> bool:
        return self.norm not in ("bare", "unit")

    def _layer_shape(self, layer: int) -> LayerShape:
        sizes, form = self.sizes, self.attention
        sparse, mixer = self._sparse_of(layer), self.mixers.get(layer)
        dense = Mlp(inner=sizes.inner, is_gated=self.is_gated, has_bias=self.has_mlp_bias)
        grouped = Grouped(
            num_heads=sizes.num_heads,
            num_groups=sizes.num_groups,
            head_size=sizes.head_size,
            extent=self.extents[layer],
            has_bias=form.has_bias,
            has_output_bias=form.has_output_bias,
            has_head_norms=form.has_head_norms and self._learns_norms,
            norms_rows=form.norms_rows or (form.has_head_norms and self.norm == "mean"),
            has_sinks=form.has_sinks,
        )
        return LayerShape(
            attention=grouped if mixer is None else mixer.shape,
            mlp=dense if sparse is None else sparse.shape,
            norms=self._norm_width * len(_NORMS_AT[self.norms_at]),
        )

    def _sparse_of(self, layer: int) -> Sparse | None:
        return self.sparse if layer in self.sparse_layers else None

    def targets(self, layout: Layout) -> Mapping[str, Target]:
        """Where each tensor of a file goes."""
        sizes, table = self.sizes, self.names[layout]
        is_offset = self.norm == "offset"
        shift = tensor_names.offset_shift(layout) if is_offset else 0.0
        rest = 0.0 if is_offset else 1.0
        has_norm = self._learns_norms
        targets = tensor_names.end_targets(sizes, table, shift=shift, rest=rest, has_norm=has_norm)
        widths = dict.fromkeys(_NORMS_AT[self.norms_at] if has_norm else (), sizes.width)
        for layer in range(sizes.num_layers):
            at, to = table["layer"].format(layer), f"blocks.{layer}."
            targets |= tensor_names.norm_targets(table, layer, widths, shift=shift, rest=rest)
            if layer in self.mixers:
                targets |= self.mixers[layer].targets(layout, at, f"{to}attention.", sizes.width)
            else:
                targets |= self._attention_targets(layout, layer, shift=shift, rest=rest)
            sparse = self._sparse_of(layer)
            if sparse is None:
                targets |= self._dense_targets(table, layer)
            else:
                targets |= sparse.targets(layout, at, f"{to}mlp.", sizes.width)
        return targets

    def _dense_targets(self, table: Names, layer: int) -> Targets:
        given, has_bias = (self.sizes, table, layer), self.has_mlp_bias
        if not self.is_gated:
            return tensor_names.plain_targets(*given, has_bias=has_bias)
        is_joined = self.has_joined_gate
        return tensor_names.gated_targets(*given, has_bias=has_bias, is_joined=is_joined)

    def _attention_targets(
        self, layout: Layout, layer: int, *, shift: float, rest: float
    ) -> Targets:
        sizes, form, table = self.sizes, self.attention, self.names[layout]
        at, to = table["layer"].format(layer), f"blocks.{layer}.attention."
        turning = self._count_paired(layer) if layout in self.interleaved else None
        targets = tensor_names.attention_targets(
            *(sizes, table, layer),
            has_bias=form.has_bias,
            has_output_bias=form.has_output_bias,
            is_joined=form.is_joined,
            turning=turning,
        )
        if form.has_sinks:
            targets[at + table["sinks"]] = Target(f"{to}sinks", (sizes.num_heads,))
        counts = {"query_norm": sizes.num_heads, "key_norm": sizes.num_groups}
        has_weights = form.has_head_norms and self._learns_norms
        for name, count in counts.items() if has_weights else ():
            shape = (count, sizes.head_size) if self.norm == "mean" else (sizes.head_size,)
            targets[f"{at}{table[name]}.weight"] = Target(
                f"{to}{name}.weight",
                (count * sizes.head_size,) if form.norms_rows else shape,
                None
                if turning is None
                else PairedRows(1, sizes.head_size, turning, axis=len(shape) - 1),
                shift=shift,
                rest=rest,
            )
        return targets

    def _count_paired(self, layer: int) -> int:
        """Rows of a head of which a file may keep those side by side that turn together."""
        frequencies = self.frequencies[layer]
        return self.sizes.head_size if frequencies is None else frequencies.size

    def optional(self, layout: Layout) -> frozenset[str]:
        """Tensors that a file may hold although the model does not load them."""
        return tensor_names.optional_names(self.sizes, layout, self.names[layout])

    def build(self) -> Transformer:
        """The model with unset weights."""
        from cutaway.models.parts.decoder import decoder

        assert not (self.norms_embedding and self._learns_norms), "no file has weights of it"
        return decoder(
            self.sizes,
            [self._block(layer) for layer in range(self.sizes.num_layers)],
            norm=self._norm(),
            first_norm=self._norm() if self.norms_embedding else None,
            multiplier=self.multiplier,
            logits_multiplier=self.logits_multiplier,
            cap=self.logits_cap,
        )

    def _block(self, layer: int) -> Block:
        from torch.nn import Identity

        from cutaway.blocks.block import Block

        mixer, places = self.mixers.get(layer), _NORMS_AT[self.norms_at]
        first = self._norm() if "attention_norm" in places else Identity()
        second = self._norm() if "mlp_norm" in places else Identity()
        return Block(
            norms=(first, None if self.norms_at == "shared" else second),
            attention=self._attention(layer) if mixer is None else mixer.build(self.sizes.width),
            mlp=self._mlp(layer),
            after_norms=(self._norm(), self._norm()) if "mlp_after_norm" in places else None,
            multiplier=self.update_multiplier,
        )

    def _mlp(self, layer: int) -> FeedForward:
        from cutaway.blocks.activations import ACTIVATIONS, GATES
        from cutaway.blocks.mlp import GatedMLP, PlainMLP

        sparse, has_bias = self._sparse_of(layer), self.has_mlp_bias
        if sparse is not None:
            return sparse.build(self.sizes.width)
        shape = (self.sizes.width, self.sizes.inner)
        if not self.is_gated:
            return PlainMLP(*shape, activation=ACTIVATIONS[self.gate], has_bias=has_bias)
        return GatedMLP(
            *shape, gate=GATES[self.gate], has_bias=has_bias, is_joined=self.has_joined_gate
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
            is_fused=form.is_joined,
            head_norms=(self._head_norm(sizes.num_heads), self._head_norm(sizes.num_groups))
            if form.has_head_norms
            else None,
            norms_rows=form.norms_rows,
            clip=form.clip,
            softmax_scale=form.softmax_scale,
            cap=form.cap,
            has_sinks=form.has_sinks,
        )

    def _head_norm(self, count: int) -> Norm:
        """Of so many heads, or of all of them together."""
        from cutaway.blocks.norm import HeadLayerNorm

        size = self.sizes.head_size
        if self.attention.norms_rows:
            return self._norm(count * size)
        if self.norm == "mean":
            return HeadLayerNorm(count, size, self.sizes.epsilon)
        return self._norm(size)

    def _norm(self, width: int | None = None) -> Norm:
        from cutaway.blocks.norm import (
            LayerNorm,
            OffsetRMSNorm,
            RMSNorm,
            UnitLayerNorm,
            UnitRMSNorm,
            WideRMSNorm,
        )

        width, epsilon = self.sizes.width if width is None else width, self.sizes.epsilon
        if self.norm == "bare":
            return UnitLayerNorm(epsilon)
        if self.norm == "unit":
            return UnitRMSNorm(epsilon)
        if self.norm == "mean":
            return LayerNorm(width, epsilon, has_bias=False)
        by_square = {"rms": RMSNorm, "wide": WideRMSNorm, "offset": OffsetRMSNorm}
        return by_square[self.norm](width, epsilon)


def decoder_from_hf(
    architecture: str,
    config: Fields,
    *,
    sizes: Sizes | None = None,
    extents: Sequence[Extent] | None = None,
    kind: str | None = None,
    base: float = 10_000.0,
    share: float = 1.0,
) -> GroupedDecoder:
    """Llama's form by a config.json; an architecture replaces what differs.

    sizes: read with other defaults.   extents: of each layer, where not all see all.
    kind: of layer whose positions are read.
    base, share: of an absent rope_theta and partial_rotary_factor.
    """
    sizes = sizes_from_hf(config) if sizes is None else sizes
    frequencies = rotary_config.from_hf(
        config,
        head_size=sizes.head_size,
        max_length=sizes.max_length,
        kind=kind,
        base=base,
        share=share,
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
    sizes: Sizes | None = None,
    base: float = 10_000.0,
) -> GroupedDecoder:
    """Llama's form by GGUF metadata; an architecture replaces what differs.

    metadata: fields without the prefix.   sizes: read with other names.
    shapes: of the tensors.   factors: as positions.from_gguf takes them, with base.
    """
    sizes = sizes_from_gguf(metadata, shapes) if sizes is None else sizes
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
