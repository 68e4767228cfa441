"""GPT-2: learned positions, LayerNorm, one matrix for queries, keys and values, biases all over."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cutaway.core.errors import ModelFormatError, UnsupportedModelError
from cutaway.core.facts import ModelFacts
from cutaway.core.shapes import Grouped, LayerShape, MatrixShape, Mlp, ModelShape
from cutaway.core.weight_targets import Target
from cutaway.models.parts import tensor_names
from cutaway.models.parts.activation_words import activation_name
from cutaway.models.parts.architecture import Layout
from cutaway.models.parts.config_fields import Fields
from cutaway.models.parts.sizes import Sizes, facts_of, sizes_from_gguf

if TYPE_CHECKING:
    from cutaway.blocks.block import Block
    from cutaway.blocks.norm import LayerNorm
    from cutaway.blocks.transformer import Transformer


def from_hf(config: Fields) -> GPT2:
    """Read a config.json."""
    if config.flag("add_cross_attention", False):
        raise UnsupportedModelError(
            f"{config.file}: add_cross_attention is true; decoders alone are supported."
        )
    width, num_heads = config.integer("n_embd", 768), config.integer("n_head", 12)
    if width % num_heads:
        raise ModelFormatError(
            f"is {num_heads}; it must divide n_embd, {width}.", file=config.file, field="n_head"
        )
    sizes = Sizes(
        vocab_size=config.integer("vocab_size", 50_257),
        width=width,
        inner=config.integer("n_inner", 4 * width),
        num_layers=config.integer("n_layer", 12),
        num_heads=num_heads,
        num_groups=num_heads,
        head_size=max(1, width // num_heads),
        epsilon=config.number("layer_norm_epsilon", 1e-5),
        max_length=config.integer("n_positions", 1024),
        is_tied=config.flag("tie_word_embeddings", True),
        end_token_ids=config.integers("eos_token_id"),
    )
    scale = sizes.head_size**-0.5 if config.flag("scale_attn_weights", True) else 1.0
    falls = config.flag("scale_attn_by_inverse_layer_idx", False)
    return GPT2(
        sizes=sizes,
        activation=activation_name(config, "activation_function", "gelu_new"),
        softmax_scales=tuple(
            scale / (layer + 1) if falls else scale for layer in range(sizes.num_layers)
        ),
    )


def from_gguf(
    metadata: Fields,
    shapes: Mapping[str, tuple[int, ...]],
    factors: Mapping[str, tuple[float, ...]],
) -> GPT2:
    """Read GGUF metadata, its fields without the prefix "gpt2."."""
    sizes = sizes_from_gguf(metadata, shapes, epsilon="attention.layer_norm_epsilon")
    return GPT2(
        sizes=sizes,
        activation="gelu_tanh",
        softmax_scales=(sizes.head_size**-0.5,) * sizes.num_layers,
    )


@dataclass(frozen=True, kw_only=True)
class GPT2:
    """Configuration of a GPT-2 model."""

    sizes: Sizes
    activation: str
    softmax_scales: tuple[float, ...]  # of each layer

    @property
    def end_token_ids(self) -> tuple[int, ...]:
        """Ids that end an answer according to the model's own configuration."""
        return self.sizes.end_token_ids

    @property
    def facts(self) -> ModelFacts:
        """What the engine has to know of the model before it is built."""
        specs = self.shape.cache_specs
        return facts_of(self.sizes, "gpt2", targets=self.targets("hf"), cache_specs=specs)

    @property
    def shape(self) -> ModelShape:
        """Everything that sizes follow from, for estimates."""
        sizes = self.sizes
        layer = LayerShape(
            attention=Grouped(
                num_heads=sizes.num_heads,
                num_groups=sizes.num_groups,
                head_size=sizes.head_size,
                has_bias=True,
                has_output_bias=True,
            ),
            mlp=Mlp(inner=sizes.inner, is_gated=False, has_bias=True),
            norms=4 * sizes.width,  # two, each with a bias
        )
        return ModelShape(
            architecture="gpt2",
            vocab_size=sizes.vocab_size,
            width=sizes.width,
            is_tied=sizes.is_tied,
            layers=(layer,) * sizes.num_layers,
            norms=2 * sizes.width,
            more=(MatrixShape(sizes.max_length, sizes.width, kind="lookup"),),
        )

    def build(self) -> Transformer:
        """The model with unset weights."""
        from cutaway.blocks.embedding import LearnedPositions
        from cutaway.models.parts.decoder import decoder

        return decoder(
            self.sizes,
            [self._block(scale) for scale in self.softmax_scales],
            norm=self._norm(),
            positions=LearnedPositions(self.sizes.max_length, self.sizes.width),
        )

    def _norm(self) -> LayerNorm:
        from cutaway.blocks.norm import LayerNorm

        return LayerNorm(self.sizes.width, self.sizes.epsilon)

    def _block(self, softmax_scale: float) -> Block:
        from cutaway.blocks.activations import ACTIVATIONS
        from cutaway.blocks.attention.grouped import GroupedAttention
        from cutaway.blocks.block import Block
        from cutaway.blocks.mlp import PlainMLP

        sizes = self.sizes
        return Block(
            norms=(self._norm(), self._norm()),
            attention=GroupedAttention(
                sizes.width,
                num_heads=sizes.num_heads,
                num_groups=sizes.num_groups,
                head_size=sizes.head_size,
                frequencies=None,
                has_bias=True,
                has_output_bias=True,
                is_fused=True,
                softmax_scale=softmax_scale,
            ),
            mlp=PlainMLP(
                *(sizes.width, sizes.inner),
                activation=ACTIVATIONS[self.activation],
                has_bias=True,
            ),
        )

    def targets(self, layout: Layout) -> Mapping[str, Target]:
        """Where each tensor of a file goes."""
        table = _HF if layout == "hf" else _GGUF
        width, inner = self.sizes.width, self.sizes.inner
        positions = Target("embedding.positions.table.weight", (self.sizes.max_length, width))
        targets = tensor_names.end_targets(self.sizes, table) | {table["positions"]: positions}
        targets |= _norm_targets(table["norm"], "unembedding.norm", width)
        matrices = (
            ("qkv", "attention.qkv", (3 * width, width)),
            ("output", "attention.output", (width, width)),
            ("up", "mlp.up", (inner, width)),
            ("down", "mlp.down", (width, inner)),
        )
        for layer in range(self.sizes.num_layers):
            at, to = table["layer"].format(layer), f"blocks.{layer}."
            for norm in ("attention_norm", "mlp_norm"):
                targets |= _norm_targets(f"{at}{table[norm]}.weight", to + norm, width)
            for name, module, (rows, columns) in matrices:
                # Its own checkpoints multiply from the left, so they keep matrices transposed.
                is_transposed = layout == "hf"
                shape = (columns, rows) if is_transposed else (rows, columns)
                targets |= tensor_names.matrix(
                    at + table[name],
                    to + module,
                    0,
                    shape,
                    has_bias=True,
                    is_transposed=is_transposed,
                )
        return targets

    def optional(self, layout: Layout) -> frozenset[str]:
        """Tensors that a file may hold although the model does not load them."""
        table = _HF if layout == "hf" else _GGUF
        layers = range(self.sizes.num_layers)
        masks = {  # constants that older files hold
            f"{table['layer'].format(i)}attn.{word}" for i in layers for word in _MASKS
        }
        return frozenset(({table["head"]} if self.sizes.is_tied else set[str]()) | masks)


def _norm_targets(stored: str, module: str, width: int) -> tensor_names.Targets:
    """Weight and bias, by the stored weight's name."""
    return {
        stored: Target(f"{module}.weight", (width,)),
        f"{stored.removesuffix('.weight')}.bias": Target(f"{module}.bias", (width,)),
    }


_MASKS = ("bias", "masked_bias")

_HF: tensor_names.Names = {
    "table": "transformer.wte.weight",
    "positions": "transformer.wpe.weight",
    "norm": "transformer.ln_f.weight",
    "head": "lm_head.weight",
    "layer": "transformer.h.{}.",
    "attention_norm": "ln_1",
    "mlp_norm": "ln_2",
    "qkv": "attn.c_attn",
    "output": "attn.c_proj",
    "up": "mlp.c_fc",
    "down": "mlp.c_proj",
}

_GGUF: tensor_names.Names = {
    **tensor_names.GGUF,
    "positions": "position_embd.weight",
    "qkv": "attn_qkv",
}
