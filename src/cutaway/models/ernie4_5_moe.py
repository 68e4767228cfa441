"""ERNIE 4.5 with experts, in whose choice a learned correction takes part.

Source: ERNIE team 2025, "ERNIE 4.5 technical report"; transformers' Ernie4_5_MoeModel.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from cutaway.core.errors import UnsupportedModelError
from cutaway.core.shapes import Mlp
from cutaway.core.weight_targets import Target
from cutaway.models.parts.architecture import Layout
from cutaway.models.parts.config_fields import Fields
from cutaway.models.parts.expert_layers import (
    PROJECTIONS,
    ExpertSizes,
    has_experts,
    router_targets,
    separate_targets,
    shared_targets,
    stacked_shared_targets,
    stacked_targets,
)
from cutaway.models.parts.grouped_decoder import (
    IN_BOTH,
    GroupedDecoder,
    decoder_from_gguf,
    decoder_from_hf,
)
from cutaway.models.parts.sizes import sizes_from_hf
from cutaway.models.parts.tensor_names import Targets

if TYPE_CHECKING:
    from cutaway.blocks.slots import FeedForward

_BASE = 500_000.0


def from_hf(config: Fields) -> GroupedDecoder:
    """Read a config.json."""
    if config.flag("use_bias", False):
        raise UnsupportedModelError(
            f"{config.file}: use_bias is true; an ERNIE 4.5 model with experts has false."
        )
    sizes = sizes_from_hf(config, is_tied=True, epsilon=("rms_norm_eps", 1e-5))
    inner = config.integer("moe_intermediate_size", 1536)
    experts = ErnieExperts(
        ExpertSizes.read(config, "moe_num_experts", "moe_k", inner, default=6),
        inner * config.integer("moe_num_shared_experts", 2, least=0),
    )
    first, every = config.integer("moe_layer_start_index", 1, least=0), "moe_layer_interval"
    last = config.integer("moe_layer_end_index", -1, least=-1)
    layers = range(first, sizes.num_layers if last == -1 else min(last + 1, sizes.num_layers))
    interval = config.integer(every, 1)
    made = decoder_from_hf("ernie4_5_moe", config, sizes=sizes, base=_BASE)
    return replace(
        made,
        sparse=replace(experts, gate=made.gate),
        sparse_layers=frozenset(layer for layer in layers if (layer + 1) % interval == 0),
        interleaved=IN_BOTH,
    )


def from_gguf(
    metadata: Fields,
    shapes: Mapping[str, tuple[int, ...]],
    factors: Mapping[str, tuple[float, ...]],
) -> GroupedDecoder:
    """Read GGUF metadata, its fields without the prefix "ernie4_5-moe."."""
    made = decoder_from_gguf("ernie4_5_moe", metadata, shapes, factors, base=_BASE)
    layers = [layer for layer in range(made.sizes.num_layers) if has_experts(shapes, layer)]
    at = f"blk.{min(layers, default=0)}."
    inner = metadata.integer("expert_feed_forward_length")
    experts = ErnieExperts(
        ExpertSizes.read(metadata, "expert_count", "expert_used_count", inner),
        shapes.get(f"{at}ffn_down_shexp.weight", (0, 0))[1],
        is_flat=len(shapes.get(f"{at}exp_probs_b.bias", ())) == 1,
    )
    sparse = frozenset(layers)
    return replace(made, sparse=experts, sparse_layers=sparse, interleaved=IN_BOTH)


@dataclass(frozen=True)
class ErnieExperts:
    """Experts beside a gated layer for every token.

    inner: of that layer, or 0 for none.   is_flat: GGUF files keep the correction as a vector.
    """

    sizes: ExpertSizes
    inner: int
    gate: str = "silu"
    is_flat: bool = False

    @property
    def shape(self) -> Mlp:
        """The feed-forward's shape, for estimates."""
        return replace(self.sizes.shape, inner=self.inner, router_vectors=self.sizes.num_experts)

    def targets(self, layout: Layout, at: str, to: str, width: int) -> Targets:
        """Where a layer's tensors go, as Sparse has it."""
        count, correction = self.sizes.num_experts, f"{to}router.rule.correction"
        if layout == "gguf":
            shape = (count,) if self.is_flat else (1, count)
            part = (0,) if self.is_flat else ()
            shared = stacked_shared_targets(at, to, width, self.inner) if self.inner else {}
            return {
                **stacked_targets(at, to, self.sizes, width),
                **shared,
                f"{at}exp_probs_b.bias": Target(correction, shape, part=part),
            }
        at = f"{at}mlp."
        shared = shared_targets(f"{at}shared_experts.", to, width, self.inner, has_bias=False)
        return {
            **router_targets(f"{at}gate", to, self.sizes, width),
            **separate_targets(f"{at}experts.{{}}", to, self.sizes, width, names=PROJECTIONS),
            **(shared if self.inner else {}),
            f"{at}moe_statics.e_score_correction_bias": Target(correction, (1, count)),
        }

    def build(self, width: int) -> FeedForward:
        """The router and its experts with unset weights; width is D."""
        from cutaway.blocks.activations import GATES
        from cutaway.blocks.mlp import GatedMLP
        from cutaway.blocks.moe import Experts, MixtureOfExperts
        from cutaway.blocks.router import CorrectedSoftmax, Router

        sizes, gate = self.sizes, GATES[self.gate]
        rule = CorrectedSoftmax(sizes.num_experts, num_chosen=sizes.num_chosen)
        return MixtureOfExperts(
            Router(width, sizes.num_experts, rule),
            Experts(sizes.num_experts, width, sizes.inner, gate=gate),
            GatedMLP(width, self.inner, gate=gate) if self.inner else None,
        )
