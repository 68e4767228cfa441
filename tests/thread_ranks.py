"""Engines whose model is divided among threads of this process: the ranks of a group, in one."""

from __future__ import annotations

import socket
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from torch import Tensor

from cutaway.core.request import Request, SamplingParams
from cutaway.engine.build import load_model
from cutaway.engine.config import EngineConfig
from cutaway.engine.engine import Engine
from cutaway.engine.loading.loaded_model import LoadedModel
from cutaway.engine.ranks.follower import follow
from cutaway.engine.ranks.leader import Ranks
from cutaway.parallel.rank_grid import RankGrid
from cutaway.parallel.rank_group import ThreadGroup
from cutaway.weights.find.find import find
from engines import engine, run


class Turn:
    """Of several threads the one that computes.

    Each small operation hands the interpreter's lock to another thread and waits to have it back:
    ranks that compute at once take several times as long as one after the other.
    """

    def __init__(self) -> None:
        self._lock, self._own = threading.Lock(), threading.local()

    @contextmanager
    def taken(self) -> Generator[None]:
        """Within it this thread alone computes."""
        if getattr(self._own, "is_held", False):
            yield
            return
        with self._lock:
            self._own.is_held = True
            try:
                yield
            finally:
                self._own.is_held = False

    @contextmanager
    def left(self) -> Generator[None]:
        """Within it this thread waits for another."""
        is_held = getattr(self._own, "is_held", False)
        if is_held:
            self._lock.release()
        try:
            yield
        finally:
            if is_held:
                self._lock.acquire()


class RankInTurn(ThreadGroup):
    """A rank that computes while no other of its grid does."""

    def __init__(self, group: ThreadGroup, turn: Turn) -> None:
        super().__init__(group._table, group.rank, group.size)
        self._turn = turn

    @contextmanager
    def step(self) -> Generator[None]:
        with self._turn.taken(), super().step():
            yield

    def gather(self, x: Tensor) -> Tensor:
        with self._turn.left():
            return super().gather(x)

    def take(self, like: Tensor, source: int) -> Tensor:
        with self._turn.left():
            return super().take(like, source)


def grids(tensor: int, pipeline: int) -> list[RankGrid]:
    """The ranks of a grid, in their order; one of them computes at a time."""
    turn = Turn()

    def ranks(size: int) -> list[RankInTurn]:
        return [RankInTurn(each, turn) for each in ThreadGroup.of(size)]

    rows = [ranks(tensor) for _ in range(pipeline)]
    layers = [ranks(pipeline) for _ in range(tensor)]
    return [
        RankGrid.join(
            rank,
            tensor=tensor,
            pipeline=pipeline,
            join=lambda name, place, _: (
                rows[int(name[5:])][place]
                if name.startswith("rows-")
                else layers[int(name[7:])][place]
            ),
        )
        for rank in range(tensor * pipeline)
    ]


@contextmanager
def model_of_ranks(model: str, size: int, **settings: Any) -> Iterator[LoadedModel]:
    """A model of which each of so many threads has its part; this one leads.

    settings: with pipeline so many stages have layers, and their ranks divide rows.
    """
    config = EngineConfig(**{"device": "cpu", **settings})
    found = grids(size // config.pipeline, config.pipeline)
    links: list[socket.socket] = []
    threads: list[threading.Thread] = []
    for grid in found[1:]:
        part = load_model(find(model), config, grid=grid)
        ours, theirs = socket.socketpair()  # after what may raise
        links.append(ours)
        threads.append(
            threading.Thread(target=_follow, args=(theirs, part, grid, config), daemon=True)
        )
    loaded = load_model(find(model), config, grid=found[0])
    for thread in threads:
        thread.start()
    ranks = Ranks(found[0], links, end=lambda: [link.close() for link in links])
    try:
        yield replace(loaded, ranks=ranks)
    finally:
        ranks.close()
        for thread in threads:
            thread.join(10)
        assert not any(thread.is_alive() for thread in threads), "followers end with their leader"


@contextmanager
def engine_of_ranks(model: str, size: int, **settings: Any) -> Iterator[Engine]:
    """An engine over such a model, as engines.engine makes one."""
    own = {name: settings.pop(name) for name in ("dtype", "pipeline") if name in settings}
    with model_of_ranks(model, size, **own) as loaded:
        yield engine(loaded, **settings)


def assert_rows_of_one(model: str, size: int, *, is_staged: bool = False, **settings: Any) -> None:
    """That so many ranks draw each token from the very row, to the bit, that one draws it from.

    is_staged: where ranks have layers too, and then layers and rows.
    settings: of EngineConfig; native kernels are needed for that.
    """

    def rows(target: Engine) -> dict[tuple[str, int], list[tuple[int, int]]]:
        run(target, asked)
        assert target.ledger is not None and target.runner._native is not None
        return {
            (answer.request.request_id, answer.choice): [
                (token.token_id, token.checksum) for token in answer.tokens
            ]
            for answer in target.ledger.answers
        }

    greedy = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)
    asked = [
        Request(
            request_id=f"{name}{length}",
            prompt_token_ids=tuple((7 * i + length) % 250 for i in range(length)),
            params=params,
        )
        for length in (1, 40)
        for name, params in (("g", greedy), ("d", replace(greedy, temperature=1.0, seed=9)))
    ]
    whole = load_model(find(model), EngineConfig(device="cpu", dtype="auto", **settings))
    expected = rows(engine(whole))
    assert len(expected) == 4 and all(len(each) == 6 for each in expected.values())
    for count, pipeline in ((size, 1), (size, size), (4, 2)) if is_staged else ((size, 1),):
        with model_of_ranks(
            model, count, dtype="auto", **{**settings, "pipeline": pipeline}
        ) as divided:
            assert rows(engine(divided)) == expected, (count, pipeline)


def _follow(link: socket.socket, model: LoadedModel, grid: RankGrid, config: EngineConfig) -> None:
    try:
        follow(link, model, grid, config)
    except BaseException:
        for group in (grid.rows, grid.layers):
            if isinstance(group, ThreadGroup):
                group.leave()
        raise
    finally:
        link.close()
