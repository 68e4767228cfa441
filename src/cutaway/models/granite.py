"""Granite 3, dense or with experts: Llama's shape with a factor on all that joins its parts.

Source: Granite team 2024, "Granite 3.0 language models"; transformers' GraniteMoeModel.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from cutaway.core.shapes import Mlp
from cutaway.core.weight_targets import Target
from cutaway.models.parts.architecture import Layout
from cutaway.models.parts.config_fields import Fields
from cutaway.models.parts.expert_layers import ExpertSizes, router_targets, stacked_targets
from cutaway.models.parts.grouped_decoder import (
    IN_GGUF,
    GroupedDecoder,
    decoder_from_gguf,
    decoder_from_hf,
)
from cutaway.models.parts.layer_parts import AttentionForm
from cutaway.models.parts.tensor_names import Targets

if TYPE_CHECKING:
    from cutaway.blocks.slots import FeedForward


def from_hf(config: Fields) -> GroupedDecoder:
    """Read a config.json; one that counts experts has them in every layer."""
    made = decoder_from_hf("granite", config)
    has_bias = config.flag("attention_bias", False)
    made = _granite(
        made,
        config,
        ("embedding_multiplier", "attention_multiplier", "residual_multiplier", "logits_scaling"),
        AttentionForm(has_bias=has_bias, has_output_bias=has_bias),
    )
    if config.has("num_local_experts"):
        names = ("num_local_experts", "num_experts_per_tok")
        return _with_experts(made, ExpertSizes.read(config, *names, made.sizes.inner, default=2))
    return replace(made, has_mlp_bias=config.flag("mlp_bias", False))


def from_gguf(
    metadata: Fields,
    shapes: Mapping[str, tuple[int, ...]],
    factors: Mapping[str, tuple[float, ...]],
) -> GroupedDecoder:
    """Read GGUF metadata, its fields without the prefix "granite." or "granitemoe."."""
    has_bias = "blk.0.attn_q.bias" in shapes
    made = _granite(
        decoder_from_gguf("granite", metadata, shapes, factors),
        metadata,
        ("embedding_scale", "attention.scale", "residual_scale", "logit_scale"),
        AttentionForm(has_bias=has_bias, has_output_bias=has_bias),
    )
    made = replace(made, interleaved=IN_GGUF, has_mlp_bias="blk.0.ffn_gate.bias" in shapes)
    if metadata.has("expert_count") and metadata.integer("expert_count", least=0):
        names = ("expert_count", "expert_used_count")
        return _with_experts(made, ExpertSizes.read(metadata, *names, made.sizes.inner))
    return made


def _granite(
    made: GroupedDecoder, config: Fields, names: tuple[str, str, str, str], form: AttentionForm
) -> GroupedDecoder:
    """What both layouts mean. names: of the four factors; logits are divided by the last."""
    embedding, attention, update, logits = (config.number(name, 1.0) for name in names)
    return replace(
        made,
        attention=replace(form, softmax_scale=attention),
        multiplier=_unless_one(embedding),
        update_multiplier=_unless_one(update),
        logits_multiplier=_unless_one(1 / logits),
    )


def _unless_one(factor: float) -> float | None:
    return None if factor == 1 else factor


def _with_experts(made: GroupedDecoder, sizes: ExpertSizes) -> GroupedDecoder:
    layers = frozenset(range(made.sizes.num_layers))
    return replace(made, sparse=GraniteExperts(sizes, made.gate), sparse_layers=layers)


@dataclass(frozen=True)
class GraniteExperts:
    """Experts of the highest scores, with probabilities among them; files keep stacks of them."""

    sizes: ExpertSizes
    gate: str

    @property
    def shape(self) -> Mlp:
        """The feed-forward's shape, for estimates."""
        return self.sizes.shape

    def targets(self, layout: Layout, at: str, to: str, width: int) -> Targets:
        """Where a layer's tensors go, as Sparse has it."""
        if layout == "gguf":
            return stacked_targets(at, to, self.sizes, width)
        at, count, inner = f"{at}block_sparse_moe.", self.sizes.num_experts, self.sizes.inner
        return {
            **router_targets(f"{at}router.layer", to, self.sizes, width),
            f"{at}input_linear.weight": Target(
                f"{to}experts.gate_up.weight", (count, 2 * inner, width)
            ),
            f"{at}output_linear.weight": Target(f"{to}experts.down.weight", (count, width, inner)),
        }

    def build(self, width: int) -> FeedForward:
        """The router and its experts with unset weights; width is D."""
        from cutaway.blocks.activations import GATES
        from cutaway.blocks.moe import Experts, MixtureOfExperts
        from cutaway.blocks.router import Router, TopThenSoftmax

        sizes = self.sizes
        return MixtureOfExperts(
            Router(width, sizes.num_experts, TopThenSoftmax(sizes.num_chosen)),
            Experts(sizes.num_experts, width, sizes.inner, gate=GATES[self.gate]),
        )
