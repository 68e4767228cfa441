"""Which earlier tokens each layer sees, as model files say it: all, or a window."""

from __future__ import annotations

from collections.abc import Callable

from cutaway.core.errors import UnsupportedModelError
from cutaway.core.layout import FULL, Extent, Window
from cutaway.models.parts.config_fields import Fields

FULL_LAYER, WINDOW_LAYER = "full_attention", "sliding_attention"


def window_width(config: Fields, name: str) -> int | None:
    """Tokens of a window, the query's own included; None where the field is 0, null or absent."""
    width = config.integer(name, least=0) if config.has(name) else 0
    return width or None


def window_in_all(config: Fields, num_layers: int) -> tuple[Extent, ...]:
    """Extents where one window, by sliding_window, is that of every layer, or none is."""
    width = window_width(config, "sliding_window")
    return (FULL if width is None else Window(width),) * num_layers


def layer_kinds(
    config: Fields, num_layers: int, *, is_window: Callable[[int], bool]
) -> tuple[str, ...]:
    """The kind of each layer by layer_types, or where the file has none by the model's own rule.

    Raises: UnsupportedModelError for a kind that is neither full nor a window.
    """
    kinds = config.texts("layer_types") or tuple(
        WINDOW_LAYER if is_window(layer) else FULL_LAYER for layer in range(num_layers)
    )
    known = (FULL_LAYER, WINDOW_LAYER)
    unknown = sorted(set(kinds) - set(known))
    if unknown or len(kinds) < num_layers:
        raise UnsupportedModelError(
            f"{config.file}: layer_types has {len(kinds)} entries and {unknown or 'no'} unknown "
            f"ones; it must have {num_layers} of {' and '.join(known)}."
        )
    return kinds[:num_layers]


def refuse_bidirectional(config: Fields) -> None:
    """Raise UnsupportedModelError for a model whose tokens see those after them."""
    # Of a model that sees, "vision" speaks of images alone, which are not read.
    if config.truth("use_bidirectional_attention") and not config.holds(
        "use_bidirectional_attention", "vision"
    ):
        value = config.quote("use_bidirectional_attention")
        raise UnsupportedModelError(
            f"{config.file}: use_bidirectional_attention is {value}; causal models are supported."
        )


def qwen_extents(config: Fields, num_layers: int) -> tuple[Extent, ...]:
    """Extents of Qwen models: windows if use_sliding_window, from max_window_layers on."""
    is_used = config.flag("use_sliding_window", False)
    width = window_width(config, "sliding_window") if is_used else None
    first = config.integer("max_window_layers", 28, least=0)
    kinds = layer_kinds(config, num_layers, is_window=lambda layer: layer >= first)
    return extents_of(kinds, width)


def extents_of(kinds: tuple[str, ...], width: int | None) -> tuple[Extent, ...]:
    """Extents by kind; without a width every layer sees all."""
    window = FULL if width is None else Window(width)
    return tuple(window if kind == WINDOW_LAYER else FULL for kind in kinds)
