"""What one architecture file gives: facts, an unloaded model, and where each stored tensor goes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

from cutaway.core.facts import ModelFacts
from cutaway.core.shapes import ModelShape
from cutaway.core.weight_targets import Target

if TYPE_CHECKING:
    from cutaway.blocks.transformer import Transformer

Layout = Literal["hf", "gguf"]


class Architecture(Protocol):
    """One model's configuration, understood. Free of torch until build()."""

    @property
    def facts(self) -> ModelFacts:
        """What the engine has to know of the model before it is built."""
        ...

    @property
    def shape(self) -> ModelShape:
        """Everything that sizes follow from, for estimates."""
        ...

    @property
    def end_token_ids(self) -> tuple[int, ...]:
        """Ids that end an answer according to the model's own configuration."""
        ...

    def build(self) -> Transformer:
        """The model with unset weights; call under torch.device("meta") to save memory."""
        ...

    def targets(self, layout: Layout) -> Mapping[str, Target]:
        """Where each tensor of a file goes."""
        ...

    def optional(self, layout: Layout) -> frozenset[str]:
        """Tensors that a file may hold although the model does not load them."""
        ...


@runtime_checkable
class FitsNames(Protocol):
    """An architecture whose files come in more than one layout, told apart by names alone."""

    def fitting(self, stored: Collection[str]) -> Architecture:
        """The same for files that hold these names."""
        ...
