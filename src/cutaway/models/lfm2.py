"""LFM2: short convolutions, and between them layers of grouped attention with normed heads.

Source: Liquid AI 2025, arXiv 2511.23404; transformers' Lfm2Model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from cutaway.core.errors import ModelFormatError, UnsupportedModelError
from cutaway.core.layout import CacheSpec
from cutaway.core.shapes import ConvolutionShape
from cutaway.core.weight_targets import Target
from cutaway.models.parts.architecture import Layout
from cutaway.models.parts.config_fields import Fields, warn_of_two
from cutaway.models.parts.extents import FULL_LAYER
from cutaway.models.parts.grouped_decoder import (
    GroupedDecoder,
    decoder_from_gguf,
    decoder_from_hf,
)
from cutaway.models.parts.layer_parts import AttentionForm
from cutaway.models.parts.sizes import sizes_from_gguf, sizes_from_hf
from cutaway.models.parts.tensor_names import GGUF, HF, Names, Targets, matrix

if TYPE_CHECKING:
    from cutaway.blocks.slots import Attention

_CONVOLUTION = "conv"
_BASE = 1_000_000.0
_HF: Names = {
    **HF,
    "norm": "model.embedding_norm.weight",
    "attention_norm": "operator_norm",
    "mlp_norm": "ffn_norm",
    "output": "self_attn.out_proj",
    "query_norm": "self_attn.q_layernorm",
    "key_norm": "self_attn.k_layernorm",
    "gate": "feed_forward.w1",
    "up": "feed_forward.w3",
    "down": "feed_forward.w2",
}
# What the convolution's tensors are called.
_STORED: Mapping[Layout, tuple[str, str, str]] = {
    "hf": ("conv.in_proj", "conv.conv", "conv.out_proj"),
    "gguf": ("shortconv.in_proj", "shortconv.conv", "shortconv.out_proj"),
}


@dataclass(frozen=True)
class Convolution:
    """A short convolution as a layer's mixer."""

    shape: ConvolutionShape

    @property
    def cache_spec(self) -> CacheSpec:
        """What it keeps."""
        return self.shape.state_spec

    def targets(self, layout: Layout, at: str, to: str, width: int) -> Targets:
        """Where its tensors go, as Mixer has it; GGUF files leave out a size of one."""
        reader, convolution, output = (at + name for name in _STORED[layout])
        has_bias, kernel = self.shape.has_bias, self.shape.kernel
        stored = (width, 1, kernel) if layout == "hf" else (width, kernel)
        part = () if layout == "hf" else (slice(None), 0)
        targets = {
            **matrix(reader, f"{to}reader", 0, (3 * width, width), has_bias=has_bias),
            **matrix(output, f"{to}output", 0, (width, width), has_bias=has_bias),
            f"{convolution}.weight": Target(f"{to}convolution", stored, part=part),
        }
        if has_bias:
            targets[f"{convolution}.bias"] = Target(f"{to}bias", (width,))
        return targets

    def build(self, width: int) -> Attention:
        """The module with unset weights."""
        from cutaway.blocks.attention.convolution import ShortConvolution

        return ShortConvolution(width, self.shape)


def from_hf(config: Fields) -> GroupedDecoder:
    """Read a config.json."""
    warn_of_two(config, "tie_embedding", config, "tie_word_embeddings")
    warn_of_two(config, "block_ff_dim", config, "intermediate_size")
    sizes = sizes_from_hf(config, is_tied=True, inner=12_288, epsilon=("norm_eps", 1e-5))
    is_tied = config.flag("tie_embedding", sizes.is_tied)
    sizes = replace(sizes, inner=_inner(config, sizes.inner), is_tied=is_tied)
    made = decoder_from_hf("lfm2", config, sizes=sizes, base=_BASE)
    shape = ConvolutionShape(
        width=sizes.width,
        kernel=config.integer("conv_L_cache", 3, least=2),
        has_bias=config.flag("conv_bias", False),
    )
    return _lfm2(made, _layers_of_config(config, sizes.num_layers), shape, norm=GGUF["norm"])


def from_gguf(
    metadata: Fields,
    shapes: Mapping[str, tuple[int, ...]],
    factors: Mapping[str, tuple[float, ...]],
) -> GroupedDecoder:
    """Read GGUF metadata, its fields without the prefix "lfm2.": layers without heads convolve."""
    counts = metadata.integers("attention.head_count_kv")
    sizes = sizes_from_gguf(metadata, shapes, num_groups=max(counts, default=0))
    if len(counts) != sizes.num_layers:
        raise ModelFormatError(
            f"has {len(counts)} entries; it must have one for each of {sizes.num_layers} layers.",
            file=metadata.file,
            field="attention.head_count_kv",
        )
    made = decoder_from_gguf("lfm2", metadata, shapes, factors, sizes=sizes, base=_BASE)
    layers = [layer for layer, count in enumerate(counts) if count == 0]
    shape = ConvolutionShape(
        width=sizes.width,
        kernel=metadata.integer("shortconv.l_cache", least=2),
        has_bias=any(name.endswith("shortconv.conv.bias") for name in shapes),
    )
    names = ("token_embd_norm.weight", "output_norm.weight")
    norm = next((name for name in names if name in shapes), names[0])
    return _lfm2(made, layers, shape, norm=norm)


def _lfm2(
    made: GroupedDecoder, layers: list[int], shape: ConvolutionShape, *, norm: str
) -> GroupedDecoder:
    """What both layouts mean. norm: what GGUF files call the last one, of newer and older ones."""
    return replace(
        made,
        attention=AttentionForm(has_head_norms=True),
        mixers=dict.fromkeys(layers, Convolution(shape)),
        names={"hf": _HF, "gguf": {**GGUF, "norm": norm}},
    )


def _inner(config: Fields, inner: int) -> int:
    """Numbers of the gated layer: two thirds of what the file says, unless it says otherwise."""
    inner = config.integer("block_ff_dim", inner)
    if not config.flag("block_auto_adjust_ff_dim", True):
        return inner
    inner = int(2 * inner / 3)
    factor = config.number_or_none("block_ffn_dim_multiplier", 1.0)
    if factor is None:
        return inner
    multiple = config.integer("block_multiple_of", 256)
    return -(-int(factor * inner) // multiple) * multiple


def _layers_of_config(config: Fields, num_layers: int) -> list[int]:
    """The layers that convolve, by layer_types or by full_attn_idxs.

    Raises: UnsupportedModelError for another kind.
    """
    full = config.integers("full_attn_idxs") if config.has("full_attn_idxs") else range(num_layers)
    kinds = config.texts("layer_types") or tuple(
        FULL_LAYER if layer in full else _CONVOLUTION for layer in range(num_layers)
    )
    if len(kinds) != num_layers or not set(kinds) <= {FULL_LAYER, _CONVOLUTION}:
        raise UnsupportedModelError(
            f"{config.file}: layer_types has {len(kinds)} entries of {sorted(set(kinds))}; it must "
            f"have {num_layers} of {_CONVOLUTION} and {FULL_LAYER}."
        )
    return [layer for layer, kind in enumerate(kinds) if kind == _CONVOLUTION]
