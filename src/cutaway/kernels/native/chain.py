"""Guesses one after the other in one native call: a program is run again on what it drew."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from cutaway.kernels.native.library import check, library, runs_chains
from cutaway.kernels.native.operation import Operation, require, require_matrix
from cutaway.kernels.native.program import NativeStep, Program
from cutaway.kernels.native.structs import (
    ChainStruct,
    ChoiceStruct,
    Code,
    DrawnStruct,
    Rows,
    SampleStruct,
)


class Chain:
    """A program whose rows of logits say what comes next, once it has an operation that draws it.

    That operation, which this adds, takes the likeliest entry of each row.

    logits:    what the program leaves [R, N].   made, given: the states that it makes of each token
               and reads [T, D].
    token_ids: what each entry stands for [N] int64.   is_last: whether nothing is guessed behind it
               [N] bool.
    page_size: of the pages of its one cache group.   most: guesses of one sequence at most.
    """

    def __init__(
        self,
        program: Program,
        logits: Tensor,
        *,
        made: Tensor,
        given: Tensor,
        token_ids: Tensor,
        is_last: Tensor,
        page_size: int,
        most: int,
    ) -> None:
        rows, entries = logits.shape
        require_matrix(logits, entries)
        require_matrix(made, given.shape[1], len(given))
        require_matrix(given, given.shape[1])
        is_sound = token_ids.shape == (entries,) == is_last.shape
        is_sound = is_sound and token_ids.dtype == torch.int64 and is_last.dtype == torch.bool
        require(is_sound and token_ids.is_contiguous(), "an id and a mark for each entry")
        self._program, self._rows, self._most = program, rows, most
        first, stride = logits.data_ptr(), logits.stride(0) * 4
        self._places = (ctypes.c_void_p * rows)(*(first + row * stride for row in range(rows)))
        self._choices, self._drawn = (ChoiceStruct * rows)(), (DrawnStruct * rows)()
        for choice in self._choices:
            choice.rest = choice.watched = -1
        places = ctypes.addressof(self._places)
        sample = SampleStruct(
            *(Rows.LOGITS, rows, places, places, entries),
            *(ctypes.addressof(self._choices), ctypes.addressof(self._drawn)),
        )
        program.add(Operation(Code.SAMPLE, sample, (logits,)))
        self._wanted = (ctypes.c_int64 * rows)()
        self._guesses = (ctypes.c_int64 * (rows * most))()
        self._chances = (ctypes.c_double * (rows * most))()
        self._counts = (ctypes.c_int64 * rows)()
        self._kept = (token_ids, is_last.to(torch.uint8).contiguous(), made, given)
        self._struct = ChainStruct(
            *(ctypes.addressof(self._drawn), token_ids.data_ptr(), self._kept[1].data_ptr()),
            *(entries, made.data_ptr(), given.data_ptr(), given.shape[1], page_size),
            *(ctypes.addressof(self._wanted), 0.0, 0.0, most),
            *(ctypes.addressof(each) for each in (self._guesses, self._chances, self._counts)),
        )

    @staticmethod
    def is_available() -> bool:
        """Whether the library can do it: one that was built before cannot."""
        return runs_chains(library())

    def run(
        self,
        step: NativeStep,
        most: Sequence[int],
        *,
        least_kept: float = 0.0,
        least_followed: float = 0.0,
    ) -> list[tuple[list[int], list[float]]]:
        """Guesses of each of the step's sequences, and the chance of each among the entries.

        The pages of a sequence have room for all of its guesses but the last. A row with NaN or
        infinity guesses nothing.

        most: for each sequence, from 1 on.
        least_kept: a guess is kept while the product of chances is no less.
        least_followed: another one is made behind it while that is no less.
        """
        count = len(most)
        require(count <= self._rows and max(most) <= self._most, "there is room for all guesses")
        self._wanted[:count] = most
        self._struct.least_kept, self._struct.least_followed = least_kept, least_followed
        arguments = ctypes.byref(step.struct), ctypes.byref(self._struct)
        check(library().cw_program_chain(self._program.handle, *arguments))
        made: list[tuple[list[int], list[float]]] = []
        for first, number in zip(
            range(0, count * self._most, self._most), self._counts, strict=False
        ):
            last = first + number
            made.append((self._guesses[first:last], self._chances[first:last]))
        return made
