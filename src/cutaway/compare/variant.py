"""The same weights in another shape: positions, window, attention or experts other than theirs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import is_dataclass, replace
from typing import Any, cast

from torch import nn

from cutaway.blocks.attention.grouped import NAIVE, GroupedAttention
from cutaway.blocks.block import Block
from cutaway.blocks.moe import MixtureOfExperts
from cutaway.blocks.positions import (
    Dynamic,
    Frequencies,
    LinearScaling,
    Llama3,
    Plain,
    Yarn,
    scaling_name,
    yarn_attention_factor,
)
from cutaway.blocks.transformer import Transformer
from cutaway.core.errors import ConfigError, RequestError
from cutaway.core.layout import FULL, Extent, Window
from cutaway.core.limits import quote
from cutaway.engine.loading.loaded_model import LoadedModel

Edit = Callable[[nn.Module], nn.Module]
Scaling = Callable[[Plain, float, int], Frequencies]

# Of plain frequencies by a factor, from a trained length: as a config.json that names the factor.
SCALINGS: Mapping[str, Scaling] = {
    "linear": lambda plain, factor, _: LinearScaling(plain.size, plain.base, factor),
    "dynamic": lambda plain, factor, trained: Dynamic(plain.size, plain.base, factor, trained),
    "yarn": lambda plain, factor, trained: Yarn(
        plain.size,
        plain.base,
        factor,
        trained,
        attention_factor=yarn_attention_factor(factor),
    ),
    # Its two bounds are those of every published Llama 3.
    "llama3": lambda plain, factor, trained: Llama3(
        plain.size, plain.base, factor, 1.0, 4.0, trained
    ),
}


def without_positions(model: LoadedModel) -> LoadedModel:
    """No head is turned, and nothing by position is added to the embedding.

    Raises: RequestError for a model that marks positions in neither way.
    """
    transformer = model.transformer
    embedding = transformer.embedding
    if not transformer.frequencies and embedding.positions is None:
        raise RequestError(
            f"positions is 'off', but {model.name} marks none that could be left out.",
            param="change",
        )
    if embedding.positions is not None:
        embedding = _changed(embedding, positions=None)

    def unturned(part: nn.Module) -> nn.Module:
        turns = getattr(part, "frequencies", None) is not None
        return _changed(part, frequencies=None) if turns else part

    return _variant(model, attention=unturned, first=embedding)


def lengthen(model: LoadedModel, length: int, *, scaling: str | None = None) -> LoadedModel:
    """The model for texts longer than those that it was made for.

    scaling: of SCALINGS, by how many times longer, where a layer sees all; a layer with a window
        meets no distance that is new to it. None leaves all frequencies as they were trained.
    Raises: ConfigError for a model whose positions are not rotary, or scaled already.
    """
    trained = model.facts.max_length

    def turned(part: nn.Module) -> nn.Module:
        plain = cast("Frequencies | None", getattr(part, "frequencies", None))
        if plain is None or scaling is None or isinstance(getattr(part, "extent", FULL), Window):
            return part
        if not isinstance(plain, Plain) or plain.factors:
            raise ConfigError(
                f"scaling is {quote(scaling)}, but {model.name} has frequencies that are scaled "
                "already "
                f"({scaling_name(plain)}). Take a model without."
            )
        return _changed(part, frequencies=SCALINGS[scaling](plain, length / trained, trained))

    if not model.transformer.frequencies:
        raise ConfigError(
            f"{model.name} has no rotary positions; behind its {trained:,} tokens there is nothing "
            "that could be computed or scaled. Take a model that has."
        )
    variant = _variant(model, attention=turned)
    return replace(variant, facts=replace(variant.facts, max_length=length))


def with_window(model: LoadedModel, width: int) -> LoadedModel:
    """Every layer that sees more than the last width tokens sees no more than those."""

    def narrowed(part: nn.Module) -> nn.Module:
        extent = cast("Extent | None", getattr(part, "extent", None))
        if extent is None:
            raise RequestError(
                f"window is {width}, but {model.name} has layers whose attention takes none.",
                param="change",
            )
        is_wider = extent == FULL or (isinstance(extent, Window) and extent.width > width)
        sinks = extent.sinks if isinstance(extent, Window) else 0
        return _changed(part, extent=Window(width, sinks)) if is_wider else part

    return _variant(model, attention=narrowed)


def with_naive_attention(model: LoadedModel) -> LoadedModel:
    """Attention as the formula has it: all scores of a sequence in memory, one softmax.

    Raises: RequestError for a model with layers that have no such form.
    """

    def naive(part: nn.Module) -> nn.Module:
        if not isinstance(part, GroupedAttention):
            raise RequestError(
                f"attention is 'naive', but {model.name} has layers with one form: their heads "
                "share one latent row, or they keep a state.",
                param="change",
            )
        return _changed(part, over_pages=NAIVE)

    return _variant(model, attention=naive)


def with_experts(model: LoadedModel, count: int) -> LoadedModel:
    """Every token goes through so many experts of a layer that has some."""

    def routed(part: nn.Module) -> nn.Module:
        if not isinstance(part, MixtureOfExperts):
            return part
        if not 1 <= count <= part.experts.num_experts:
            raise RequestError(
                f"experts_per_token is {count}; it must be from 1 to {part.experts.num_experts}.",
                param="change",
            )
        rule = cast(Any, part.router.rule)
        if is_dataclass(rule):
            rule = replace(cast(Any, rule), num_chosen=count)
        else:
            rule = _changed(rule, num_chosen=count)
        return _changed(part, router=_changed(part.router, rule=rule))

    if not num_experts(model):
        raise RequestError(
            f"experts_per_token is {count}, but {model.name} has no experts.", param="change"
        )
    return _variant(model, mlp=routed)


def num_experts(model: LoadedModel) -> int:
    """Of the layer that has the fewest of those that have some; 0 where none has."""
    parts = [cast(Block, block).mlp for block in model.transformer.blocks]
    counts = [part.experts.num_experts for part in parts if isinstance(part, MixtureOfExperts)]
    return min(counts, default=0)


def _variant(
    model: LoadedModel,
    *,
    attention: Edit = lambda part: part,
    mlp: Edit = lambda part: part,
    first: nn.Module | None = None,
) -> LoadedModel:
    """A model of edited blocks over the very same matrices."""
    was = model.transformer
    blocks = [
        _changed(
            block,
            attention=attention(cast(nn.Module, block.attention)),
            mlp=mlp(cast(nn.Module, block.mlp)),
        )
        for block in (cast(Block, each) for each in was.blocks)
    ]
    transformer = Transformer(
        embedding=cast(Any, first or was.embedding),
        blocks=blocks,
        unembedding=was.unembedding,
        layer_inputs=was.layer_inputs,
    ).eval()
    facts = replace(model.facts, cache_specs=transformer.cache_specs)
    return replace(model, transformer=transformer, facts=facts)


def _changed(part: Any, **values: object) -> Any:
    """A shallow copy of a module with other attributes; what it holds is shared."""
    made = copy(part)
    # A copy shares these with the original, and setting one would change both.
    for name in ("_modules", "_parameters", "_buffers"):
        made.__dict__[name] = copy(part.__dict__[name])
    for name, value in values.items():
        made.__dict__.pop(name, None)
        setattr(made, name, value)
    return made
