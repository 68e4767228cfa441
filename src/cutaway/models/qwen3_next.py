"""Qwen3-Next: three layers with a state for each one with gated attention, and many experts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from cutaway.blocks.activations import Gate
from cutaway.blocks.attention.delta import ByHead, DeltaLayer, DeltaSizes
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
from cutaway.models.delta import FULL_LAYER, STATE_LAYER
from cutaway.models.experts import ExpertSizes
from cutaway.models.fields import Fields
from cutaway.models.names import HF, Names, Targets, matrix
from cutaway.models.sizes import Sizes, facts_of, sizes_from_hf


@dataclass(frozen=True, kw_only=True)
class Qwen3Next:
    """Configuration of a Qwen3-Next model. Source: transformers' Qwen3NextModel.

    kinds: STATE_LAYER or FULL_LAYER, by layer. sparse_layers: those with experts.
    """

    sizes: Sizes
    delta: DeltaSizes
    experts: ExpertSizes
    shared_inner: int
    kinds: tuple[str, ...]
    sparse_layers: frozenset[int]
    is_renormalized: bool
    frequencies: Frequencies | None
    gate: Gate

    @classmethod
    def from_hf(cls, config: Fields) -> Qwen3Next:
        """Read a config.json."""
        if config.flag("attention_bias", False):
            raise UnsupportedModelError(
                f"{config.file}: attention_bias is true; a Qwen3-Next model has false."
            )
        sizes = sizes_from_hf(config, head_size=256)
        frequencies = positions.from_hf(
            config, head_size=delta.turning_size(config, sizes), max_length=sizes.max_length
        )
        dense, every = config.integers("mlp_only_layers"), config.integer("decoder_sparse_step", 1)
        count = "num_experts" if config.has("num_experts") else "num_local_experts"
        inner = config.integer("moe_intermediate_size")
        return cls(
            sizes=positions.stretched(sizes, frequencies),
            delta=delta.delta_sizes(config, sizes.width),
            experts=ExpertSizes.read(config, count, "num_experts_per_tok", inner, default=10),
            shared_inner=config.integer("shared_expert_intermediate_size"),
            kinds=delta.delta_kinds(config, sizes.num_layers),
            sparse_layers=frozenset(
                layer
                for layer in range(sizes.num_layers)
                if layer not in dense and (layer + 1) % every == 0
            ),
            is_renormalized=config.flag("norm_topk_prob", True),
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
        return facts_of(self.sizes, "qwen3_next", targets=self.targets("hf"), cache_specs=specs)

    def build(self) -> Transformer:
        blocks = [self._block(layer) for layer in range(self.sizes.num_layers)]
        return decoder(self.sizes, blocks, norm=self._norm(self.sizes.width))

    def _norm(self, width: int) -> OffsetRMSNorm:
        return OffsetRMSNorm(width, self.sizes.epsilon)

    def _block(self, layer: int) -> Block:
        width = self.sizes.width
        is_state = self.kinds[layer] == STATE_LAYER
        return Block(
            norms=(self._norm(width), self._norm(width)),
            attention=DeltaLayer(self.delta, reader=ByHead(self.delta), epsilon=self.sizes.epsilon)
            if is_state
            else delta.gated_attention(self.sizes, self.frequencies),
            mlp=self._experts() if layer in self.sparse_layers else self._dense(self.sizes.inner),
        )

    def _dense(self, inner: int) -> GatedMLP:
        return GatedMLP(self.sizes.width, inner, gate=self.gate)

    def _experts(self) -> MixtureOfExperts:
        width, count = self.sizes.width, self.experts.num_experts
        rule = SoftmaxThenTop(self.experts.num_chosen, is_renormalized=self.is_renormalized)
        return MixtureOfExperts(
            Router(width, count, rule),
            Experts(count, width, self.experts.inner, gate=self.gate),
            self._dense(self.shared_inner),
            shared_gate=Linear(width, (1,)),
        )

    def targets(self, layout: Layout) -> Mapping[str, Target]:
        assert layout == "hf", "only Hugging Face's layout is read"
        targets = names.end_targets(self.sizes, HF, rest=0.0)
        for layer in range(self.sizes.num_layers):
            targets |= self._layer_targets(
                HF, layer, self.kinds[layer], is_sparse=layer in self.sparse_layers
            )
        return targets

    def _layer_targets(self, table: Names, layer: int, kind: str, *, is_sparse: bool) -> Targets:
        sizes, at, to = self.sizes, table["layer"].format(layer), f"blocks.{layer}."
        widths = {"attention_norm": sizes.width, "mlp_norm": sizes.width}
        targets = names.norm_targets(table, layer, widths, rest=0.0)
        if kind == STATE_LAYER:
            targets |= _state_targets(self.delta, f"{at}linear_attn.", f"{to}attention.")
        else:
            targets |= delta.gated_targets(sizes, table, layer)
        if is_sparse:
            return targets | self._expert_targets(f"{at}mlp.", f"{to}mlp.")
        return targets | names.gated_targets(sizes, table, layer)

    def _expert_targets(self, at: str, to: str) -> Targets:
        width, shared = self.sizes.width, replace(self.sizes, inner=self.shared_inner)
        return {
            **experts.router_targets(f"{at}gate", to, self.experts, width),
            **experts.separate_targets(
                f"{at}experts.{{}}", to, self.experts, width, names=experts.PROJECTIONS
            ),
            **experts.shared_targets(f"{at}shared_expert.", to, shared, has_bias=False),
            **matrix(f"{at}shared_expert_gate", f"{to}shared_gate", 0, (1, width)),
        }

    def optional(self, layout: Layout) -> frozenset[str]:
        """With the layer that drafts further tokens, which published files hold."""
        own = ("fc", "norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden")
        table = {**HF, "layer": "mtp.layers.{}."}
        drafting = self._layer_targets(table, 0, FULL_LAYER, is_sparse=True)
        spare = {f"mtp.{name}.weight" for name in own} | drafting.keys()
        return names.optional_names(self.sizes, layout, HF) | spare


def _state_targets(sizes: DeltaSizes, at: str, to: str) -> Targets:
    values, heads, width = (
        sizes.num_value_heads * sizes.value_size,
        sizes.num_value_heads,
        sizes.width,
    )
    return {
        **matrix(f"{at}in_proj_qkvz", f"{to}reader.joined", 0, (sizes.channels + values, width)),
        **matrix(f"{at}in_proj_ba", f"{to}reader.rates", 0, (2 * heads, width)),
        **delta.state_targets(sizes, at, to),
    }
