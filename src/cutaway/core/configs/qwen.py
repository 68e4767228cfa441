"""Shapes of the Qwen family from their config.json, with and without layers that keep a state."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cutaway.core.config_reader import FULL_ATTENTION, LINEAR, SLIDING, Reader
from cutaway.core.configs.layers import (
    all_alike,
    extents_of,
    grouped_model,
    heads_of,
    is_sparse,
    model_of,
)
from cutaway.core.layout import FULL, Extent, Window
from cutaway.core.shapes import Delta, Grouped, LayerShape, Mlp, ModelShape


def _qwen_extents(read: Reader) -> Sequence[Extent]:
    """From max_window_layers on there is a window, where it is switched on."""
    if not read.flag("use_sliding_window"):
        return all_alike(read)
    first = read.integer("max_window_layers", 28, least=0)
    kinds = read.layer_kinds(lambda layer: SLIDING if layer >= first else FULL_ATTENTION)
    return extents_of(read, kinds, width=4096)


def qwen2(read: Reader) -> ModelShape:
    mlp = Mlp(inner=read.integer("intermediate_size"))
    return grouped_model(read, lambda _: mlp, _qwen_extents(read), has_bias=True)


def qwen3(read: Reader) -> ModelShape:
    mlp, biased = Mlp(inner=read.integer("intermediate_size")), read.flag("attention_bias")
    return grouped_model(
        read,
        lambda _: mlp,
        _qwen_extents(read),
        has_bias=biased,
        has_output_bias=biased,
        has_head_norms=True,
    )


def qwen3_moe(read: Reader) -> ModelShape:
    experts = Mlp(
        expert_inner=read.integer("moe_intermediate_size", 768),
        num_experts=read.integer("num_experts", read.integer("num_local_experts", 128)),
        num_active=read.integer("num_experts_per_tok", 8),
    )
    dense = Mlp(inner=read.integer("intermediate_size", 6144))
    biased = read.flag("attention_bias")
    is_windowed = read.flag("use_sliding_window")  # over all layers, as transformers has it
    return grouped_model(
        read,
        lambda layer: experts if is_sparse(read, layer) else dense,
        all_alike(read, Window(read.integer("sliding_window", 4096)) if is_windowed else FULL),
        has_bias=biased,
        has_output_bias=biased,
        has_head_norms=True,
    )


def _qwen_delta(read: Reader, mlp: Callable[[int], Mlp]) -> ModelShape:
    """Three layers with a state for each one with keys and values."""
    read.refuse("attention_bias")
    heads, groups, size = heads_of(read)
    period = read.integer("full_attention_interval", 4)
    full = Grouped(
        num_heads=heads, num_groups=groups, head_size=size, has_head_norms=True, has_gate=True
    )
    delta = Delta(
        num_key_heads=read.integer("linear_num_key_heads", 16),
        num_value_heads=read.integer("linear_num_value_heads", 32),
        key_size=read.integer("linear_key_head_dim", 128),
        value_size=read.integer("linear_value_head_dim", 128),
        kernel=read.integer("linear_conv_kernel_dim", 4),
    )
    kinds = read.layer_kinds(lambda layer: LINEAR if (layer + 1) % period else FULL_ATTENTION)
    layers = [
        LayerShape(
            attention=delta if kind == LINEAR else full,
            mlp=mlp(layer),
            norms=2 * read.integer("hidden_size"),
        )
        for layer, kind in enumerate(kinds)
    ]
    return model_of(read, layers)


def _qwen_experts(read: Reader, *, num_experts: int, num_active: int) -> Mlp:
    """Experts beside one that all tokens go through. Both counts: where the file has none."""
    return Mlp(
        inner=read.integer("shared_expert_intermediate_size", 512),
        expert_inner=read.integer("moe_intermediate_size", 512),
        num_experts=read.integer("num_experts", num_experts),
        num_active=read.integer("num_experts_per_tok", num_active),
        has_shared_gate=True,
    )


def qwen3_next(read: Reader) -> ModelShape:
    experts = _qwen_experts(read, num_experts=512, num_active=10)
    dense = Mlp(inner=read.integer("intermediate_size", 5632))
    return _qwen_delta(read, lambda layer: experts if is_sparse(read, layer) else dense)


def qwen3_5(read: Reader) -> ModelShape:
    mlp = Mlp(inner=read.integer("intermediate_size", 12_288))
    return _qwen_delta(read, lambda _: mlp)


def qwen3_5_moe(read: Reader) -> ModelShape:
    experts = _qwen_experts(read, num_experts=256, num_active=8)
    return _qwen_delta(read, lambda _: experts)
