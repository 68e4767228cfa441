"""What the DeepSeek models have in common: latent attention, and experts beside shared ones.

No architecture stands here: the file of a version says how it chooses experts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from cutaway.core.errors import ModelFormatError
from cutaway.core.facts import ModelFacts
from cutaway.core.shapes import LayerShape, Mlp, ModelShape
from cutaway.core.weight_targets import Target
from cutaway.models.parts import expert_layers, rotary_config, tensor_names
from cutaway.models.parts.activation_words import activation_name
from cutaway.models.parts.architecture import Layout
from cutaway.models.parts.config_fields import Fields
from cutaway.models.parts.expert_layers import ExpertSizes
from cutaway.models.parts.latent_layers import LatentSizes, latent_from_hf
from cutaway.models.parts.sizes import Sizes, facts_of, sizes_from_hf
from cutaway.models.parts.tensor_names import GGUF, HF, Targets

if TYPE_CHECKING:
    from cutaway.blocks.block import Block
    from cutaway.blocks.mlp import GatedMLP
    from cutaway.blocks.moe import MixtureOfExperts
    from cutaway.blocks.positions import Frequencies
    from cutaway.blocks.router import Rule
    from cutaway.blocks.transformer import Transformer


class GroupSizes(NamedTuple):
    """Groups of experts, as blocks/router.py's ExpertGroups has them."""

    num_groups: int
    num_chosen: int
    num_counted: int


@dataclass(frozen=True, kw_only=True)
class Deepseek:
    """Configuration of a DeepSeek model.

    num_shared:     experts that every token goes through, built as one wider layer.
    num_dense:      so many first layers have one gated layer in place of experts.
    num_predicting: further layers in the file, which draft tokens and are not loaded.
    make_rule:      of choice; one for each layer.
    has_correction: the rule has a learned correction, which the file keeps.
    """

    architecture: str
    sizes: Sizes
    attention: LatentSizes
    frequencies: Frequencies | None
    pairs: str
    experts: ExpertSizes
    num_shared: int
    num_dense: int
    num_predicting: int
    gate: str
    has_mlp_bias: bool
    has_correction: bool
    make_rule: Callable[[], Rule]

    @property
    def end_token_ids(self) -> tuple[int, ...]:
        """Ids that end an answer according to the model's own configuration."""
        return self.sizes.end_token_ids

    @property
    def facts(self) -> ModelFacts:
        """What the engine has to know of the model before it is built."""
        return facts_of(
            self.sizes,
            self.architecture,
            targets=self.targets("hf"),
            cache_specs=self.shape.cache_specs,
        )

    @property
    def shape(self) -> ModelShape:
        """Everything that sizes follow from, for estimates."""
        sizes, sparse = self.sizes, self.experts
        dense = Mlp(inner=sizes.inner, has_bias=self.has_mlp_bias)
        mixed = replace(
            sparse.shape,
            inner=self.num_shared * sparse.inner,
            has_bias=self.has_mlp_bias and self.num_shared > 0,
            router_vectors=sparse.num_experts if self.has_correction else 0,
        )
        layers = [
            LayerShape(
                attention=self.attention.shape,
                mlp=dense if layer < self.num_dense else mixed,
                norms=2 * sizes.width,
            )
            for layer in range(sizes.num_layers)
        ]
        return ModelShape(
            architecture=self.architecture,
            vocab_size=sizes.vocab_size,
            width=sizes.width,
            is_tied=sizes.is_tied,
            layers=tuple(layers),
            norms=sizes.width,
        )

    def build(self) -> Transformer:
        """The model with unset weights."""
        from cutaway.blocks.norm import RMSNorm
        from cutaway.models.parts.decoder import decoder

        sizes = self.sizes
        blocks = [self._block(layer) for layer in range(sizes.num_layers)]
        return decoder(sizes, blocks, norm=RMSNorm(sizes.width, sizes.epsilon))

    def _block(self, layer: int) -> Block:
        from cutaway.blocks.block import Block
        from cutaway.blocks.norm import RMSNorm

        sizes = self.sizes
        return Block(
            norms=(RMSNorm(sizes.width, sizes.epsilon), RMSNorm(sizes.width, sizes.epsilon)),
            attention=self.attention.build(self.frequencies, pairs=self.pairs),
            mlp=self._dense(sizes.inner) if layer < self.num_dense else self._experts(),
        )

    def _dense(self, inner: int) -> GatedMLP:
        from cutaway.blocks.activations import GATES
        from cutaway.blocks.mlp import GatedMLP

        gate = GATES[self.gate]
        return GatedMLP(self.sizes.width, inner, gate=gate, has_bias=self.has_mlp_bias)

    def _experts(self) -> MixtureOfExperts:
        from cutaway.blocks.activations import GATES
        from cutaway.blocks.moe import Experts, MixtureOfExperts
        from cutaway.blocks.router import Router

        width, sizes = self.sizes.width, self.experts
        return MixtureOfExperts(
            Router(width, sizes.num_experts, self.make_rule()),
            Experts(sizes.num_experts, width, sizes.inner, gate=GATES[self.gate]),
            self._dense(self.num_shared * sizes.inner) if self.num_shared else None,
        )

    def targets(self, layout: Layout) -> Mapping[str, Target]:
        """Where each tensor of a file goes."""
        sizes, table = self.sizes, tensor_names.in_layout(layout)
        make_experts = self._expert_targets if layout == "hf" else self._stacked_targets
        targets = tensor_names.end_targets(sizes, table)
        for layer in range(sizes.num_layers):
            widths = {"attention_norm": sizes.width, "mlp_norm": sizes.width}
            targets |= tensor_names.norm_targets(table, layer, widths)
            targets |= self.attention.targets(table["layer"].format(layer), layer, layout)
            if layer < self.num_dense:
                targets |= tensor_names.gated_targets(
                    sizes, table, layer, has_bias=self.has_mlp_bias
                )
            else:
                targets |= make_experts(layer)
        return targets

    def _expert_targets(self, layer: int) -> Targets:
        at, to = f"{HF['layer'].format(layer)}mlp.", f"blocks.{layer}.mlp."
        width, sizes = self.sizes.width, self.experts
        targets = expert_layers.router_targets(f"{at}gate", to, sizes, width)
        targets |= expert_layers.separate_targets(
            f"{at}experts.{{}}", to, sizes, width, names=expert_layers.PROJECTIONS
        )
        targets |= self._correction_target(f"{at}gate.e_score_correction_bias", to)
        if self.num_shared:
            targets |= expert_layers.shared_targets(
                f"{at}shared_experts.",
                to,
                self.sizes.width,
                self._shared_sizes.inner,
                has_bias=self.has_mlp_bias,
            )
        return targets

    def _stacked_targets(self, layer: int) -> Targets:
        """The same as GGUF files keep them."""
        at, to = GGUF["layer"].format(layer), f"blocks.{layer}.mlp."
        targets = expert_layers.stacked_targets(at, to, self.experts, self.sizes.width)
        targets |= self._correction_target(f"{at}exp_probs_b.bias", to)
        if self.num_shared:
            targets |= expert_layers.stacked_shared_targets(
                at, to, self.sizes.width, self._shared_sizes.inner
            )
        return targets

    def _correction_target(self, stored: str, to: str) -> Targets:
        target = Target(f"{to}router.rule.correction", (self.experts.num_experts,))
        return {stored: target} if self.has_correction else {}

    @property
    def _shared_sizes(self) -> Sizes:
        return replace(self.sizes, inner=self.num_shared * self.experts.inner)

    def optional(self, layout: Layout) -> frozenset[str]:
        """Tensors that a file may hold although the model does not load them."""
        spare = tensor_names.optional_names(self.sizes, layout, tensor_names.in_layout(layout))
        first = self.sizes.num_layers
        layers = range(first, first + self.num_predicting)
        return spare | {name for layer in layers for name in self._predicting_names(layer)}

    def _predicting_names(self, layer: int) -> frozenset[str]:
        """What a layer that drafts tokens holds beside what every layer has."""
        at = HF["layer"].format(layer)
        widths = {"attention_norm": 1, "mlp_norm": 1}
        own = (
            *("eh_proj.weight", "enorm.weight", "hnorm.weight", "embed_tokens.weight"),
            *("shared_head.norm.weight", "shared_head.head.weight"),
        )
        return frozenset(
            {at + name for name in own}
            | tensor_names.norm_targets(HF, layer, widths).keys()
            | self.attention.targets(at, layer).keys()
            | self._expert_targets(layer).keys()
        )


def read_deepseek(
    config: Fields,
    architecture: str,
    *,
    pairs: str,
    make_rule: Callable[[ExpertSizes], Rule],
    has_correction: bool,
) -> Deepseek:
    """Read what the versions' config.json files have in common. make_rule: one per layer."""
    attention, frequencies = latent_from_hf(config)
    sizes = replace(sizes_from_hf(config), head_size=attention.head_size)
    sparse = ExpertSizes.read(
        config, "n_routed_experts", "num_experts_per_tok", config.integer("moe_intermediate_size")
    )
    return Deepseek(
        architecture=architecture,
        sizes=rotary_config.stretch(sizes, frequencies),
        attention=attention,
        frequencies=frequencies,
        pairs=pairs,
        experts=sparse,
        num_shared=config.integer("n_shared_experts", 0, least=0),
        num_dense=config.integer("first_k_dense_replace", 0, least=0),
        num_predicting=config.integer("num_nextn_predict_layers", 0, least=0),
        gate=activation_name(config, "hidden_act", "silu"),
        has_mlp_bias=config.flag("mlp_bias", False),
        has_correction=has_correction,
        make_rule=lambda: make_rule(sparse),
    )


def read_groups(config: Fields, *, num_counted: int) -> GroupSizes:
    """Groups of experts by config.json, and how many of them a token may use; see groups_of."""
    sizes = ExpertSizes.read(config, "n_routed_experts", "num_experts_per_tok", 1)
    return groups_of(config, sizes, names=("n_group", "topk_group"), num_counted=num_counted)


def groups_of(
    config: Fields, sizes: ExpertSizes, *, names: tuple[str, str], num_counted: int
) -> GroupSizes:
    """Groups of experts. names: of the fields that count them, and those that a token may use.

    num_counted: a group is worth the sum of so many of its best scores.
    Raises: ModelFormatError when a token could not find all its experts in them.
    """
    count, used = names
    num_experts, num_groups = sizes.num_experts, config.integer(count, 1)
    num_chosen = config.integer(used, num_groups)
    size, rest = divmod(num_experts, num_groups)
    within = num_chosen * size
    if rest or size < num_counted or num_chosen > num_groups:
        raise ModelFormatError(
            f"is {num_groups}; it must cut {num_experts} experts into equal groups of at least "
            f"{num_counted}, and be at least {used}, {num_chosen}.",
            file=config.file,
            field=count,
        )
    if sizes.num_chosen > within:
        raise ModelFormatError(
            f"is {num_chosen}; so many groups hold {within} experts, fewer than a token uses.",
            file=config.file,
            field=used,
        )
    return GroupSizes(num_groups, num_chosen, num_counted)
