"""Shapes of Gemma 2, 3 and 4 from their config.json."""

from __future__ import annotations

from cutaway.core.config_reader import FULL_ATTENTION, SLIDING, Reader
from cutaway.core.configs.layers import extents_of, grouped_model
from cutaway.core.shapes import Grouped, LayerShape, Matrix, Mlp, ModelShape


def _gemma(read: Reader, period: int, *, has_head_norms: bool) -> ModelShape:
    """Four norms a layer; every period-th layer sees all, the others a window."""
    read.refuse("attention_bias")
    defaults = {
        **{"vocab_size": 262_208 if has_head_norms else 256_000, "hidden_size": 2304},
        **{"intermediate_size": 9216, "num_hidden_layers": 26, "num_attention_heads": 8},
        **{"num_key_value_heads": 4, "head_dim": 256},
    }
    given = {name: value for name, value in read.config.items() if value is not None}
    read = Reader({**defaults, **given}, read.file, read.architecture)
    mlp = Mlp(inner=read.integer("intermediate_size"))
    kinds = read.layer_kinds(lambda layer: SLIDING if (layer + 1) % period else FULL_ATTENTION)
    return grouped_model(
        read,
        lambda _: mlp,
        extents_of(read, kinds, width=4096),
        has_head_norms=has_head_norms,
        num_norms=4,
        is_tied=True,
    )


def gemma2(read: Reader) -> ModelShape:
    return _gemma(read, 2, has_head_norms=False)


def gemma3(read: Reader) -> ModelShape:
    period = read.integer("sliding_window_pattern", read.integer("_sliding_window_pattern", 6))
    return _gemma(read, period, has_head_norms=True)


def gemma4(read: Reader) -> ModelShape:
    """Larger heads where a layer sees all; a small input of its own for each layer; shared keys.

    Source: Gemma4TextModel of transformers 5.24.
    """
    read.refuse("attention_bias")
    width, count = read.integer("hidden_size", 2304), read.integer("num_hidden_layers", 30)
    heads = read.integer("num_attention_heads", 8)
    kinds = list(read.layer_kinds(lambda layer: SLIDING if (layer + 1) % 6 else FULL_ATTENTION))
    kinds[-1] = FULL_ATTENTION
    first_shared = count - read.integer("num_kv_shared_layers", 0, least=0)
    side = read.integer("hidden_size_per_layer_input", 256, least=0)
    is_key_value = read.flag("attention_k_eq_v")
    groups = read.integer("num_key_value_heads", 4)
    full_groups = read.integer("num_global_key_value_heads", groups) if is_key_value else groups
    size, full_size = read.integer("head_dim", 256), read.integer("global_head_dim", 512)
    has_experts = read.flag("enable_moe_block")
    num_experts = read.integer("num_experts") if has_experts else 0
    layers: list[LayerShape] = []
    for layer, extent in enumerate(extents_of(read, kinds, width=512)):
        is_full, has_cache = kinds[layer] == FULL_ATTENTION, layer < first_shared
        own = read.of_layer(layer)  # newer files say per layer what differs
        inner = read.integer("intermediate_size", 9216)
        is_wide = read.flag("use_double_wide_mlp") and not has_cache
        layers.append(
            LayerShape(
                attention=Grouped(
                    num_heads=heads,
                    num_groups=own.integer(
                        "num_key_value_heads", full_groups if is_full else groups
                    ),
                    head_size=own.integer("head_dim", full_size if is_full else size),
                    extent=extent,
                    has_head_norms=True,
                    has_value=not (is_key_value and is_full),
                    has_cache=has_cache,
                ),
                mlp=Mlp(
                    inner=2 * inner if is_wide else inner,
                    expert_inner=read.integer("moe_intermediate_size") if has_experts else 0,
                    num_experts=num_experts,
                    num_active=read.integer("top_k_experts") if has_experts else 0,
                    router_vectors=width + num_experts if has_experts else 0,
                ),
                norms=width * (4 + bool(side) + 3 * has_experts)
                + 1,  # and what it is multiplied by
                more=(Matrix(side, width), Matrix(width, side)) if side else (),
            )
        )
    vocab = read.integer("vocab_size", 262_144)
    tables = (
        Matrix(read.integer("vocab_size_per_layer_input", vocab), count * side, kind="lookup"),
        Matrix(count * side, width),
    )
    return ModelShape(
        architecture=read.architecture,
        vocab_size=vocab,
        width=width,
        is_tied=read.flag("tie_word_embeddings", True),
        layers=tuple(layers),
        norms=width + side,
        more=tables if side else (),
    )
