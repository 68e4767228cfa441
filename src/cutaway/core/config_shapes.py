"""Reads a config.json into the shape of its model; absent fields mean what transformers takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import cast

from cutaway.core.config_reader import FULL_ATTENTION, LINEAR, SLIDING, Reader
from cutaway.core.errors import UnsupportedModelError
from cutaway.core.layout import FULL, Extent, Window
from cutaway.core.shapes import Delta, Grouped, Latent, LayerShape, Matrix, Mlp, ModelShape


def shape_of(config: Mapping[str, object], *, file: str = "config.json") -> ModelShape:
    """Read a config.json that was parsed. Of a model that also sees, the text part is read.

    Raises: UnsupportedModelError for an unknown architecture, ModelFormatError for a bad field.
    """
    words = config.get("architectures")
    word = str(cast("list[object]", words)[0]) if isinstance(words, list) and words else "none"
    reader = READERS.get(word)
    if reader is None:
        known = ", ".join(sorted(READERS))
        raise UnsupportedModelError(
            f"{file}: architecture {word!r} has no estimate; known are {known}."
        )
    text = config.get("text_config")
    if isinstance(text, Mapping):
        tied = config.get("tie_word_embeddings")  # the head is the whole model's
        config = dict(cast("Mapping[str, object]", text))
        config |= {} if tied is None else {"tie_word_embeddings": tied}
    return reader(Reader(config, file, word))


def _extents(read: Reader, kinds: Sequence[str], *, width: int | None = None) -> Sequence[Extent]:
    """What each layer sees. width: the default of sliding_window."""
    return [
        Window(read.integer("sliding_window", width)) if kind == SLIDING else FULL for kind in kinds
    ]


def _heads(read: Reader) -> tuple[int, int, int]:
    """Query heads, groups, and the size of a head."""
    heads = read.integer("num_attention_heads")
    groups = read.integer("num_key_value_heads", heads)
    if heads % groups:
        raise read.wrong("num_key_value_heads", groups, f"a divisor of the {heads} heads")
    return heads, groups, read.integer("head_dim", max(1, read.integer("hidden_size") // heads))


def _model(read: Reader, layers: Sequence[LayerShape], *, is_tied: bool = False) -> ModelShape:
    width = read.integer("hidden_size")
    return ModelShape(
        architecture=read.architecture,
        vocab_size=read.integer("vocab_size"),
        width=width,
        is_tied=read.flag("tie_word_embeddings", is_tied),
        layers=tuple(layers),
        norms=width,
    )


def _grouped_model(
    read: Reader,
    mlp: Callable[[int], Mlp],
    extents: Sequence[Extent],
    *,
    has_bias: bool = False,
    has_output_bias: bool = False,
    has_head_norms: bool = False,
    has_sinks: bool = False,
) -> ModelShape:
    """Two norms a layer, and grouped attention that is the same but for what it sees."""
    heads, groups, size = _heads(read)
    layers = [
        LayerShape(
            attention=Grouped(
                num_heads=heads,
                num_groups=groups,
                head_size=size,
                extent=extent,
                has_bias=has_bias,
                has_output_bias=has_output_bias,
                has_head_norms=has_head_norms,
                has_sinks=has_sinks,
            ),
            mlp=mlp(layer),
            norms=2 * read.integer("hidden_size"),
        )
        for layer, extent in enumerate(extents)
    ]
    return _model(read, layers)


def _all_alike(read: Reader, extent: Extent = FULL) -> Sequence[Extent]:
    return [extent] * read.integer("num_hidden_layers")


def _window(read: Reader, *, default: int | None = None) -> Extent:
    """A window over all layers. Null is none; default: where the field is absent."""
    if "sliding_window" in read.config and not read.has("sliding_window"):
        return FULL
    if default is None and not read.has("sliding_window"):
        return FULL
    return Window(read.integer("sliding_window", default))


def _llama(read: Reader) -> ModelShape:
    mlp = Mlp(inner=read.integer("intermediate_size"), has_bias=read.flag("mlp_bias"))
    biased = read.flag("attention_bias")
    return _grouped_model(
        read, lambda _: mlp, _all_alike(read), has_bias=biased, has_output_bias=biased
    )


def _mistral(read: Reader) -> ModelShape:
    mlp = Mlp(inner=read.integer("intermediate_size"))
    return _grouped_model(read, lambda _: mlp, _all_alike(read, _window(read, default=4096)))


def _mixtral(read: Reader) -> ModelShape:
    mlp = Mlp(
        expert_inner=read.integer("intermediate_size"),
        num_experts=read.integer("num_local_experts", 8),
        num_active=read.integer("num_experts_per_tok", 2),
    )
    return _grouped_model(read, lambda _: mlp, _all_alike(read, _window(read)))


def _qwen_extents(read: Reader) -> Sequence[Extent]:
    """From max_window_layers on there is a window, where it is switched on."""
    if not read.flag("use_sliding_window"):
        return _all_alike(read)
    first = read.integer("max_window_layers", 28, least=0)
    kinds = read.layer_kinds(lambda layer: SLIDING if layer >= first else FULL_ATTENTION)
    return _extents(read, kinds, width=4096)


def _qwen2(read: Reader) -> ModelShape:
    mlp = Mlp(inner=read.integer("intermediate_size"))
    return _grouped_model(read, lambda _: mlp, _qwen_extents(read), has_bias=True)


def _qwen3(read: Reader) -> ModelShape:
    mlp, biased = Mlp(inner=read.integer("intermediate_size")), read.flag("attention_bias")
    return _grouped_model(
        read,
        lambda _: mlp,
        _qwen_extents(read),
        has_bias=biased,
        has_output_bias=biased,
        has_head_norms=True,
    )


def _is_sparse(read: Reader, layer: int) -> bool:
    step = read.integer("decoder_sparse_step", 1)
    return layer not in read.integers("mlp_only_layers") and (layer + 1) % step == 0


def _qwen3_moe(read: Reader) -> ModelShape:
    experts = Mlp(
        expert_inner=read.integer("moe_intermediate_size", 768),
        num_experts=read.integer("num_experts", read.integer("num_local_experts", 128)),
        num_active=read.integer("num_experts_per_tok", 8),
    )
    dense = Mlp(inner=read.integer("intermediate_size", 6144))
    biased = read.flag("attention_bias")
    is_windowed = read.flag("use_sliding_window")  # over all layers, as transformers has it
    return _grouped_model(
        read,
        lambda layer: experts if _is_sparse(read, layer) else dense,
        _all_alike(read, Window(read.integer("sliding_window", 4096)) if is_windowed else FULL),
        has_bias=biased,
        has_output_bias=biased,
        has_head_norms=True,
    )


def _gpt_oss(read: Reader) -> ModelShape:
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
    return _grouped_model(
        read,
        lambda _: mlp,
        _extents(read, kinds, width=128),
        has_bias=biased,
        has_output_bias=biased,
        has_sinks=True,
    )


def _gpt2(read: Reader) -> ModelShape:
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


def _gemma(read: Reader, period: int, *, window: int, has_head_norms: bool) -> ModelShape:
    """Four norms a layer; every period-th layer sees all, the others a window."""
    read.refuse("attention_bias")
    defaults = {
        **{"vocab_size": 262_208 if has_head_norms else 256_000, "hidden_size": 2304},
        **{"intermediate_size": 9216, "num_hidden_layers": 26, "num_attention_heads": 8},
        **{"num_key_value_heads": 4, "head_dim": 256},
    }
    given = {name: value for name, value in read.config.items() if value is not None}
    read = Reader({**defaults, **given}, read.file, read.architecture)
    heads, groups, size = _heads(read)
    width = read.integer("hidden_size")
    kinds = read.layer_kinds(lambda layer: SLIDING if (layer + 1) % period else FULL_ATTENTION)
    layers = [
        LayerShape(
            attention=Grouped(
                num_heads=heads,
                num_groups=groups,
                head_size=size,
                extent=extent,
                has_head_norms=has_head_norms,
            ),
            mlp=Mlp(inner=read.integer("intermediate_size")),
            norms=4 * width,
        )
        for extent in _extents(read, kinds, width=window)
    ]
    return _model(read, layers, is_tied=True)


def _gemma2(read: Reader) -> ModelShape:
    return _gemma(read, 2, window=4096, has_head_norms=False)


def _gemma3(read: Reader) -> ModelShape:
    period = read.integer("sliding_window_pattern", read.integer("_sliding_window_pattern", 6))
    return _gemma(read, period, window=4096, has_head_norms=True)


def _gemma4(read: Reader) -> ModelShape:
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
    for layer, extent in enumerate(_extents(read, kinds, width=512)):
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


def _deepseek(read: Reader) -> ModelShape:
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
    return _model(read, layers)


def _qwen_delta(read: Reader, mlp: Callable[[int], Mlp]) -> ModelShape:
    """Three layers with a state for each one with keys and values."""
    read.refuse("attention_bias")
    heads, groups, size = _heads(read)
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
    return _model(read, layers)


def _qwen3_next(read: Reader) -> ModelShape:
    experts = Mlp(
        inner=read.integer("shared_expert_intermediate_size", 512),
        expert_inner=read.integer("moe_intermediate_size", 512),
        num_experts=read.integer("num_experts", 512),
        num_active=read.integer("num_experts_per_tok", 10),
        has_shared_gate=True,
    )
    dense = Mlp(inner=read.integer("intermediate_size", 5632))
    return _qwen_delta(read, lambda layer: experts if _is_sparse(read, layer) else dense)


def _qwen3_5(read: Reader) -> ModelShape:
    mlp = Mlp(inner=read.integer("intermediate_size", 12_288))
    return _qwen_delta(read, lambda _: mlp)


def _qwen3_5_moe(read: Reader) -> ModelShape:
    experts = Mlp(
        inner=read.integer("shared_expert_intermediate_size", 512),
        expert_inner=read.integer("moe_intermediate_size", 512),
        num_experts=read.integer("num_experts", 256),
        num_active=read.integer("num_experts_per_tok", 8),
        has_shared_gate=True,
    )
    return _qwen_delta(read, lambda _: experts)


READERS: Mapping[str, Callable[[Reader], ModelShape]] = {
    "DeepseekV2ForCausalLM": _deepseek,
    "DeepseekV3ForCausalLM": _deepseek,
    "GPT2LMHeadModel": _gpt2,
    "Gemma2ForCausalLM": _gemma2,
    "Gemma3ForCausalLM": _gemma3,
    "Gemma3ForConditionalGeneration": _gemma3,
    "Gemma4ForCausalLM": _gemma4,
    "Gemma4ForConditionalGeneration": _gemma4,
    "GptOssForCausalLM": _gpt_oss,
    "LlamaForCausalLM": _llama,
    "Mistral3ForConditionalGeneration": _mistral,
    "MistralForCausalLM": _mistral,
    "MixtralForCausalLM": _mixtral,
    "Qwen2ForCausalLM": _qwen2,
    "Qwen3ForCausalLM": _qwen3,
    "Qwen3MoeForCausalLM": _qwen3_moe,
    "Qwen3NextForCausalLM": _qwen3_next,
    "Qwen3_5ForCausalLM": _qwen3_5,
    "Qwen3_5ForConditionalGeneration": _qwen3_5,
    "Qwen3_5MoeForCausalLM": _qwen3_5_moe,
    "Qwen3_5MoeForConditionalGeneration": _qwen3_5_moe,
}
