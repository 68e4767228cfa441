"""Looks into answers, for moments without other work: one step of a replay at a time.

Answers never wait for a look longer than one step takes; beside answers without end looks have a
tenth of the time (service/engine_loop.py), and comparisons wait for all looks.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Generator, Hashable
from dataclasses import dataclass

from cutaway.compare.trials import Hear, Trials
from cutaway.core.errors import CutawayError, OverloadedError, ReplayError
from cutaway.core.limits import quote
from cutaway.core.looks import ComparisonRequest, FileRequest, ViewRequest
from cutaway.engine.engine import Engine
from cutaway.host.faults import refuse
from cutaway.host.turns import breathe, in_turns
from cutaway.replay.look import PIECE_TOKENS, Look
from cutaway.replay.spare_runners import SpareRunners
from cutaway.replay.trace_file import saving_of
from cutaway.replay.view_cost import TimePredictor, time_steps
from cutaway.trace.file import encode_trace
from cutaway.trace.ledger import find_recorded
from cutaway.views import view_of
from cutaway.views.parts.frame import SCHEMA, frame_view, plain
from cutaway.views.parts.query import query_of

MOST_WAITING = 64  # a page asks for a handful at a time
Tell = Callable[[bytes | CutawayError], None]


@dataclass(eq=False)
class _Job:
    name: Hashable
    steps: Generator[None]
    tell: Tell


class ViewQueue:
    """Views and comparisons that were asked for, in order; each is told to whoever asked."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._jobs: deque[_Job] = deque()
        self._trials = Trials(engine)
        self._time_predictor = TimePredictor(engine.runner.recording_seconds)
        self._spares = SpareRunners()
        self._look: tuple[ViewRequest, Look] | None = (
            None  # the latest: views of one answer share it
        )

    @property
    def has_work(self) -> bool:
        """Whether a view or a comparison waits or runs."""
        return bool(self._jobs) or self._trials.has_work

    def add(self, name: Hashable, asked: ViewRequest, tell: Tell) -> None:
        """Queue a look. What it gives, or why nothing, is told later; at once if refused."""
        if len(self._jobs) >= MOST_WAITING:
            words = f"{MOST_WAITING} looks wait already. Try again in a few seconds."
            tell(OverloadedError(words, retry_after=5))
            return
        self._jobs.append(_Job(name, self._steps(asked, tell), tell))

    def compare(self, name: Hashable, tried: ComparisonRequest, tell: Hear) -> None:
        """Queue a comparison; at once refused where too many wait."""
        self._trials.open(name, tried, tell)

    def leave(self, name: Hashable) -> None:
        """Nobody waits for a look or a comparison any more; may be said of one that is over."""
        self._trials.leave(name)
        for job in [each for each in self._jobs if each.name == name]:
            self._jobs.remove(job)
            job.steps.close()

    def step(self) -> None:
        """One step of the first look, or of the first comparison. A fault ends that one alone."""
        if not self._jobs:
            self._trials.step()
            return
        job = self._jobs[0]
        try:
            next(job.steps)
        except StopIteration:
            self._jobs.popleft()
        except Exception as fault:
            self._jobs.popleft()
            self._look = None
            refuse(job.tell, fault, "this view cannot be shown")

    def _steps(self, asked: ViewRequest, tell: Tell) -> Generator[None]:
        look = self._look_of(asked)
        if asked.file is not None:
            kept = asked.file
            tell((yield from in_turns(lambda: _file_of(look, kept))))
            return
        view, query = view_of(asked.view), query_of(asked.places)
        view.check(look.subject, query)
        cost = yield from in_turns(lambda: look.predict_cost(view, query))
        if asked.is_cost:
            seconds = self._time_predictor.seconds(cost, view.name)
            told = {
                "view": view.name,
                "num_tokens": cost.num_tokens,
                "flops": cost.flops,
                "num_bytes": cost.num_bytes,
                "seconds": seconds,
                "schema": SCHEMA,
            }
            tell(json.dumps(told).encode())
            return
        before = self._spares.recording_seconds
        _, spent = yield from time_steps(look.take_in_steps(view.wants(look.subject, query)))
        recording = self._spares.recording_seconds - before
        self._time_predictor.learn_replay(cost, spent, recording=recording)

        def show() -> bytes:
            picture = view.show(look.subject, query)
            return plain(picture) if asked.is_json else frame_view(picture)

        frame, spent = yield from time_steps(in_turns(show))
        self._time_predictor.learn_view(cost, view.name, spent)
        tell(frame)

    def _look_of(self, asked: ViewRequest) -> Look:
        if self._look is not None and self._look[0].is_of_same(asked):
            return self._look[1]
        answer = find_recorded(
            self._engine.ledger, asked.request_id, asked.choice, owner=asked.owner
        )
        if answer.finish_reason is None:
            raise ReplayError(
                f"answer {quote(asked.request_id)} has not ended yet. Ask when it has."
            )
        look = Look(
            self._engine,
            answer,
            max_bytes=asked.max_bytes,
            max_flops=asked.max_flops,
            spares=self._spares,
        )
        self._look = (asked, look)
        return look


def _file_of(look: Look, kept: FileRequest) -> bytes:
    saving = saving_of(look, kept, chunk=PIECE_TOKENS)
    for _ in saving.steps():
        breathe()
    return encode_trace(saving.trace())
