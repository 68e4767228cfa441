"""Where a stored tensor goes in the model: the contract between architectures and loaders."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Target:
    """Destination of one stored tensor.

    heads: set when the file keeps the rows of each of so many heads in the order of interleaved
    rotary pairs; the loader then restores half-split order.
    is_transposed: set when the file has the last two dimensions the other way round.
    shift: added to every stored value, for files that keep a weight another way.
    rest: what a vector that is no bias holds where nothing was learned.
    part: set when the tensor is a part of its parameter, for instance one expert of a stack.
    """

    parameter: str  # dotted path of the module's parameter
    shape: tuple[int, ...]  # as the file has it
    heads: int | None = None
    is_transposed: bool = False
    part: tuple[int | slice, ...] = ()  # index of the parameter's leading dimensions
    shift: float = 0.0
    rest: float = 1.0

    @property
    def final_shape(self) -> tuple[int, ...]:
        """Shape that the tensor has in the model."""
        if not self.is_transposed:
            return self.shape
        return (*self.shape[:-2], self.shape[-1], self.shape[-2])
