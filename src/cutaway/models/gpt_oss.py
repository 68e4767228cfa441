"""gpt-oss: attention with sinks, windows in every other layer, and experts with biases.

Source: OpenAI 2025, arXiv 2508.10925.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from cutaway.blocks.positions import Yarn
from cutaway.core.shapes import Mlp
from cutaway.core.weight_targets import Target
from cutaway.models.parts import expert_layers
from cutaway.models.parts.architecture import Layout
from cutaway.models.parts.config_fields import Fields
from cutaway.models.parts.expert_layers import ExpertSizes
from cutaway.models.parts.extents import extents_of, layer_kinds, window_width
from cutaway.models.parts.grouped_decoder import (
    GroupedDecoder,
    decoder_from_gguf,
    decoder_from_hf,
)
from cutaway.models.parts.layer_parts import AttentionForm
from cutaway.models.parts.sizes import sizes_from_hf
from cutaway.models.parts.tensor_names import GGUF, HF, Names, Targets

if TYPE_CHECKING:
    from cutaway.blocks.slots import FeedForward

_NAMES: Mapping[Layout, Names] = {
    "hf": {**HF, "sinks": "self_attn.sinks"},
    "gguf": {**GGUF, "mlp_norm": "post_attention_norm", "sinks": "attn_sinks.weight"},
}


def from_hf(config: Fields) -> GroupedDecoder:
    """Read a config.json."""
    sizes = sizes_from_hf(config, head_size=64)
    sparse = ClampedExperts(
        ExpertSizes.read(
            config, "num_local_experts", "num_experts_per_tok", sizes.inner, default=4
        ),
        alpha=config.number("swiglu_alpha", 1.702),
        limit=config.number("swiglu_limit", 7.0),
    )
    made = decoder_from_hf("gpt_oss", config, sizes=sizes, base=150_000.0)
    has_bias = config.flag("attention_bias", True)
    return _gpt_oss(made, config, sparse, has_bias=has_bias, window="sliding_window")


def from_gguf(
    metadata: Fields,
    shapes: Mapping[str, tuple[int, ...]],
    factors: Mapping[str, tuple[float, ...]],
) -> GroupedDecoder:
    """Read GGUF metadata, its fields without the prefix "gpt-oss.".

    The format has no words for the gate's numbers and the order of windows, and rounds the
    ramp of YaRN, which the model does not: all are the published model's.
    """
    made = decoder_from_gguf("gpt_oss", metadata, shapes, factors)
    frequencies = tuple(
        replace(each, truncate=False) if isinstance(each, Yarn) else each
        for each in made.frequencies
    )
    inner = metadata.integer("expert_feed_forward_length", made.sizes.inner)
    sizes = ExpertSizes.read(metadata, "expert_count", "expert_used_count", inner)
    return _gpt_oss(
        replace(made, frequencies=frequencies),
        metadata,
        ClampedExperts(sizes, alpha=1.702, limit=7.0),
        has_bias="blk.0.attn_q.bias" in shapes,
        window="attention.sliding_window",
    )


def _gpt_oss(
    made: GroupedDecoder, config: Fields, sparse: ClampedExperts, *, has_bias: bool, window: str
) -> GroupedDecoder:
    """What both layouts mean. window: the name of its field."""
    num_layers = made.sizes.num_layers
    kinds = layer_kinds(config, num_layers, is_window=lambda layer: layer % 2 == 0)
    return replace(
        made,
        attention=AttentionForm(has_bias=has_bias, has_output_bias=has_bias, has_sinks=True),
        extents=extents_of(kinds, window_width(config, window)),
        sparse=sparse,
        sparse_layers=frozenset(range(num_layers)),
        names=_NAMES,
    )


@dataclass(frozen=True)
class ClampedExperts:
    """Experts with biases and a bounded gate, whose rows of gate and value alternate.

    alpha, limit: of the gate.
    """

    sizes: ExpertSizes
    alpha: float
    limit: float

    @property
    def shape(self) -> Mlp:
        """The feed-forward's shape, for estimates."""
        count = self.sizes.num_experts
        return replace(self.sizes.shape, has_expert_bias=True, router_vectors=count)

    def build(self, width: int) -> FeedForward:
        """The router and its experts with unset weights; width is D."""
        from cutaway.blocks.activations import clamp_gate
        from cutaway.blocks.moe import Experts, MixtureOfExperts, neighbours
        from cutaway.blocks.router import Router, TopThenSoftmax

        sizes = self.sizes
        return MixtureOfExperts(
            Router(width, sizes.num_experts, TopThenSoftmax(sizes.num_chosen), has_bias=True),
            Experts(
                sizes.num_experts,
                width,
                sizes.inner,
                gate=clamp_gate(alpha=self.alpha, limit=self.limit),
                split=neighbours,
                has_bias=True,
            ),
        )

    def targets(self, layout: Layout, at: str, to: str, width: int) -> Targets:
        """Where the tensors of the router and the experts go.

        at: start of stored names; to: start of the names in the model; width: D.
        """
        own = self._hf_targets if layout == "hf" else self._gguf_targets
        return own(at, to, width)

    def _hf_targets(self, at: str, to: str, width: int) -> Targets:
        """Router and experts, whose matrices lie across: inputs first."""
        count, inner = self.sizes.num_experts, self.sizes.inner
        stored, module = f"{at}mlp.experts.", f"{to}experts."
        return {
            **expert_layers.router_targets(f"{at}mlp.router", to, self.sizes, width),
            f"{at}mlp.router.bias": Target(f"{to}router.bias", (count,)),
            f"{stored}gate_up_proj": Target(
                f"{module}gate_up.weight", (count, width, 2 * inner), is_transposed=True
            ),
            f"{stored}gate_up_proj_bias": Target(f"{module}biases.0", (count, 2 * inner)),
            f"{stored}down_proj": Target(
                f"{module}down.weight", (count, inner, width), is_transposed=True
            ),
            f"{stored}down_proj_bias": Target(f"{module}biases.1", (count, width)),
        }

    def _gguf_targets(self, at: str, to: str, width: int) -> Targets:
        """The same; the rows of gate and value, which alternate here, lie apart there."""
        count, inner = self.sizes.num_experts, self.sizes.inner
        module, every = f"{to}experts.", slice(None)
        joined, rows, biases = f"{module}gate_up.weight", (count, inner, width), (count, inner)
        gate, value = (every, slice(0, None, 2)), (every, slice(1, None, 2))
        return {
            **expert_layers.router_targets(f"{at}ffn_gate_inp", to, self.sizes, width),
            f"{at}ffn_gate_inp.bias": Target(f"{to}router.bias", (count,)),
            f"{at}ffn_gate_exps.weight": Target(joined, rows, part=gate),
            f"{at}ffn_up_exps.weight": Target(joined, rows, part=value),
            f"{at}ffn_gate_exps.bias": Target(f"{module}biases.0", biases, part=gate),
            f"{at}ffn_up_exps.bias": Target(f"{module}biases.0", biases, part=value),
            f"{at}ffn_down_exps.weight": Target(f"{module}down.weight", (count, width, inner)),
            f"{at}ffn_down_exps.bias": Target(f"{module}biases.1", (count, width)),
        }
