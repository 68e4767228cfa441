"""No view holds the engine for long: its work between two breaths has a bound, counted in units.

Units are calls of functions, and numbers that torch reads and writes; seconds hang on the machine
(bench/pieces.py measures them).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import engines
from cutaway.core.looks import ViewRequest
from cutaway.core.request import Request, SamplingParams
from cutaway.engine.engine import Engine
from cutaway.host import turns
from cutaway.service.view_queue import ViewQueue
from cutaway.views import VIEWS
from cutaway.views.parts.payload import Payload
from cutaway.views.parts.query import Query
from cutaway.views.parts.replay_values import ReplayValues
from cutaway.views.parts.subject import Subject
from cutaway.views.parts.view import View

MOST_CALLS, MOST_NUMBERS = 50_000, 2**24
WORDS, ONE = "word and " * 1_100, "a" * 10_000  # as long as a text may be
LONG = [
    {"view": "embeddings", "text": WORDS},
    {"view": "embeddings", "text": ONE},
    {"view": "embeddings", "top": 1_000},
    {"view": "merges", "text": WORDS},
    {"view": "merges", "text": ONE},
    {"view": "tokens", "text": WORDS},
    {"view": "characters", "text": WORDS},
    {"view": "weights", "text": "embedding"},
    {"view": "feedforward", "top": 1_000},
    {"view": "lens", "layer": 1, "top": 1_000},
    {"view": "attention", "layer": 1, "head": 1},
    {"view": "probabilities", "text": "qwertzuiop", "token": 3, "top": 1_000},
    *({"view": view.name} for view in VIEWS),
]


class Meter:
    """Work of the thread that a view has, since it last got a turn."""

    def __init__(self) -> None:
        self.calls = self.numbers = 0
        self.pieces: list[tuple[int, int]] = []

    def called(self, frame: FrameType, event: str, argument: object) -> None:
        del frame, argument
        self.calls += event in ("call", "c_call")

    def piece(self, go: Callable[[Any], bool]) -> Callable[[Any], bool]:
        def counted(of: Any) -> bool:
            self.calls = self.numbers = 0
            goes_on = go(of)
            self.pieces.append((self.calls, self.numbers))
            return goes_on

        return counted


class Numbers(TorchDispatchMode):
    """Counts the numbers of what torch's operations are given and give."""

    def __init__(self, meter: Meter) -> None:
        super().__init__()
        self._meter = meter

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        found = func(*args, **(kwargs or {}))
        if not func.is_view:
            sizes = (each.numel() for each in (*args, found) if isinstance(each, torch.Tensor))
            self._meter.numbers += sum(sizes)
        return found


@pytest.fixture(scope="module")
def engine() -> Engine:
    """A long answer of a model with many rows: what a view goes through is many pieces."""
    model = engines.loaded(
        vocab_size=30_000, hidden_size=64, intermediate_size=2_000, max_position_embeddings=4_096
    )
    made = engines.engine(model, num_pages=400)
    prompt = tuple(number % 250 for number in range(800))
    params = SamplingParams(max_tokens=40, temperature=1.0, seed=1, ignore_eos=True)
    engines.run(made, [Request(request_id="long", prompt_token_ids=prompt, params=params)])
    with torch.inference_mode(), Numbers(Meter()):
        torch.zeros(2).topk(1)  # torch reads in what it needs for counting
        looked(made, {"view": "sampling"})
    return made


@contextmanager
def measured(monkeypatch: pytest.MonkeyPatch, *, breath: float = 0.0) -> Iterator[Meter]:
    meter, payload = Meter(), View.payload

    def counted(self: View, subject: Subject, query: Query, taken: ReplayValues) -> Payload:
        with Numbers(meter):
            return payload(self, subject, query, taken)

    with monkeypatch.context() as patch:
        patch.setattr(turns, "PIECE_SECONDS", breath)
        patch.setattr(turns._Turns, "go", meter.piece(turns._Turns.go))
        patch.setattr(View, "payload", counted)
        threading.setprofile(meter.called)
        try:
            yield meter
        finally:
            threading.setprofile(None)  # type: ignore[arg-type]


def looked(engine: Engine, query: dict[str, Any]) -> None:
    """Ask for a view and take all its steps. What it cannot show here it says."""
    places = {name: value for name, value in query.items() if name != "view"}
    view_queue, told = ViewQueue(engine), list[object]()
    asked = ViewRequest(
        request_id="long",
        choice=0,
        owner="",
        view=query["view"],
        places=places,
        is_json=True,
        is_cost=False,
        max_bytes=2**28,
        max_flops=10**13,
    )
    view_queue.add(1, asked, told.append)
    while view_queue.has_work:
        view_queue.step()
    assert len(told) == 1


@pytest.mark.parametrize("query", LONG, ids=lambda query: str(query)[:60])
def test_no_piece_of_a_view_is_long(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, query: dict[str, Any]
) -> None:
    with measured(monkeypatch) as meter:
        looked(engine, query)
    assert max(calls for calls, _ in meter.pieces) <= MOST_CALLS
    assert max(numbers for _, numbers in meter.pieces) <= MOST_NUMBERS


def test_in_one_piece_the_same_views_are_long(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bounds mean something: without breaths they are passed."""
    with measured(monkeypatch, breath=3600.0) as meter:
        looked(engine, {"view": "embeddings", "top": 1_000})
        looked(engine, {"view": "attention"})
    assert max(calls for calls, _ in meter.pieces) > MOST_CALLS
    assert max(numbers for _, numbers in meter.pieces) > MOST_NUMBERS
