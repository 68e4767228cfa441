"""Recorded native operations that run in one call, and the numbers of a step that they read.

A program is recorded once, over buffers with room for the largest step. What differs from step to
step (rows, page tables, context lengths) is read when it runs, so one program serves any step.
"""

from __future__ import annotations

import ctypes
import weakref
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy
import torch
from torch import Tensor

from cutaway.core.layout import SCRATCH_PAGE
from cutaway.core.step import Numbers, Step
from cutaway.kernels.native.library import check, library, runs_parts
from cutaway.kernels.native.operation import Operation
from cutaway.kernels.native.structs import MAX_GROUPS, Code, GroupStruct, StepStruct

# Operations between two looks at whether somebody wants a step of 32 tokens broken off: about a
# layer and a half, so that of SmolLM2 has 20 parts of some 2 ms. Fewer tokens are done sooner, so
# their parts have more: each is a call of its own, a job for the threads, and scratch asked anew.
# Of more tokens they have fewer, be it a single operation.
_PART = 8
_PART_TOKENS = 32


@dataclass(frozen=True, eq=False)
class NativeStep:
    """A step as the library reads it, and what it points into."""

    struct: StepStruct
    kept: tuple[Tensor | array[int], ...]

    @staticmethod
    def of(step: Step) -> NativeStep:
        """Pointers into the step's own tensors: int64 on the CPU, as the engine makes them.

        Of more than MAX_GROUPS cache groups the first: layers of the others attend in torch.
        """
        groups = step.groups[:MAX_GROUPS]
        # Sizes by shape: len() of a tensor takes many times as long, and a step has few spare.
        count, sequences = step.token_ids.shape[0], step.context_lengths.shape[0]
        num_rows = step.logit_rows.shape[0]
        wanted = (
            (step.token_ids, (count,)),
            (step.positions, (count,)),
            (step.query_starts, (sequences + 1,)),
            (step.context_lengths, (sequences,)),
            (step.logit_rows, (num_rows,)),
            *((group.page_table, (sequences, group.page_table.shape[-1])) for group in groups),
            *((group.slots, (count,)) for group in groups),
        )
        kept = tuple(_integers(tensor, shape) for tensor, shape in wanted)
        adapters = None if step.adapters is None else _integers(step.adapters, (count,))
        num_groups = len(groups)
        tables, slots = kept[5 : 5 + num_groups], kept[5 + num_groups :]
        struct = StepStruct(
            *(count, sequences, num_rows),
            *(each.data_ptr() for each in kept[:5]),
            adapters=None if adapters is None else adapters.data_ptr(),
        )
        for index, (table, slot) in enumerate(zip(tables, slots, strict=True)):
            struct.groups[index] = GroupStruct(table.data_ptr(), table.shape[1], slot.data_ptr())
        return NativeStep(struct, kept if adapters is None else (*kept, adapters))

    @staticmethod
    def of_numbers(numbers: Numbers) -> NativeStep:
        """Pointers into one array that holds all of a step.

        After a step that read all weights no cache holds anything of the host: a tensor for each
        of its eight parts took four times as long.
        """
        if len(numbers.slots) > MAX_GROUPS:
            raise AssertionError(f"a step has {len(numbers.slots)} cache groups, more than four")
        plan, count = numbers.plan, len(numbers.token_ids)
        sequences, num_rows = len(plan.context_lengths), len(numbers.logit_rows)
        if len(numbers.positions) != count or len(plan.query_lengths) != sequences:
            raise AssertionError(f"{count} tokens of {sequences} sequences lack a number")
        if numbers.adapters and len(numbers.adapters) != count:
            raise AssertionError(f"{count} tokens have {len(numbers.adapters)} adapters")
        words = [*numbers.token_ids, *numbers.positions, *numbers.query_starts]
        words += plan.context_lengths
        words += numbers.logit_rows
        group_starts: list[tuple[int, int, int]] = []
        for pages, slots in zip(numbers.pages, numbers.slots, strict=True):
            first, width = len(words), max(map(len, pages))
            for each in pages:
                words += each
                words += [SCRATCH_PAGE] * (width - len(each))
            group_starts.append((first, width, len(words)))
            if len(words) - first != sequences * width or len(slots) != count:
                raise AssertionError("a cache group has too many or too few pages or slots")
            words += slots
        first_adapter = len(words)
        words += numbers.adapters
        kept = array("q", words)
        address, _ = kept.buffer_info()
        starts = address + 16 * count
        contexts = starts + 8 * (sequences + 1)
        struct = StepStruct(
            *(count, sequences, num_rows),
            *(address, address + 8 * count, starts, contexts, contexts + 8 * sequences),
            adapters=address + 8 * first_adapter if numbers.adapters else None,
        )
        for index, (first, width, last) in enumerate(group_starts):
            struct.groups[index] = GroupStruct(address + 8 * first, width, address + 8 * last)
        return NativeStep(struct, (kept,))

    @staticmethod
    def of_one(
        token_ids: Sequence[int],
        *,
        position: int,
        context: int,
        pages: Sequence[int],
        slots: Sequence[int],
    ) -> NativeStep:
        """The same of one sequence in one cache group, whose last row is wanted.

        position: of its first token, which is not the page's where pages begin within a text.
        context: tokens in its pages, these included.
        """
        count = len(token_ids)
        if len(slots) != count or not count:
            raise AssertionError(f"{count} tokens have {len(slots)} slots")
        words = [*token_ids, *range(position, position + count), 0, count, context, count - 1]
        words += pages
        words += slots
        kept = array("q", words)
        address, _ = kept.buffer_info()
        starts = address + 16 * count
        struct = StepStruct(
            *(count, 1, 1),
            *(address, address + 8 * count, starts, starts + 16, starts + 24),
        )
        table = starts + 32
        struct.groups[0] = GroupStruct(table, len(pages), table + 8 * len(pages))
        return NativeStep(struct, (kept,))

    @staticmethod
    def of_rows(count: int) -> NativeStep:
        """A step of rows alone, for operations that need no more: norm, linear, gate."""
        return NativeStep(StepStruct(num_tokens=count, num_logit_rows=count), ())


def room(rows: int, width: int, *, dtype: torch.dtype = torch.float32) -> Tensor:
    """A buffer of zeros that costs no memory until touched, at an address fit for a register.

    numpy.zeros alone begins 16 bytes after a page, so that every access would touch two lines.

    Shapes: [rows, width], float32 or, for ids, int64.
    """
    spare = numpy.zeros(rows * width * dtype.itemsize + 63, numpy.uint8)
    first = -spare.ctypes.data % 64
    room = torch.from_numpy(spare[first : first + rows * width * dtype.itemsize])
    return room.view(dtype).view(rows, width)


def run(operation: Operation, step: NativeStep) -> None:
    """Run one operation now: what a program of it alone would do."""
    size = ctypes.sizeof(operation.arguments)
    arguments = ctypes.addressof(operation.arguments)
    check(library().cw_run(operation.code, arguments, size, ctypes.byref(step.struct)))


class Program:
    """Operations in the order in which they were added."""

    def __init__(self) -> None:
        self.handle = library().cw_program_new()
        self._kept: list[Operation] = []
        weakref.finalize(self, library().cw_program_free, self.handle)

    def add(self, operation: Operation) -> None:
        """Record an operation; its tensors stay in memory as long as the program."""
        size = ctypes.sizeof(operation.arguments)
        address = ctypes.addressof(operation.arguments)
        check(library().cw_program_add(self.handle, operation.code, address, size))
        self._kept.append(operation)

    @property
    def operations(self) -> tuple[Operation, ...]:
        """What was recorded, in order."""
        return tuple(self._kept)

    @property
    def codes(self) -> tuple[Code, ...]:
        """Of what was recorded."""
        return tuple(operation.code for operation in self._kept)

    def run(self, step: NativeStep) -> None:
        """Run all operations for this step; returns when all threads are done."""
        check(library().cw_program_run(self.handle, ctypes.byref(step.struct)))

    def run_until(self, step: NativeStep, is_over: Callable[[], bool]) -> bool:
        """Run in parts, to the same bits, until all is done or is_over says so; whether all is."""
        if not runs_parts(library()):
            self.run(step)
            return True
        part = max(1, _PART * _PART_TOKENS // max(1, step.struct.num_tokens))
        struct = ctypes.byref(step.struct)
        for first in range(0, len(self._kept), part):
            if is_over():
                return False
            count = min(part, len(self._kept) - first)
            check(library().cw_program_run_part(self.handle, struct, first, count))
        return True

    def time(self, step: NativeStep) -> list[int]:
        """Run, and tell the nanoseconds of each operation."""
        nanoseconds = numpy.zeros(len(self._kept), numpy.int64)
        address = nanoseconds.ctypes.data
        check(library().cw_program_time(self.handle, ctypes.byref(step.struct), address))
        return nanoseconds.tolist()


def _integers(tensor: Tensor, shape: tuple[int, ...]) -> Tensor:
    if tensor.dtype != torch.int64 or not tensor.is_cpu:
        raise AssertionError(
            f"a step's tensor is {tensor.dtype} on {tensor.device}, not int64 on cpu"
        )
    if tensor.shape != shape:
        raise AssertionError(f"a step's tensor has shape {tuple(tensor.shape)}, not {shape}")
    return tensor.contiguous()
