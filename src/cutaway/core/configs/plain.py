"""Shapes of Llama, Mistral, Mixtral, gpt-oss and GPT-2 from their config.json."""

from __future__ import annotations

from cutaway.core.config_reader import FULL_ATTENTION, SLIDING, Reader
from cutaway.core.configs.layers import all_alike, extents_of, grouped_model, window_of
from cutaway.core.shapes import Grouped, LayerShape, Matrix, Mlp, ModelShape


def llama(read: Reader) -> ModelShape:
    mlp = Mlp(inner=read.integer("intermediate_size"), has_bias=read.flag("mlp_bias"))
    biased = read.flag("attention_bias")
    return grouped_model(
        read, lambda _: mlp, all_alike(read), has_bias=biased, has_output_bias=biased
    )


def mistral(read: Reader) -> ModelShape:
    mlp = Mlp(inner=read.integer("intermediate_size"))
    return grouped_model(read, lambda _: mlp, all_alike(read, window_of(read, default=4096)))


def mixtral(read: Reader) -> ModelShape:
    mlp = Mlp(
        expert_inner=read.integer("intermediate_size"),
        num_experts=read.integer("num_local_experts", 8),
        num_active=read.integer("num_experts_per_tok", 2),
    )
    return grouped_model(read, lambda _: mlp, all_alike(read, window_of(read)))


def gpt_oss(read: Reader) -> ModelShape:
    num_experts = read.integer("num_local_experts", 128)
    mlp = Mlp(
        expert_inner=read.integer("intermediate_size", 2880),
        num_experts=num_experts,
        num_active=read.integer("num_experts_per_tok", 4),
        has_expert_bias=True,
        router_vectors=num_experts,
    )
    biased = read.flag("attention_bias", True)
    kinds = read.layer_kinds(lambda layer: FULL_ATTENTION if layer % 2 else SLIDING)
    return grouped_model(
        read,
        lambda _: mlp,
        extents_of(read, kinds, width=128),
        has_bias=biased,
        has_output_bias=biased,
        has_sinks=True,
    )


def gpt2(read: Reader) -> ModelShape:
    width, heads = read.integer("n_embd", 768), read.integer("n_head", 12)
    layer = LayerShape(
        attention=Grouped(
            num_heads=heads,
            num_groups=heads,
            head_size=max(1, width // heads),
            has_bias=True,
            has_output_bias=True,
        ),
        mlp=Mlp(inner=read.integer("n_inner", 4 * width), is_gated=False, has_bias=True),
        norms=4 * width,  # two, each with a bias
    )
    return ModelShape(
        architecture=read.architecture,
        vocab_size=read.integer("vocab_size", 50257),
        width=width,
        is_tied=read.flag("tie_word_embeddings", True),
        layers=(layer,) * read.integer("n_layer", 12),
        norms=2 * width,
        more=(Matrix(read.integer("n_positions", 1024), width, kind="lookup"),),
    )
