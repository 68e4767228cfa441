"""Sinks that change values on their way: parts that add nothing, and vectors from elsewhere.

A sink counts tokens to know where it is: it stands beside one sequence that is computed from its
first token on, with nobody beside it and nothing found in the prefix cache.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from cutaway.compare.levers import Change
from cutaway.core.errors import RequestError
from cutaway.core.facts import ModelFacts
from cutaway.core.step import Sink

ATTENTION, MLP = "blocks.attention.update", "blocks.mlp.update"
MIXED, STREAM = "blocks.attention.mixed", "blocks.hidden"

_NUMBER = "[0-9]{1,18}"  # more would be no place, and int() takes no more than 4,300
_ABLATE = re.compile(rf"({_NUMBER})(?:\.({_NUMBER}|attention|mlp))?")
_PATCH = re.compile(rf"({_NUMBER})@({_NUMBER}):({_NUMBER}|zero)")


def change_nothing(name: str, value: Tensor, layer: int | None) -> None:
    """Change nothing; a model that it looks at runs as modules, as one that is changed does."""


@dataclass(frozen=True)
class Ablation:
    """What adds nothing: a layer, its attention, its feed-forward, or one head's result."""

    layer: int
    head: int | None = None
    taps: tuple[str, ...] = (ATTENTION, MLP)

    def sink(self) -> Sink:
        """A sink that puts zeros in place of what the part gives.

        Raises: RequestError, once it runs, for a head that the layer does not have.
        """

        def zeroed(name: str, value: Tensor, layer: int | None) -> Tensor | None:
            if layer != self.layer:
                return None
            if self.head is not None and name == MIXED:
                if self.head >= value.shape[1]:
                    raise RequestError(
                        f"head is {self.head}; layer {layer} has heads 0 to {value.shape[1] - 1}.",
                        param="change",
                    )
                value = value.clone()
                value[:, self.head] = 0
                return value
            return value.new_zeros(value.shape) if name in self.taps else None

        return zeroed


def ablation_of(change: Change, facts: ModelFacts) -> Ablation:
    """The part that a change names. Raises: RequestError for a layer or head that there is not."""
    found = _ABLATE.fullmatch(change.value)
    layer = int(found[1]) if found else -1
    if not found or not 0 <= layer < facts.num_layers:
        raise change.refusal(
            "it must be LAYER, LAYER.HEAD, LAYER.attention or LAYER.mlp, with layers from 0 to "
            f"{facts.num_layers - 1}"
        )
    part = found[2]
    if part is None:
        return Ablation(layer)
    if part in ("attention", "mlp"):
        return Ablation(layer, taps=(ATTENTION,) if part == "attention" else (MLP,))
    if int(part) >= facts.num_heads:
        raise change.refusal(f"a head must be from 0 to {facts.num_heads - 1}")
    return Ablation(layer, head=int(part), taps=())


@dataclass(frozen=True)
class Patch:
    """One position's stream behind a layer is that of an earlier position, or nothing."""

    layer: int
    position: int
    other: int | None  # None puts zeros there

    def sink(self) -> Sink:
        """A sink for one sequence from its start; it remembers the vector that it brings."""
        counted = _counted()
        kept: list[Tensor] = []

        def patched(name: str, value: Tensor, layer: int | None) -> Tensor | None:
            start, end = counted(name, value)
            if name != STREAM or layer != self.layer:
                return None
            if self.other is not None and start <= self.other < end:
                kept.append(value[self.other - start].clone())
            if not start <= self.position < end:
                return None
            value = value.clone()
            value[self.position - start] = 0 if self.other is None else kept[-1]
            return value

        return patched


def patch_of(change: Change, facts: ModelFacts, *, num_positions: int) -> Patch:
    """The place and the vector that a change names.

    Raises: RequestError for a place that there is not, or a vector that comes too late.
    """
    found = _PATCH.fullmatch(change.value)
    layer, position = (int(found[1]), int(found[2])) if found else (-1, -1)
    other = None if not found or found[3] == "zero" else int(found[3])
    if (
        not 0 <= layer < facts.num_layers
        or not 0 <= position < num_positions
        or (other is not None and other > position)
    ):
        raise change.refusal(
            "it must be LAYER@POSITION:OTHER or LAYER@POSITION:zero, with layers from 0 to "
            f"{facts.num_layers - 1}, positions from 0 to {num_positions - 1}, and another "
            "position that is not behind it"
        )
    return Patch(layer, position, other)


def _counted() -> Callable[[str, Tensor], tuple[int, int]]:
    """Says of which positions a tap's values are: every step begins with the embedding's."""
    span = [0, 0]

    def where(name: str, value: Tensor) -> tuple[int, int]:
        if name == "embedding.hidden":
            span[:] = [span[1], span[1] + len(value)]
        return span[0], span[1]

    return where
