"""Layers with a state, and gated attention between them, as Qwen's configurations describe them.

No architecture stands here: an architecture file joins the parts that it has.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from cutaway.core.errors import ModelFormatError, UnsupportedModelError
from cutaway.core.layout import CacheSpec, grouped_cache_spec
from cutaway.core.shapes import DeltaShape, Grouped, LayerShape, Mlp, ModelShape
from cutaway.core.weight_targets import Target
from cutaway.models.parts import tensor_names
from cutaway.models.parts.config_fields import Fields
from cutaway.models.parts.sizes import Sizes
from cutaway.models.parts.tensor_names import Names, Targets, matrix

if TYPE_CHECKING:
    from cutaway.blocks.attention.delta import Reader
    from cutaway.blocks.attention.grouped import GroupedAttention
    from cutaway.blocks.positions import Frequencies
    from cutaway.blocks.slots import Attention, FeedForward
    from cutaway.blocks.transformer import Transformer

SHARE = 0.25  # of each head that turns, where a file does not say it
STATE_LAYER, FULL_LAYER = "linear_attention", "full_attention"


def delta_shape(
    architecture: str,
    sizes: Sizes,
    state: DeltaShape,
    kinds: tuple[str, ...],
    mlp: Callable[[int], Mlp],
) -> ModelShape:
    """The shape of a model whose layers are of these kinds. mlp: by layer."""
    full = Grouped(
        num_heads=sizes.num_heads,
        num_groups=sizes.num_groups,
        head_size=sizes.head_size,
        has_head_norms=True,
        has_gate=True,
    )
    layers = [
        LayerShape(
            attention=state if kind == STATE_LAYER else full, mlp=mlp(layer), norms=2 * sizes.width
        )
        for layer, kind in enumerate(kinds)
    ]
    return ModelShape(
        architecture=architecture,
        vocab_size=sizes.vocab_size,
        width=sizes.width,
        is_tied=sizes.is_tied,
        layers=tuple(layers),
        norms=sizes.width,
    )


def delta_cache_specs(sizes: Sizes, state: DeltaShape, kinds: tuple[str, ...]) -> list[CacheSpec]:
    """What each layer keeps."""
    full = grouped_cache_spec(sizes.num_groups, sizes.head_size)
    return [full if kind == FULL_LAYER else state.state_spec for kind in kinds]


def gated_attention(sizes: Sizes, frequencies: Frequencies | None) -> GroupedAttention:
    """What a layer without a state has: normed heads, of which gates say how much counts."""
    from cutaway.blocks.attention.grouped import GroupedAttention
    from cutaway.blocks.norm import OffsetRMSNorm

    size, epsilon = sizes.head_size, sizes.epsilon
    return GroupedAttention(
        sizes.width,
        num_heads=sizes.num_heads,
        num_groups=sizes.num_groups,
        head_size=size,
        frequencies=frequencies,
        head_norms=(OffsetRMSNorm(size, epsilon), OffsetRMSNorm(size, epsilon)),
        has_gate=True,
    )


def build_delta(
    sizes: Sizes,
    state: DeltaShape,
    kinds: tuple[str, ...],
    frequencies: Frequencies | None,
    *,
    make_reader: Callable[[int, DeltaShape], Reader],
    make_mlp: Callable[[int], FeedForward],
) -> Transformer:
    """The model with unset weights. make_mlp: by layer."""
    from cutaway.blocks.attention.delta import DeltaLayer
    from cutaway.blocks.block import Block
    from cutaway.blocks.norm import OffsetRMSNorm
    from cutaway.models.parts.decoder import decoder

    width, epsilon = sizes.width, sizes.epsilon

    def make_attention(kind: str) -> Attention:
        if kind == FULL_LAYER:
            return gated_attention(sizes, frequencies)
        return DeltaLayer(width, state, reader=make_reader(width, state), epsilon=epsilon)

    blocks = [
        Block(
            norms=(OffsetRMSNorm(width, epsilon), OffsetRMSNorm(width, epsilon)),
            attention=make_attention(kind),
            mlp=make_mlp(layer),
        )
        for layer, kind in enumerate(kinds)
    ]
    return decoder(sizes, blocks, norm=OffsetRMSNorm(width, epsilon))


def gated_targets(sizes: Sizes, table: Names, layer: int) -> Targets:
    """The same layer's matrices and head norms."""
    at, to = table["layer"].format(layer), f"blocks.{layer}.attention."
    widths = {"query_norm": sizes.head_size, "key_norm": sizes.head_size}
    rows = 2 * sizes.num_heads * sizes.head_size  # of each head and its gate
    return {
        **tensor_names.norm_targets(table, layer, widths, rest=0.0),
        **tensor_names.attention_targets(sizes, table, layer),
        **matrix(at + table["query"], f"{to}qkv", 0, (rows, sizes.width)),
    }


def state_targets(sizes: DeltaShape, width: int, at: str, to: str) -> Targets:
    """What a layer with a state has behind its reader."""
    values, heads = sizes.num_value_heads * sizes.value_size, sizes.num_value_heads
    return {
        **matrix(f"{at}out_proj", f"{to}output", 0, (width, values)),
        f"{at}conv1d.weight": Target(f"{to}convolution", (sizes.channels, 1, sizes.kernel)),
        f"{at}dt_bias": Target(f"{to}decay_bias", (heads,)),
        f"{at}A_log": Target(f"{to}decay_log", (heads,)),
        f"{at}norm.weight": Target(f"{to}norm.weight", (sizes.value_size,)),
    }


def delta_kinds(config: Fields, num_layers: int) -> tuple[str, ...]:
    """STATE_LAYER or FULL_LAYER, by layer.

    Raises: UnsupportedModelError for another kind.
    """
    every = config.integer("full_attention_interval", 4)
    kinds = config.texts("layer_types") or tuple(
        STATE_LAYER if (layer + 1) % every else FULL_LAYER for layer in range(num_layers)
    )
    if len(kinds) != num_layers or not set(kinds) <= {STATE_LAYER, FULL_LAYER}:
        raise UnsupportedModelError(
            f"{config.file}: layer_types has {len(kinds)} entries of {sorted(set(kinds))}; it must "
            f"have {num_layers} of {STATE_LAYER} and {FULL_LAYER}."
        )
    return kinds


def delta_sizes(config: Fields) -> DeltaShape:
    """Raises: ModelFormatError where key heads do not divide value heads."""
    sizes = DeltaShape(
        num_key_heads=config.integer("linear_num_key_heads", 16),
        num_value_heads=config.integer("linear_num_value_heads", 32),
        key_size=config.integer("linear_key_head_dim", 128),
        value_size=config.integer("linear_value_head_dim", 128),
        kernel=config.integer("linear_conv_kernel_dim", 4, least=2),
    )
    if sizes.num_value_heads % sizes.num_key_heads:
        raise ModelFormatError(
            f"is {sizes.num_value_heads}; it must be a multiple of the key heads, "
            f"{sizes.num_key_heads}.",
            file=config.file,
            field="linear_num_value_heads",
        )
    return sizes
