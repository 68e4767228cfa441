"""A trained speculator in the public layout of speculators: config.json and model.safetensors.

What a folder says is compared with the model that it is to guess for, and refused with the reason
where the two do not fit.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn

from cutaway.blocks.attention.grouped import GroupedAttention
from cutaway.blocks.embedding import Embedding
from cutaway.blocks.guessing_layer import STREAMS, Speculator
from cutaway.blocks.linear import Linear
from cutaway.blocks.mlp import GatedMLP
from cutaway.core.errors import ConfigError, ModelFormatError
from cutaway.core.limits import quote
from cutaway.core.weight_targets import Target
from cutaway.engine.loading.unloaded_model import as_kept
from cutaway.kernels.native import Kind, PackedWeight
from cutaway.models.parts import rotary_config
from cutaway.models.parts.config_fields import Fields
from cutaway.models.parts.sizes import Sizes, sizes_from_hf
from cutaway.quantize.dense import DenseWeight
from cutaway.quantize.packed import Packed, ServingPacked
from cutaway.weights.files.safetensors import SafetensorsWeights
from cutaway.weights.find.folder import CONFIG
from cutaway.weights.load import load_weights

KIND = "eagle3"
_GROUP = 32  # columns that share a scale where they are rounded
TABLE, HEAD, OFFSETS, KNOWN = "embed_tokens.weight", "lm_head.weight", "d2t", "t2d"


@dataclass(frozen=True)
class TargetShape:
    """What a speculator has to fit."""

    name: str
    width: int
    num_layers: int
    vocab_size: int


@dataclass(frozen=True)
class SpeculatorShape:
    """What a config.json says of a speculator.

    layers: of the target, behind which its streams are read.   sizes: of the one layer.
    num_drafted: entries of the vocabulary that can be guessed.
    """

    sizes: Sizes
    layers: tuple[int, ...]
    num_drafted: int
    keeps_normed: bool
    config: Fields

    def build(self, target: TargetShape) -> Speculator:
        """The module with unset weights."""
        sizes = self.sizes
        frequencies = rotary_config.from_hf(
            self.config, head_size=sizes.head_size, max_length=sizes.max_length
        )
        attention = GroupedAttention(
            sizes.width,
            num_heads=sizes.num_heads,
            num_groups=sizes.num_groups,
            head_size=sizes.head_size,
            frequencies=frequencies,
            read_width=2 * sizes.width,
        )
        return Speculator(
            sizes.width,
            target_width=target.width,
            num_drafted=self.num_drafted,
            epsilon=sizes.epsilon,
            attention=attention,
            mlp=GatedMLP(sizes.width, sizes.inner),
            keeps_normed=self.keeps_normed,
        )

    def targets(self, target: TargetShape) -> dict[str, Target]:
        """Where each stored tensor goes."""
        sizes, layer = self.sizes, "layers.0."
        width, size = sizes.width, sizes.head_size
        heads, groups = sizes.num_heads * size, sizes.num_groups * size
        to: dict[str, tuple[str, tuple[int, ...]]] = {
            "fc.weight": ("fuse.segments.0.weight", (width, STREAMS * target.width)),
            f"{layer}input_layernorm.weight": ("token_norm.weight", (width,)),
            f"{layer}hidden_norm.weight": ("state_norm.weight", (width,)),
            f"{layer}self_attn.q_proj.weight": (
                "attention.qkv.segments.0.weight",
                (heads, 2 * width),
            ),
            f"{layer}self_attn.k_proj.weight": (
                "attention.qkv.segments.1.weight",
                (groups, 2 * width),
            ),
            f"{layer}self_attn.v_proj.weight": (
                "attention.qkv.segments.2.weight",
                (groups, 2 * width),
            ),
            f"{layer}self_attn.o_proj.weight": (
                "attention.output.segments.0.weight",
                (width, heads),
            ),
            f"{layer}post_attention_layernorm.weight": ("mlp_norm.weight", (width,)),
            f"{layer}mlp.gate_proj.weight": ("mlp.gate_up.segments.0.weight", (sizes.inner, width)),
            f"{layer}mlp.up_proj.weight": ("mlp.gate_up.segments.1.weight", (sizes.inner, width)),
            f"{layer}mlp.down_proj.weight": ("mlp.down.segments.0.weight", (width, sizes.inner)),
            "norm.weight": ("last_norm.weight", (width,)),
            HEAD: ("head.weight", (self.num_drafted, width)),
        }
        return {name: Target(path, shape) for name, (path, shape) in to.items()}


@dataclass(frozen=True)
class LoadedSpeculator:
    """A speculator ready to guess.

    embedding: of tokens, its own or the target's.   drafted: the id of each entry it can guess
    [drafted] int64.
    """

    module: Speculator
    embedding: Embedding
    layers: tuple[int, ...]
    drafted: Tensor


def default_layers(num_layers: int) -> tuple[int, ...]:
    """Layers behind which streams are read where a config names none: early, middle and late.

    The layout counts a stream by the layer that reads it: 2, L / 2 and L - 3, as far as there are
    such.
    """
    layers = (1, num_layers // 2 - 1, num_layers - 4)
    return tuple(max(0, min(each, num_layers - 1)) for each in layers)


def read_shape(config: Mapping[str, object], target: TargetShape, *, file: str) -> SpeculatorShape:
    """What a config.json says. Raises: ModelFormatError, ConfigError where it does not fit."""
    fields = Fields(config, file=file)
    kind = fields.text("speculators_model_type", "")
    if kind != KIND:
        raise ConfigError(
            f"draft_speculator {file} is of type {quote(kind)}; it must be {KIND}: one layer over "
            "three of the model's streams."
        )
    inner = fields.read_mapping("transformer_layer_config")
    sizes = sizes_from_hf(inner)
    if sizes.num_layers != 1:
        raise _misfit(file, target, f"it has {sizes.num_layers} layers", "1")
    if fields.flag("norm_before_fc", False):
        raise _misfit(file, target, "it norms streams before it joins them", "without norms there")
    if sizes.vocab_size != target.vocab_size:
        found = f"its vocabulary has {sizes.vocab_size:,} entries"
        raise _misfit(file, target, found, f"{target.vocab_size:,}")
    has_own = fields.has("target_hidden_size")
    width = fields.integer("target_hidden_size") if has_own else sizes.width
    if width != target.width:
        raise _misfit(file, target, f"it reads streams of width {width}", f"{target.width}")
    num_drafted = fields.integer("draft_vocab_size", sizes.vocab_size)
    if num_drafted > sizes.vocab_size:
        found = f"it guesses {num_drafted:,} entries"
        raise _misfit(file, target, found, f"at most {target.vocab_size:,}")
    return SpeculatorShape(
        sizes=sizes,
        layers=_layers(config, target, file),
        num_drafted=num_drafted,
        keeps_normed=fields.flag("norm_before_residual", False),
        config=inner,
    )


def load_speculator(
    folder: Path,
    target: TargetShape,
    embedding: Embedding,
    table: DenseWeight | Packed,
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> LoadedSpeculator:
    """The speculator of a folder.

    embedding, table: the target's, and its map to the vocabulary, which serve where the folder has
    none of its own.
    Raises: ConfigError, ModelError and its kinds.
    """
    path = folder / CONFIG
    try:
        config = cast("object", json.loads(path.read_bytes()))
    except OSError as error:
        raise ConfigError(f"draft_speculator {path} cannot be read: {error.strerror}.") from None
    except (ValueError, RecursionError):
        raise ModelFormatError("is not JSON.", file=str(path), field="config") from None
    if not isinstance(config, dict):
        raise ModelFormatError("is no object.", file=str(path), field="config")
    told = cast("dict[str, object]", config)
    shape = read_shape(told, target, file=str(path))
    stored = SafetensorsWeights(folder)
    source = as_kept(stored, told.get("quantization_config"), str(path))
    with torch.device("meta"):
        module = shape.build(target).requires_grad_(False)
    is_shared = HEAD not in source.names() and shape.sizes.width == target.width
    wanted = shape.targets(target)
    if is_shared:
        del wanted[HEAD], module.head  # it comes from the target below
    load_weights(
        module,
        source,
        wanted,
        dtype=dtype,
        device=device,
        optional=frozenset({TABLE, OFFSETS, KNOWN}),
    )
    own = embedding
    if TABLE in source.names():
        own = Embedding(target.vocab_size, shape.sizes.width)
        expected = (target.vocab_size, shape.sizes.width)
        if source.shape(TABLE) != expected:
            found = f"{TABLE} has shape {source.shape(TABLE)}"
            raise _misfit(str(folder), target, found, f"{expected}")
        own.table = DenseWeight.of(source.tensor(TABLE).to(device=device, dtype=dtype))
    elif shape.sizes.width != target.width:
        raise _misfit(str(folder), target, f"it has no {TABLE} and another width", "with one")
    drafted = _drafted(stored, shape, target, str(folder)).to(device)
    if is_shared:
        module.head = DenseWeight.of(table.rows(drafted).to(device=device, dtype=dtype))
    if isinstance(table, Packed):
        _pack(module)
    return LoadedSpeculator(module.eval(), own, shape.layers, drafted)


def _pack(module: Speculator) -> None:
    """Keep its matrices in few bits, as a packed target's are: reading them is what a guess costs.

    The map to the vocabulary, which is most of it, in 4: of 1,507 first guesses 632 were right by
    it, 630 by 8 bits. A layer of 4 bits guessed 1.4 % fewer tokens a step.
    """
    for each in module.modules():
        if isinstance(each, Linear):
            packed = [_packed(cast(DenseWeight, segment)) for segment in each.segments]
            each.segments = nn.ModuleList(packed)
    head = cast(DenseWeight, module.head)
    module.head = _packed(head)
    if head.weight.shape[1] % _GROUP == 0:
        matrix = head.weight.detach().to(torch.float32)
        module.head = ServingPacked(PackedWeight.from_matrix(matrix, Kind.Q4_AFFINE))


def _packed(weight: DenseWeight) -> Packed:
    return ServingPacked.of(weight.weight.detach(), row_order=None, widens=True)


def _drafted(
    source: SafetensorsWeights, shape: SpeculatorShape, target: TargetShape, file: str
) -> Tensor:
    """The id of each entry: the layout keeps its distance from the entry's own number."""
    places = torch.arange(shape.num_drafted)
    if OFFSETS not in source.names():
        if shape.num_drafted != target.vocab_size:
            raise _misfit(
                file, target, f"it has no {OFFSETS} and a vocabulary of its own", "with one"
            )
        return places
    if source.shape(OFFSETS) != (shape.num_drafted,):
        found = f"{OFFSETS} has shape {source.shape(OFFSETS)}"
        raise _misfit(file, target, found, f"({shape.num_drafted},)")
    ids = places + source.part(OFFSETS)
    known = set(cast("list[int]", ids.tolist()))
    if min(known) < 0 or max(known) >= target.vocab_size or len(known) < len(ids):
        found = f"{OFFSETS} leads outside the vocabulary or twice to an id"
        raise _misfit(file, target, found, f"ids below {target.vocab_size:,}, each once")
    return ids


def _layers(config: Mapping[str, object], target: TargetShape, file: str) -> tuple[int, ...]:
    told = config.get("eagle_aux_hidden_state_layer_ids")
    if told is None:
        layers = default_layers(target.num_layers)
    elif isinstance(told, list) and all(type(each) is int for each in cast("list[object]", told)):
        layers = tuple(each - 1 for each in cast("list[int]", told))
    else:
        found = quote(cast("object", told))
        raise ModelFormatError(
            f"is {found}; it must be a list of {STREAMS} whole numbers, or null.",
            file=file,
            field="eagle_aux_hidden_state_layer_ids",
        )
    is_sound = len(layers) == STREAMS and all(0 <= each < target.num_layers for each in layers)
    if not is_sound:
        found = f"it reads streams before layers {', '.join(str(each + 1) for each in layers)}"
        raise _misfit(file, target, found, f"{STREAMS} of 1 to {target.num_layers}")
    return layers


def _misfit(file: str, target: TargetShape, found: str, allowed: str) -> ConfigError:
    return ConfigError(
        f"draft_speculator {file} does not fit {target.name}: {found}; allowed is {allowed}. Take "
        "one that was trained for this model."
    )
