"""Latent attention as DeepSeek's configurations and files describe it.

No architecture stands here: an architecture file joins the parts that it has.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cutaway.blocks.positions import Frequencies, Yarn
from cutaway.core.shapes import Latent
from cutaway.core.weight_targets import Target
from cutaway.models.parts import rotary_config
from cutaway.models.parts.architecture import Layout
from cutaway.models.parts.config_fields import Fields
from cutaway.models.parts.tensor_names import Names, Targets, matrix

if TYPE_CHECKING:
    from cutaway.blocks.attention.latent import LatentAttention

HF: Names = {
    "query": "self_attn.q_proj",
    "query_down": "self_attn.q_a_proj",
    "query_norm": "self_attn.q_a_layernorm",
    "query_up": "self_attn.q_b_proj",
    "down": "self_attn.kv_a_proj_with_mqa",
    "latent_norm": "self_attn.kv_a_layernorm",
    "up": "self_attn.kv_b_proj",
    "output": "self_attn.o_proj",
}
GGUF: Names = {
    "query": "attn_q",
    "query_down": "attn_q_a",
    "query_norm": "attn_q_a_norm",
    "query_up": "attn_q_b",
    "down": "attn_kv_a_mqa",
    "latent_norm": "attn_kv_a_norm",
    "up": "attn_kv_b",
    "output": "attn_output",
}


@dataclass(frozen=True, kw_only=True)
class LatentSizes:
    """Sizes of latent attention. Letters of blocks/attention/latent.py in brackets."""

    width: int  # D
    num_heads: int  # H
    query_rank: int | None  # None: the query is not compressed
    rank: int  # R
    plain_size: int  # A
    rotary_size: int  # C'
    value_size: int  # W
    softmax_scale: float
    has_bias: bool

    @property
    def head_size(self) -> int:
        """Entries of a query head."""
        return self.plain_size + self.rotary_size

    @property
    def shape(self) -> Latent:
        """The sizes as estimates take them."""
        return Latent(
            num_heads=self.num_heads,
            query_rank=self.query_rank or 0,
            rank=self.rank,
            plain_size=self.plain_size,
            rotary_size=self.rotary_size,
            value_size=self.value_size,
            has_bias=self.has_bias,
        )

    def build(self, frequencies: Frequencies | None, *, pairs: str) -> LatentAttention:
        """The attention with unset weights. pairs: which entries of a head turn together."""
        from cutaway.blocks.attention.latent import LatentAttention

        return LatentAttention(
            self.width,
            num_heads=self.num_heads,
            query_rank=self.query_rank,
            rank=self.rank,
            plain_size=self.plain_size,
            rotary_size=self.rotary_size,
            value_size=self.value_size,
            softmax_scale=self.softmax_scale,
            frequencies=frequencies,
            pairs=pairs,
            has_bias=self.has_bias,
        )

    def targets(self, at: str, layer: int, layout: Layout = "hf") -> Targets:
        """Where the tensors of a layer go. at: what their stored names begin with."""
        table = HF if layout == "hf" else GGUF
        to, names = f"blocks.{layer}.attention.", {n: at + stored for n, stored in table.items()}
        heads, width, rank = self.num_heads, self.width, self.rank
        up_rows = heads * (self.plain_size + self.value_size)
        down, output = (rank + self.rotary_size, width), (width, heads * self.value_size)
        return {
            **self._query_targets(names, to),
            **matrix(names["down"], f"{to}down", 0, down, has_bias=self.has_bias),
            f"{names['latent_norm']}.weight": Target(f"{to}latent_norm.weight", (rank,)),
            f"{names['up']}.weight": Target(f"{to}up.weight", (up_rows, rank)),
            **matrix(names["output"], f"{to}output", 0, output, has_bias=self.has_bias),
        }

    def _query_targets(self, names: Names, to: str) -> Targets:
        rows, rank = self.num_heads * self.head_size, self.query_rank
        if rank is None:
            return matrix(names["query"], f"{to}query", 0, (rows, self.width))
        down = (rank, self.width)
        return {
            **matrix(names["query_down"], f"{to}query_down", 0, down, has_bias=self.has_bias),
            f"{names['query_norm']}.weight": Target(f"{to}query_norm.weight", (rank,)),
            **matrix(names["query_up"], f"{to}query", 0, (rows, rank)),
        }


def latent_from_hf(config: Fields) -> tuple[LatentSizes, Frequencies | None]:
    """Read a config.json. With YaRN the softmax scale has its factor twice, for query and key."""
    plain_size, rotary_size = (
        config.integer("qk_nope_head_dim"),
        config.integer("qk_rope_head_dim"),
    )
    frequencies = rotary_config.from_hf(
        config,
        head_size=rotary_size,
        max_length=config.integer("max_position_embeddings", 2048),
    )
    sizes = LatentSizes(
        width=config.integer("hidden_size"),
        num_heads=config.integer("num_attention_heads"),
        query_rank=config.integer("q_lora_rank") if config.has("q_lora_rank") else None,
        rank=config.integer("kv_lora_rank"),
        plain_size=plain_size,
        rotary_size=rotary_size,
        value_size=config.integer("v_head_dim"),
        softmax_scale=(plain_size + rotary_size) ** -0.5 * _stretch(config, frequencies) ** 2,
        has_bias=config.flag("attention_bias", False),
    )
    return sizes, frequencies


def _stretch(config: Fields, frequencies: Frequencies | None) -> float:
    rope = config.read_mapping(rotary_config.rotation_field(config))
    scale = rope.number_or_none("mscale_all_dim")
    if not isinstance(frequencies, Yarn) or scale is None or frequencies.factor <= 1:
        return 1.0
    return 0.1 * scale * math.log(frequencies.factor) + 1.0
