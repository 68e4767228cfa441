"""Ranks of one model as a grid: some of the layers are a stage's, and its ranks divide their rows.

Ranks are numbered stage by stage, and rank 0 leads. A model that is divided in one way alone is a
grid of one stage, or of one rank in each.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager

from cutaway.core.step import Sink
from cutaway.parallel.rank_group import RankGroup

# By a group's name, this rank's number in it, and its size.
Join = Callable[[str, int, int], RankGroup]


class RankGrid:
    """The ranks of one model, as one of them sees them.

    rows:   those that have the same layers, each a part of every matrix; None where it has all.
    layers: those that have other layers, and of them what this one has of its own; None where it
        has all layers. Hidden rows are whole in every rank of a stage, so each hands its own on to
        one rank of the next.
    """

    def __init__(self, rank: int, *, rows: RankGroup | None, layers: RankGroup | None) -> None:
        self.rank, self.rows, self.layers = rank, rows, layers
        self.size = _size(rows) * _size(layers)

    @classmethod
    def join(cls, rank: int, *, tensor: int, pipeline: int, join: Join) -> RankGrid:
        """Join both groups of a rank. Blocks until all of each have. Raises: what join raises."""
        stage, place = divmod(rank, tensor)
        return cls(
            rank,
            rows=join(f"rows-{stage}", place, tensor) if tensor > 1 else None,
            layers=join(f"layers-{place}", stage, pipeline) if pipeline > 1 else None,
        )

    @contextmanager
    def step(self) -> Generator[None]:
        """Within it every rank does the same, and values can be moved."""
        with ExitStack() as entered:
            for group in (self.rows, self.layers):
                if group is not None:
                    entered.enter_context(group.step())
            yield

    def watch(self, sink: Sink | None) -> None:
        """Have rank 0's sink see what ranks of other stages tell in the next step."""
        if self.layers is not None:
            self.layers.sink = sink

    def follow_taps(self, *, is_tapped: bool) -> Sink | None:
        """A follower's sink of the next step.

        The first rank of a later stage tells rank 0; what others see is what some first rank sees,
        for which they hand in their parts.
        """
        tells = self.layers is not None and self.layers.rank > 0 and not _place(self.rows)
        if self.layers is not None:
            self.layers.is_tapped = is_tapped and tells
        if not is_tapped:
            return None
        return self.layers.tell if self.layers is not None and tells else _see_nothing

    def try_out(self) -> None:
        """Move known numbers. Raises: ConfigError naming what came otherwise."""
        for group in (self.rows, self.layers):
            if group is not None:
                group.try_out()


def _size(group: RankGroup | None) -> int:
    return 1 if group is None else group.size


def _place(group: RankGroup | None) -> int:
    return 0 if group is None else group.rank


def _see_nothing(name: str, value: object, layer: int | None) -> None:
    """Another rank looks."""
