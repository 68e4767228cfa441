"""A forward recorded once and replayed: buffers with room for the largest step, and native calls.

What CUDA graphs are to a GPU this is to a CPU; but the number of rows is read at run time, so one
recording serves every step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import Tensor

from cutaway.core.step import Numbers, Step
from cutaway.kernels.native import NativeStep, Operation, Program, Rotation, is_available, room
from cutaway.kernels.native.library import num_operations, set_num_threads
from cutaway.kernels.native.pages import PAGE_DTYPES

__all__ = ["PAGE_DTYPES", "Rotation", "Tape", "is_available", "num_operations", "set_num_threads"]


@dataclass(frozen=True)
class _Shown:
    name: str
    layer: int | None
    read: Callable[[Step], Tensor]


class Tape:
    """Native operations in order, and the buffers between them.

    num_tokens, num_rows: the most tokens and logit rows of a step.
    keeps:     whether every layer has buffers of its own, so that all values of a step can be
               read after it. Otherwise layers share them, which keeps them in a CPU's cache.
    """

    def __init__(self, *, num_tokens: int, num_rows: int, keeps: bool = False) -> None:
        self._sizes = {"tokens": num_tokens, "rows": num_rows}
        self._keeps = keeps
        self._buffers: dict[tuple[str, int | None], Tensor] = {}
        self._program = Program()
        self._shown: list[_Shown] = []
        self.num_tokens = num_tokens

    @property
    def buffers(self) -> Mapping[tuple[str, int | None], Tensor]:
        """By name and layer; only the first rows of a step mean anything."""
        return self._buffers

    def tokens(self, name: str, width: int, layer: int | None = None) -> Tensor:
        """A buffer with a row per token. Shapes: [T, width] float32."""
        return self._buffer(name, "tokens", width, layer)

    def rows(self, name: str, width: int) -> Tensor:
        """A buffer with a row per wanted logit row. Shapes: [R, width] float32."""
        return self._buffer(name, "rows", width, None)

    def add(self, operation: Operation) -> None:
        """Append one operation to the program."""
        self._program.add(operation)

    def show(self, name: str, layer: int | None, read: Callable[[Step], Tensor]) -> None:
        """Say how a tap's value is read from buffers or pages once a step has run.

        Where layers share buffers nothing could be read then, and nothing is noted.
        """
        if self._keeps:
            self._shown.append(_Shown(name, layer, read))

    def run(self, step: Step) -> None:
        """Replay for one step; returns when all threads are done.

        A sink is told afterwards what the taps saw; it may read, and change nothing.
        """
        self._program.run(NativeStep.of(step))
        if step.sink is not None:
            assert self._keeps, "what a sink reads is kept"
            for shown in self._shown:
                step.tap(shown.name, shown.read(step), shown.layer)

    def run_numbers(self, numbers: Numbers) -> None:
        """Replay for one step that nobody watches."""
        self._program.run(NativeStep.of_numbers(numbers))

    def time(self, step: Step) -> dict[str, float]:
        """Replay and give the seconds of each kind of operation."""
        seconds: dict[str, float] = {}
        for code, nanoseconds in zip(
            self._program.codes, self._program.time(NativeStep.of(step)), strict=True
        ):
            name = code.name.lower()
            seconds[name] = seconds.get(name, 0.0) + nanoseconds * 1e-9
        return seconds

    def _buffer(self, name: str, rows: str, width: int, layer: int | None) -> Tensor:
        key = (name, layer if self._keeps else None)
        if key not in self._buffers:
            self._buffers[key] = room(self._sizes[rows], width)
        buffer = self._buffers[key]
        assert buffer.shape[1] == width, f"the buffer {name} has one width"
        return buffer
