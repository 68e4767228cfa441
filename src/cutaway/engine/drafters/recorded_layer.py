"""A packed speculator by native kernels: its layer recorded once, replayed for every guess.

Module by module a guess takes some hundred small calls of torch, longer than it reads weights. Of
likeliest tokens all guesses of a draft are one native call.
"""

from __future__ import annotations

from collections.abc import Sequence, Set

import torch
from torch import Tensor

from cutaway.blocks.guessing_layer import FromGivenStates, StatesOfStreams
from cutaway.cache.table import PageTable
from cutaway.core.step import LayerCache, Numbers
from cutaway.engine.drafters.controller import MOST_DRAFTS
from cutaway.engine.loading.speculator_folder import LoadedSpeculator
from cutaway.kernels import capture
from cutaway.kernels.capture import Tape
from cutaway.kernels.native import Chain, NativeStep, RowRoom
from cutaway.quantize.packed import Packed

_MOST_TOKENS = 128  # of a step


class RecordedLayer:
    """One recording of a speculator over its pages.

    num_rows: the most answers of a step.   max_length: positions are below it.
    end_token_ids: behind which nothing is guessed.
    """

    def __init__(
        self,
        speculator: LoadedSpeculator,
        caches: tuple[LayerCache, ...],
        *,
        num_rows: int,
        max_length: int,
        end_token_ids: Set[int] = frozenset(),
    ) -> None:
        self.most_tokens = max(_MOST_TOKENS, num_rows)
        self._tape = Tape(
            FromGivenStates(speculator.module, speculator.embedding),
            caches,
            num_tokens=self.most_tokens,
            num_rows=num_rows,
            max_length=max_length,
            streams=frozenset({0}),
        )
        self._states = Tape(
            StatesOfStreams(speculator.module),
            (),
            num_tokens=self.most_tokens,
            num_rows=num_rows,
            max_length=max_length,
        )
        self.is_whole = self._tape.takes_numbers and Chain.is_available()
        if not self.is_whole:
            return
        assert self._tape.given is not None and self._states.given is not None, "rows are given"
        self._given, self._given_streams = RowRoom(self._tape.given), RowRoom(self._states.given)
        self._made_states = RowRoom(self._states.result)
        ends = torch.tensor(sorted(end_token_ids), dtype=torch.int64)
        self._chain = self._tape.chain(
            speculator.drafted,
            torch.isin(speculator.drafted, ends),
            page_size=caches[0].page_size,
            most=MOST_DRAFTS,
        )

    @property
    def torch_calls(self) -> tuple[str, ...]:
        """What would run in torch, in order; is_whole says that nothing does."""
        return self._tape.torch_calls

    def put_states(self, streams: RowRoom, count: int, out: RowRoom, place: int) -> None:
        """Put states by so many of the target's streams into rows from a place on.

        Shapes: streams [room, 3 D], out [room, D].
        """
        streams.copy(0, self._given_streams, 0, count)
        self._states.run_rows(count)
        self._made_states.copy(0, out, place, count)

    def run(self, states: Sequence[Tensor], numbers: Numbers) -> tuple[Tensor, Tensor]:
        """What follows each token, as a state, and what those say whose rows the step wants.

        Shapes: states [n, D], together [T, D] -> [T, D] and [R, drafted], valid until the next run.
        """
        self._put(states, numbers)
        self._tape.run_numbers(numbers)
        made = self._tape.streams[0][: len(numbers.token_ids)]
        return made, self._tape.result[: len(numbers.logit_rows)]

    def follow(
        self,
        states: Sequence[Tensor],
        numbers: Numbers,
        most: Sequence[int],
        *,
        least_kept: float,
        least_followed: float,
    ) -> list[tuple[list[int], list[float]]]:
        """The likeliest tokens behind each answer, and their chances: see Chain.run.

        Shapes: states [n, D], together those of the step's tokens.
        """
        self._put(states, numbers)
        return self._chain.run(
            NativeStep.of_numbers(numbers),
            most,
            least_kept=least_kept,
            least_followed=least_followed,
        )

    def follow_one(
        self,
        states: RowRoom,
        first: int,
        token_ids: Sequence[int],
        table: PageTable,
        *,
        position: int,
        most: int,
        least_kept: float,
        least_followed: float,
    ) -> tuple[list[int], list[float]]:
        """The same of one answer, whose states lie in rows from the first on.

        They are as many as tokens; the first token has that position, and its place among those of
        the pages is that of its state. Shapes: states [room, D].
        """
        count = len(token_ids)
        states.copy(first, self._given, 0, count)
        step = NativeStep.of_one(
            token_ids,
            position=position,
            context=first + count,
            pages=table.pages,
            slots=table.slots(first, count),
        )
        (made,) = self._chain.run(
            step, (most,), least_kept=least_kept, least_followed=least_followed
        )
        return made

    def _put(self, states: Sequence[Tensor], numbers: Numbers) -> None:
        assert self._tape.given is not None, "it reads the states that are given"
        torch.cat([*states], out=self._tape.given[: len(numbers.token_ids)])


def can_be_recorded(speculator: LoadedSpeculator) -> bool:
    """Whether all that it multiplies with is packed."""
    return capture.is_available() and isinstance(speculator.module.head, Packed)
