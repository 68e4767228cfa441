"""What readers of a config.json share: what layers see, heads, and models of grouped attention."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cutaway.core.config_reader import SLIDING, Reader
from cutaway.core.layout import FULL, Extent, Window
from cutaway.core.shapes import Grouped, LayerShape, Mlp, ModelShape


def extents_of(read: Reader, kinds: Sequence[str], *, width: int | None = None) -> Sequence[Extent]:
    """What each layer sees. width: the default of sliding_window."""
    return [
        Window(read.integer("sliding_window", width)) if kind == SLIDING else FULL for kind in kinds
    ]


def heads_of(read: Reader) -> tuple[int, int, int]:
    """Query heads, groups, and the size of a head."""
    heads = read.integer("num_attention_heads")
    groups = read.integer("num_key_value_heads", heads)
    if heads % groups:
        raise read.wrong("num_key_value_heads", groups, f"a divisor of the {heads} heads")
    return heads, groups, read.integer("head_dim", max(1, read.integer("hidden_size") // heads))


def model_of(read: Reader, layers: Sequence[LayerShape], *, is_tied: bool = False) -> ModelShape:
    width = read.integer("hidden_size")
    return ModelShape(
        architecture=read.architecture,
        vocab_size=read.integer("vocab_size"),
        width=width,
        is_tied=read.flag("tie_word_embeddings", is_tied),
        layers=tuple(layers),
        norms=width,
    )


def grouped_model(
    read: Reader,
    mlp: Callable[[int], Mlp],
    extents: Sequence[Extent],
    *,
    has_bias: bool = False,
    has_output_bias: bool = False,
    has_head_norms: bool = False,
    has_sinks: bool = False,
    num_norms: int = 2,
    is_tied: bool = False,
) -> ModelShape:
    """Grouped attention that is the same in all layers but for what it sees.

    num_norms: of a layer, each as wide as the model.   is_tied: where the file does not say it.
    """
    heads, groups, size = heads_of(read)
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
            norms=num_norms * read.integer("hidden_size"),
        )
        for layer, extent in enumerate(extents)
    ]
    return model_of(read, layers, is_tied=is_tied)


def all_alike(read: Reader, extent: Extent = FULL) -> Sequence[Extent]:
    return [extent] * read.integer("num_hidden_layers")


def window_of(read: Reader, *, default: int | None = None) -> Extent:
    """A window over all layers. Null is none; default: where the field is absent."""
    if "sliding_window" in read.config and not read.has("sliding_window"):
        return FULL
    if default is None and not read.has("sliding_window"):
        return FULL
    return Window(read.integer("sliding_window", default))


def is_sparse(read: Reader, layer: int) -> bool:
    step = read.integer("decoder_sparse_step", 1)
    return layer not in read.integers("mlp_only_layers") and (layer + 1) % step == 0
