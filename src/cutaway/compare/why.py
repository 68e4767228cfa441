"""Why an answer was slow, expensive or wrong: causes from its record, each tried without itself.

What stands behind `instead` was run and measured, on this engine and with this model; where that
cannot be had it is None, and the cause is what the record says and no more.
"""

from __future__ import annotations

from dataclasses import dataclass

from cutaway.compare.cause import Cause, Question
from cutaway.compare.why_time import TimeCauses
from cutaway.compare.why_wrong import WrongCauses
from cutaway.core.errors import ReplayError
from cutaway.core.limits import quote
from cutaway.engine.engine import Engine
from cutaway.replay.look import Look
from cutaway.views import cost, timeline
from cutaway.views.parts.drawing import WIDTH, Drawing, Span, cut
from cutaway.views.parts.query import Query
from cutaway.views.parts.replay_values import Wanted

_QUESTIONS: tuple[Question, ...] = ("slow", "expensive", "wrong")


@dataclass(frozen=True)
class Diagnosis:
    """All causes that were found, by question."""

    causes: tuple[Cause, ...]

    def draw(self) -> Drawing:
        """The causes as lines of text, by question."""
        drawing = Drawing()
        for question in _QUESTIONS:
            causes = [cause for cause in self.causes if cause.question == question]
            drawing.line(Span(f"why {question}?", "strong"), "" if causes else "  nothing found")
            for cause in causes:
                _paragraph(drawing, f"{cause.name}: {cause.found}", indent=2)
                if cause.instead is not None:
                    _paragraph(drawing, f"measured: {cause.instead}", indent=4)
        return drawing


def _paragraph(drawing: Drawing, text: str, *, indent: int) -> None:
    drawing.wrap((Span(cut(word, WIDTH - 9) + " ") for word in text.split()), indent=indent)


def why(engine: Engine, look: Look) -> Diagnosis:
    """Look for causes, and try each without itself. The engine must be idle.

    Raises: ReplayError when the record of the answer is not whole.
    """
    if engine.has_work or not look.subject.answer.tokens:
        raise ReplayError("an answer is diagnosed when it has ended and nothing else runs.")
    if not look.subject.answer.is_whole:
        raise ReplayError(
            f"steps of request {quote(look.subject.answer.request.request_id)} were dropped, so "
            "nothing of it can be told. Raise ledger_bytes, or ask sooner."
        )
    # Both are read before anything is run again: steps of reruns would join the record.
    times = timeline.probe(look.subject, Query(), look.take(Wanted()))
    costs = cost.probe(look.subject, Query(), look.take(Wanted()))
    of_time = TimeCauses(engine, look.subject, times, costs)
    of_faults = WrongCauses(engine, look)
    return Diagnosis((*of_time.slow(), *of_time.expensive(), *of_faults.wrong()))
