"""Engines whose model is divided among threads of this process: the ranks of a group, in one."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from cutaway.engine.build import load_model
from cutaway.engine.config import EngineConfig
from cutaway.engine.engine import Engine
from cutaway.engine.loading.loaded_model import LoadedModel
from cutaway.engine.ranks.follower import follow
from cutaway.engine.ranks.leader import Ranks
from cutaway.parallel.rank_group import ThreadGroup
from cutaway.weights.find.find import find
from engines import engine


@contextmanager
def model_of_ranks(model: str, size: int, **settings: Any) -> Iterator[LoadedModel]:
    """A model of which each of so many threads has its part; this one leads."""
    config = EngineConfig(**{"device": "cpu", **settings})
    groups = ThreadGroup.of(size)
    links: list[socket.socket] = []
    threads: list[threading.Thread] = []
    for group in groups[1:]:
        ours, theirs = socket.socketpair()
        part = load_model(find(model), config, group=group)
        links.append(ours)
        threads.append(
            threading.Thread(target=_follow, args=(theirs, part, group, config), daemon=True)
        )
    loaded = load_model(find(model), config, group=groups[0])
    for thread in threads:
        thread.start()
    ranks = Ranks(groups[0], links, end=lambda: [link.close() for link in links])
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
    own = {name: settings.pop(name) for name in ("dtype",) if name in settings}
    with model_of_ranks(model, size, **own) as loaded:
        yield engine(loaded, **settings)


def _follow(
    link: socket.socket, model: LoadedModel, group: ThreadGroup, config: EngineConfig
) -> None:
    try:
        follow(link, model, group, config)
    except BaseException:
        group.leave()
        raise
    finally:
        link.close()
