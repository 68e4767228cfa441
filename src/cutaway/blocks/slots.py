"""What the slots of a block take: protocols of norm, attention and feed-forward."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from cutaway.blocks.positions import Frequencies
from cutaway.core.layout import CacheSpec
from cutaway.core.step import Step
from cutaway.kernels.norm.late import LateNorm

Cosines = tuple[Tensor, Tensor]  # cosines and sines [T, C'/2] of the step's positions


class Norm(Protocol):
    """Normalizes rows. Shapes: [..., D] -> [..., D]."""

    def __call__(self, hidden: Tensor) -> Tensor: ...


@runtime_checkable
class AddingNorm(Protocol):
    """A norm that can be taken of a sum while the sum is made."""

    def add(self, hidden: Tensor, update: Tensor) -> tuple[Tensor, Tensor]:
        """The sum of both, and its norm. Shapes: [..., D] each."""
        ...

    def add_later(self, hidden: Tensor, update: Tensor) -> LateNorm | None:
        """Both, for whoever reads the norm to take it; None where that does not pay."""
        ...


@runtime_checkable
class NormTaker(Protocol):
    """A part that may be given a norm that nobody has taken yet, in the place of its result."""

    takes_norm: bool


def given_to(part: object, normed: Tensor | LateNorm) -> Any:
    """What a part reads: the norm, taken here unless the part takes it."""
    if isinstance(normed, Tensor) or isinstance(part, NormTaker):
        return normed
    return normed.take()


class Attention(Protocol):
    """Mixes tokens of a sequence; says what it keeps of them and how it marks positions."""

    @property
    def cache_spec(self) -> CacheSpec:
        """What the layer keeps."""
        ...

    @property
    def frequencies(self) -> Frequencies | None:
        """Of its rotary positions; None where it has none."""
        ...

    def __call__(self, hidden: Tensor, rotation: Cosines | None, step: Step, layer: int) -> Tensor:
        """Shapes: hidden [T, D] -> [T, D]. rotation: by its frequencies, None without them."""
        ...


class FeedForward(Protocol):
    """Changes each token alone. Shapes: hidden [T, D] -> [T, D]."""

    def __call__(self, hidden: Tensor, step: Step, layer: int) -> Tensor: ...
