"""The shape of DeepSeek V2 and V3 from their config.json: latent attention and experts."""

from __future__ import annotations

from cutaway.core.config_reader import Reader
from cutaway.core.configs.layers import model_of
from cutaway.core.shapes import Latent, LayerShape, Mlp, ModelShape


def deepseek(read: Reader) -> ModelShape:
    read.refuse("attention_bias", "mlp_bias")
    attention = Latent(
        num_heads=read.integer("num_attention_heads"),
        query_rank=read.integer("q_lora_rank", 0, least=0),
        rank=read.integer("kv_lora_rank"),
        plain_size=read.integer("qk_nope_head_dim"),
        rotary_size=read.integer("qk_rope_head_dim"),
        value_size=read.integer("v_head_dim"),
    )
    inner = read.integer("moe_intermediate_size")
    num_experts = read.integer("n_routed_experts")
    experts = Mlp(
        inner=inner * read.integer("n_shared_experts", 0, least=0),
        expert_inner=inner,
        num_experts=num_experts,
        num_active=read.integer("num_experts_per_tok"),
        # the third version steers its choice by a bias per expert
        router_vectors=num_experts if read.architecture == "DeepseekV3ForCausalLM" else 0,
    )
    dense = Mlp(inner=read.integer("intermediate_size"))
    first = read.integer("first_k_dense_replace", 0, least=0)
    layers = [
        LayerShape(
            attention=attention,
            mlp=dense if layer < first else experts,
            norms=2 * read.integer("hidden_size"),
        )
        for layer in range(read.integer("num_hidden_layers"))
    ]
    return model_of(read, layers)
