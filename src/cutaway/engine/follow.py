"""One loop over an engine for all who call it from Python: each gets the news of its own requests.

Whoever waits makes the next step, and puts what it says to others into their inboxes, so that
nobody's news is lost, from threads either.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from cutaway.core.output import Delta
from cutaway.core.request import Request
from cutaway.host.turns import breathe

if TYPE_CHECKING:
    from cutaway.engine.engine import Engine


class Follower:
    """Steps an engine for those who follow requests, a step at a time."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._inboxes: dict[str, deque[Delta]] = {}

    def follow(
        self, requests: Sequence[Request], *, is_stopped: Callable[[], bool] = lambda: False
    ) -> Generator[list[Delta]]:
        """After each step what is new of some requests, be it nothing, until all are done.

        is_stopped: asked before each step; the requests end then, and say so in their last news.
        Leaving early ends them. Raises: what adding a request raises; none of them runs then.
        """
        inbox: deque[Delta] = deque()
        num_open = sum(request.params.n for request in requests)
        try:
            with self._lock:
                for request in requests:
                    self._engine.add(request)
                    self._inboxes[request.request_id] = inbox
                    breathe()
            while num_open:
                self._step(inbox, requests if is_stopped() else ())
                news = [inbox.popleft() for _ in range(len(inbox))]
                num_open -= sum(delta.finish_reason is not None for delta in news)
                yield news
        finally:
            with self._lock:
                for request in requests:
                    self._inboxes.pop(request.request_id, None)
                    self._engine.abort(request.request_id)

    @contextmanager
    def alone(self) -> Generator[None]:
        """While this lasts no step is made: for whoever uses the model beside answers."""
        with self._lock:
            yield

    def _step(self, inbox: deque[Delta], stopped: Sequence[Request]) -> None:
        """One step for everybody, unless another caller's step brought news meanwhile."""
        with self._lock:
            for request in stopped:
                self._engine.abort(request.request_id)  # its last news comes with the step
            if inbox and not stopped:
                return
            for delta in self._engine.step():
                if delta.request_id in self._inboxes:
                    self._inboxes[delta.request_id].append(delta)
