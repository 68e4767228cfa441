"""The streams that a step left behind some layers, for a drafter that reads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from cutaway.kernels.native import RowRoom, row_rooms

_FEW = 8  # rows that are copied one by one: of more a copy by torch is sooner


class Streams:
    """Keeps what the latest step left behind each of some layers."""

    def __init__(self, layers: Sequence[int]) -> None:
        self.layers = tuple(layers)
        self._values: dict[int, Tensor] = {}
        self._left: Mapping[int, Tensor] | None = None  # where native steps leave them
        self._rooms: tuple[RowRoom, ...] | None = None  # the same, by layer
        self._num_left = 0  # of the latest step

    def __call__(self, stream: Tensor, layer: int) -> None:
        """Keep a stream if it is wanted. Shapes: [T, D]."""
        if layer in self.layers:
            self._num_left = 0
            self._values[layer] = stream.clone()

    def leave(self, streams: Mapping[int, Tensor], num_tokens: int) -> None:
        """Where a step has left its streams until the next one. Shapes: [room, D] each."""
        if streams is not self._left:  # each step leaves them in the same place
            self._left = streams
            self._rooms = row_rooms([streams[layer] for layer in self.layers])
        self._num_left = num_tokens

    @property
    def are_there(self) -> bool:
        """Whether the latest step left any, and nobody has dropped them."""
        return self._num_left > 0 or len(self._values) == len(set(self.layers))

    def room(self, count: int) -> RowRoom:
        """Room for so many of them, side by side."""
        values = [self._kept[layer] for layer in self.layers]
        width = sum(each.shape[1] for each in values)
        return RowRoom(values[0].new_empty(count, width))

    def put(self, first: int, count: int, out: RowRoom, place: int) -> None:
        """Put those of some tokens side by side into rows from a place on; they are there."""
        if self._num_left and count <= _FEW and self._rooms is not None:
            for row in range(count):
                out.put_side_by_side(self._rooms, first + row, place + row)
            return
        with torch.inference_mode():
            out.tensor[place : place + count] = self._rows(first, first + count)

    def take(self) -> Tensor | None:
        """All of them side by side, once; None where no step left any. Shapes: [T, layers D]."""
        if not self.are_there:
            return None
        taken = self._rows(0, self._num_left or None)
        self.drop()
        return taken

    def drop(self) -> None:
        """Forget them: nobody reads this step's."""
        self._num_left, self._values = 0, {}

    @property
    def _kept(self) -> Mapping[int, Tensor]:
        return self._left if self._num_left and self._left is not None else self._values

    def _rows(self, first: int, end: int | None) -> Tensor:
        return torch.cat([self._kept[layer][first:end] for layer in self.layers], dim=-1)
