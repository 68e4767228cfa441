"""Qwen3.5, its text, dense or with experts: three layers with a state for each with attention."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from cutaway.blocks.activations import Gate
from cutaway.blocks.attention.delta import ByKind, DeltaLayer, DeltaSizes
from cutaway.blocks.attention.grouped import grouped_cache_spec
from cutaway.blocks.block import Block
from cutaway.blocks.linear import Linear
from cutaway.blocks.mlp import GatedMLP
from cutaway.blocks.moe import Experts, MixtureOfExperts
from cutaway.blocks.norm import OffsetRMSNorm
from cutaway.blocks.positions import Frequencies
from cutaway.blocks.router import Router, SoftmaxThenTop
from cutaway.blocks.transformer import Transformer
from cutaway.core.errors import UnsupportedModelError
from cutaway.core.facts import ModelFacts
from cutaway.core.weights import Target
from cutaway.models import delta, experts, names, positions
from cutaway.models.activations import gate_of
from cutaway.models.architecture import Layout
from cutaway.models.decoder import decoder
from cutaway.models.delta import FULL_LAYER
from cutaway.models.experts import ExpertSizes
from cutaway.models.fields import Fields
from cutaway.models.names import HF, Names, Targets, matrix
from cutaway.models.sizes import Sizes, facts_of, sizes_from_hf


@dataclass(frozen=True, kw_only=True)
class Qwen35:
    """Configuration of a Qwen3.5 model's text part. Source: transformers' Qwen3_5TextModel.

    kinds: STATE_LAYER or FULL_LAYER, by layer. experts: of every layer, or None.
    has_stacks: whether the files keep the experts of a layer in one tensor per matrix.
    """

    sizes: Sizes
    delta: DeltaSizes
    experts: ExpertSizes | None
    shared_inner: int
    kinds: tuple[str, ...]
    frequencies: Frequencies | None
    gate: Gate
    has_stacks: bool = False

    @classmethod
    def from_hf(cls, config: Fields) -> Qwen35:
        """Read a config.json; one that counts experts has them in every layer."""
        if config.flag("attention_bias", False):
            raise UnsupportedModelError(
                f"{config.file}: attention_bias is true; a Qwen3.5 model has false."
            )
        sparse, shared_inner = _experts(config) if config.has("num_experts") else (None, 0)
        inner = None if sparse is None else sparse.inner
        sizes = sizes_from_hf(config, head_size=256, inner=inner)
        frequencies = positions.from_hf(
            config, head_size=delta.turning_size(config, sizes), max_length=sizes.max_length
        )
        return cls(
            sizes=positions.stretched(sizes, frequencies),
            delta=delta.delta_sizes(config, sizes.width),
            experts=sparse,
            shared_inner=shared_inner,
            kinds=delta.delta_kinds(config, sizes.num_layers),
            frequencies=frequencies,
            gate=gate_of(config, "hidden_act", "silu"),
        )

    @property
    def end_token_ids(self) -> tuple[int, ...]:
        return self.sizes.end_token_ids

    @property
    def facts(self) -> ModelFacts:
        full = grouped_cache_spec(self.sizes.num_groups, self.sizes.head_size)
        specs = [full if kind == FULL_LAYER else self.delta.cache_spec for kind in self.kinds]
        return facts_of(self.sizes, "qwen3_5", targets=self.targets("hf"), cache_specs=specs)

    def fitting(self, stored: Collection[str]) -> Qwen35:
        """The same for files that hold these names: newer ones keep experts in stacks."""
        return replace(self, has_stacks=any(name.endswith(".experts.down_proj") for name in stored))

    def build(self) -> Transformer:
        blocks = [self._block(kind) for kind in self.kinds]
        return decoder(self.sizes, blocks, norm=self._norm())

    def _norm(self) -> OffsetRMSNorm:
        return OffsetRMSNorm(self.sizes.width, self.sizes.epsilon)

    def _block(self, kind: str) -> Block:
        state = DeltaLayer(self.delta, reader=ByKind(self.delta), epsilon=self.sizes.epsilon)
        is_full = kind == FULL_LAYER
        return Block(
            norms=(self._norm(), self._norm()),
            attention=delta.gated_attention(self.sizes, self.frequencies) if is_full else state,
            mlp=self._dense(self.sizes.inner)
            if self.experts is None
            else self._mixture(self.experts),
        )

    def _dense(self, inner: int) -> GatedMLP:
        return GatedMLP(self.sizes.width, inner, gate=self.gate)

    def _mixture(self, sizes: ExpertSizes) -> MixtureOfExperts:
        width, count = self.sizes.width, sizes.num_experts
        return MixtureOfExperts(
            Router(width, count, SoftmaxThenTop(sizes.num_chosen, is_renormalized=True)),
            Experts(count, width, sizes.inner, gate=self.gate),
            self._dense(self.shared_inner),
            shared_gate=Linear(width, (1,)),
        )

    def targets(self, layout: Layout) -> Mapping[str, Target]:
        assert layout == "hf", "only Hugging Face's layout is read"
        targets = names.end_targets(self.sizes, HF, rest=0.0)
        for layer, kind in enumerate(self.kinds):
            targets |= self._layer_targets(HF, layer, kind)
        return targets

    def _layer_targets(self, table: Names, layer: int, kind: str) -> Targets:
        sizes, at, to = self.sizes, table["layer"].format(layer), f"blocks.{layer}."
        widths = {"attention_norm": sizes.width, "mlp_norm": sizes.width}
        targets = names.norm_targets(table, layer, widths, rest=0.0)
        if kind == FULL_LAYER:
            targets |= delta.gated_targets(sizes, table, layer)
        else:
            targets |= _state_targets(self.delta, f"{at}linear_attn.", f"{to}attention.")
        if self.experts is None:
            return targets | names.gated_targets(sizes, table, layer)
        return targets | self._expert_targets(f"{at}mlp.", f"{to}mlp.", self.experts)

    def _expert_targets(self, at: str, to: str, sizes: ExpertSizes) -> Targets:
        width, shared = self.sizes.width, replace(self.sizes, inner=self.shared_inner)
        count, inner = sizes.num_experts, sizes.inner
        stored = f"{at}experts.{{}}"
        stacks = {
            f"{at}experts.gate_up_proj": Target(
                f"{to}experts.gate_up.weight", (count, 2 * inner, width)
            ),
            f"{at}experts.down_proj": Target(f"{to}experts.down.weight", (count, width, inner)),
        }
        return {
            **experts.router_targets(f"{at}gate", to, sizes, width),
            **(
                stacks
                if self.has_stacks
                else experts.separate_targets(stored, to, sizes, width, names=experts.PROJECTIONS)
            ),
            **experts.shared_targets(f"{at}shared_expert.", to, shared, has_bias=False),
            **matrix(f"{at}shared_expert_gate", f"{to}shared_gate", 0, (1, width)),
        }

    def optional(self, layout: Layout) -> frozenset[str]:
        """With the layer that drafts further tokens, which published files hold."""
        own = ("fc", "norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden")
        drafting = self._layer_targets({**HF, "layer": "mtp.layers.{}."}, 0, FULL_LAYER)
        spare = {f"mtp.{name}.weight" for name in own} | drafting.keys()
        return names.optional_names(self.sizes, layout, HF) | spare


def _experts(config: Fields) -> tuple[ExpertSizes, int]:
    """And the size of the layer that every token goes through."""
    inner = config.integer("moe_intermediate_size", 512)
    sizes = ExpertSizes.read(config, "num_experts", "num_experts_per_tok", inner, default=8)
    return sizes, config.integer("shared_expert_intermediate_size", 512)


def _state_targets(sizes: DeltaSizes, at: str, to: str) -> Targets:
    width, values = sizes.width, sizes.num_value_heads * sizes.value_size
    heads = sizes.num_value_heads
    return {
        **matrix(f"{at}in_proj_qkv", f"{to}reader.joined", 0, (sizes.channels, width)),
        **matrix(f"{at}in_proj_z", f"{to}reader.joined", 1, (values, width)),
        **matrix(f"{at}in_proj_b", f"{to}reader.rates", 0, (heads, width)),
        **matrix(f"{at}in_proj_a", f"{to}reader.rates", 1, (heads, width)),
        **delta.state_targets(sizes, at, to),
    }
