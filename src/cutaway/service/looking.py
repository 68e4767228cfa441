"""The record of an answer that a Python program holds: run again, compared, shown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypedDict

from cutaway.core.errors import ReplayError
from cutaway.core.limits import quote
from cutaway.engine.engine import Engine
from cutaway.replay.look import Look
from cutaway.replay.spare_runners import SpareRunners
from cutaway.service.generations import Generation
from cutaway.trace.ledger import find_recorded
from cutaway.trace.records import AnswerRecord
from cutaway.views import view_of
from cutaway.views.parts.query import query_of
from cutaway.views.parts.view import Shown


class ViewPlaces(TypedDict, total=False):
    """Where to look; what is left out the view chooses. As views/parts/query.py has them."""

    position: int
    token: int
    layer: int
    head: int
    expert: int
    top: int
    text: str
    start: int
    price: float


def record_of(engine: Engine, answer: Generation, *, choice: int) -> AnswerRecord:
    """The record of one choice of an answer.

    Raises: ReplayError where it is not kept any more, or is another engine's.
    """
    if not 0 <= choice < len(answer.choices):
        raise ReplayError(
            f"choice is {quote(choice)}; it must be from 0 to {len(answer.choices) - 1}."
        )
    record = find_recorded(engine.ledger, answer.request_id, choice, owner="")
    if record.token_ids != (*answer.prompt_token_ids, *answer.choices[choice].token_ids):
        raise ReplayError(
            f"answer {quote(answer.request_id)} is not of this model in this process; ask the LLM "
            "that gave it."
        )
    return record


class Looks:
    """Views of answers of one engine. Several of one answer share what was taken of it."""

    def __init__(self, engine: Engine) -> None:
        self._engine, self._spares = engine, SpareRunners()
        self._last: tuple[int, Look] | None = None

    def show(
        self, answer: Generation, name: str, places: Mapping[str, object], *, choice: int
    ) -> Shown:
        """A view of an answer. Raises: ReplayError as record_of, RequestError for a wrong place."""
        view, query = view_of(name), query_of(places)
        record = record_of(self._engine, answer, choice=choice)
        if self._last is None or self._last[0] != record.number:
            look = Look(self._engine, record, messages=answer.messages, spares=self._spares)
            self._last = record.number, look
        look = self._last[1]
        return view.show(look.subject, query)
