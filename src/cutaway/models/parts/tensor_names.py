"""What decoders call their tensors in each layout, and where each part's tensors go.

No architecture stands here: an architecture file joins the parts that it has.
"""

from __future__ import annotations

from collections.abc import Mapping

from cutaway.core.weight_targets import PairedRows, Target
from cutaway.models.parts.architecture import Layout
from cutaway.models.parts.rotary_config import GGUF_FACTORS
from cutaway.models.parts.sizes import Sizes

Names = Mapping[str, str]
Targets = dict[str, Target]

HF: Names = {
    "table": "model.embed_tokens.weight",
    "norm": "model.norm.weight",
    "head": "lm_head.weight",
    "layer": "model.layers.{}.",
    "attention_norm": "input_layernorm",
    "mlp_norm": "post_attention_layernorm",
    "query": "self_attn.q_proj",
    "key": "self_attn.k_proj",
    "value": "self_attn.v_proj",
    "joined": "self_attn.qkv_proj",
    "output": "self_attn.o_proj",
    "query_norm": "self_attn.q_norm",
    "key_norm": "self_attn.k_norm",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "joined_up": "mlp.gate_up_proj",
    "down": "mlp.down_proj",
}

SANDWICH_NORMS: tuple[str, ...] = (
    "attention_norm",
    "attention_after_norm",
    "mlp_norm",
    "mlp_after_norm",
)

# Where attention and feed-forward have a norm on either side, as in Gemma from 2 on.
HF_SANDWICH: Names = {
    **HF,
    "attention_after_norm": "post_attention_layernorm",
    "mlp_norm": "pre_feedforward_layernorm",
    "mlp_after_norm": "post_feedforward_layernorm",
}

GGUF: Names = {
    "table": "token_embd.weight",
    "norm": "output_norm.weight",
    "head": "output.weight",
    "layer": "blk.{}.",
    "attention_norm": "attn_norm",
    "mlp_norm": "ffn_norm",
    "attention_after_norm": "post_attention_norm",
    "mlp_after_norm": "post_ffw_norm",
    "query": "attn_q",
    "key": "attn_k",
    "value": "attn_v",
    "joined": "attn_qkv",
    "output": "attn_output",
    "query_norm": "attn_q_norm",
    "key_norm": "attn_k_norm",
    "gate": "ffn_gate",
    "up": "ffn_up",
    "joined_up": "ffn_up",
    "down": "ffn_down",
}


def in_layout(layout: Layout) -> Names:
    """The names of a pre-norm decoder."""
    return HF if layout == "hf" else GGUF


def sandwich_in_layout(layout: Layout) -> Names:
    """The names of a decoder with norms on either side."""
    return HF_SANDWICH if layout == "hf" else GGUF


def offset_shift(layout: Layout) -> float:
    """What makes a stored weight w where the norm multiplies by 1 + w: GGUF keeps the sum."""
    return -1.0 if layout == "gguf" else 0.0


def end_targets(
    sizes: Sizes,
    names: Names,
    *,
    shift: float = 0.0,
    rest: float = 1.0,
    has_norm: bool = True,
) -> Targets:
    """Embedding table, final norm if it has a weight, and unembedding.

    shift, rest: of the norm, as in Target.
    """
    table = (sizes.vocab_size, sizes.width)
    # A tied head that was stored all the same (see optional_names) must equal the table.
    head = "embedding.table.weight" if sizes.is_tied else "unembedding.table.weight"
    norm = Target("unembedding.norm.weight", (sizes.width,), shift=shift, rest=rest)
    return {
        names["table"]: Target("embedding.table.weight", table),
        **({names["norm"]: norm} if has_norm else {}),
        names["head"]: Target(head, table),
    }


def attention_targets(
    sizes: Sizes,
    names: Names,
    layer: int,
    *,
    has_bias: bool = False,
    has_output_bias: bool = False,
    is_joined: bool = False,
    turning: int | None = None,
) -> Targets:
    """Query, key, value and output of grouped attention.

    is_joined: one matrix holds queries, keys and values.
    turning: set where the file keeps query and key rows in the order of interleaved rotary pairs:
    rows of each head that are in it.
    """
    heads, groups, width = sizes.num_heads, sizes.num_groups, sizes.width
    query_rows, group_rows = heads * sizes.head_size, groups * sizes.head_size
    at, to = names["layer"].format(layer), f"blocks.{layer}.attention."
    rows = {"query": query_rows, "key": group_rows, "value": group_rows}
    paired = {"query": heads, "key": groups}
    if is_joined:
        rows, paired = {"joined": query_rows + 2 * group_rows}, {"joined": heads + groups}
    targets = matrix(
        at + names["output"], f"{to}output", 0, (width, query_rows), has_bias=has_output_bias
    )
    for segment, (name, count) in enumerate(rows.items()):
        pairs = None
        if turning is not None and name in paired:
            pairs = PairedRows(paired[name], sizes.head_size, turning)
        targets |= matrix(
            *(at + names[name], f"{to}qkv", segment, (count, width)), has_bias=has_bias, pairs=pairs
        )
    return targets


def gated_targets(
    sizes: Sizes, names: Names, layer: int, *, has_bias: bool = False, is_joined: bool = False
) -> Targets:
    """Gate, up and down of a gated feed-forward. is_joined: one matrix holds gate and up."""
    at, to = names["layer"].format(layer), f"blocks.{layer}.mlp."
    inner, width = sizes.inner, sizes.width
    rows = {"joined_up": 2 * inner} if is_joined else {"gate": inner, "up": inner}
    targets = matrix(at + names["down"], f"{to}down", 0, (width, inner), has_bias=has_bias)
    for segment, (name, count) in enumerate(rows.items()):
        targets |= matrix(
            at + names[name], f"{to}gate_up", segment, (count, width), has_bias=has_bias
        )
    return targets


def plain_targets(sizes: Sizes, names: Names, layer: int, *, has_bias: bool = False) -> Targets:
    """Up and down of a feed-forward without a gate."""
    at, to = names["layer"].format(layer), f"blocks.{layer}.mlp."
    inner, width = sizes.inner, sizes.width
    return {
        **matrix(at + names["up"], f"{to}up", 0, (inner, width), has_bias=has_bias),
        **matrix(at + names["down"], f"{to}down", 0, (width, inner), has_bias=has_bias),
    }


def norm_targets(
    names: Names, layer: int, widths: Mapping[str, int], *, shift: float = 0.0, rest: float = 1.0
) -> Targets:
    """Norms of a layer, by the names of the block's modules.

    widths: by module. A head's norms are called query_norm and key_norm.
    shift, rest: as in Target.
    """
    at, to = names["layer"].format(layer), f"blocks.{layer}."
    inside = {"query_norm": "attention.", "key_norm": "attention."}
    return {
        f"{at}{names[module]}.weight": Target(
            f"{to}{inside.get(module, '')}{module}.weight", (width,), shift=shift, rest=rest
        )
        for module, width in widths.items()
    }


def matrix(
    stored: str,
    module: str,
    segment: int,
    shape: tuple[int, int],
    *,
    has_bias: bool = False,
    pairs: PairedRows | None = None,
    is_transposed: bool = False,
) -> Targets:
    """One segment of a Linear, with its bias where it has one. shape: as the file has it."""
    path = f"{module}.segments.{segment}.weight"
    targets = {f"{stored}.weight": Target(path, shape, pairs, is_transposed)}
    if has_bias:
        rows = shape[1] if is_transposed else shape[0]
        targets[f"{stored}.bias"] = Target(f"{module}.biases.{segment}", (rows,), pairs)
    return targets


def optional_names(sizes: Sizes, layout: Layout, names: Names) -> frozenset[str]:
    """Tensors that a file may hold beside those that the model loads."""
    tied = {names["head"]} if sizes.is_tied else set[str]()
    if layout == "gguf":
        return frozenset(tied | GGUF_FACTORS)
    layers = range(sizes.num_layers)  # older files hold tables that are computed here
    return frozenset(
        tied | {f"{HF['layer'].format(i)}self_attn.rotary_emb.inv_freq" for i in layers}
    )
