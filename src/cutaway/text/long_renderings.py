"""Goes on with long renderings in a process of their own, where they hold up nobody's thread.

Python runs one thread at a time, so a rendering beside an event loop is waited for, a fraction of
a millisecond each time. As a program (`python -m`) this module is that process: it gives way to
whoever wants a core. A line asks for a template and what it renders, a line tells the text.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from time import monotonic
from typing import Any

from cutaway.core.errors import TemplateError
from cutaway.host.apart import ApartProcess, say
from cutaway.host.aside import LEAST_SHARE, STARVED_SECONDS, PriorityAllowance, be_idle
from cutaway.text.meter import BudgetError, rest_longer
from cutaway.text.template import Asked, ChatTemplate, LongRenderingError
from cutaway.text.written import Written, origin_of


class LongRenderings:
    """Processes, as many as threads render long conversations at once, and when they are used.

    allowance: of seconds that long renderings may take in this process.
    """

    def __init__(self, allowance: PriorityAllowance | None = None) -> None:
        self._allowance = allowance or PriorityAllowance()
        self._free: list[ApartProcess] = []
        self._is_closed = False

    @contextmanager
    def allow(self) -> Generator[Callable[[int], None]]:
        """What one rendering calls where it rests, so that it stays here no longer than it may."""
        seconds, began = self._allowance.refill(), list[float]()

        def rest(spent: int) -> None:
            if not began:
                began.append(monotonic())  # what takes no rest is nobody's trouble
            if monotonic() - began[0] >= seconds:
                raise LongRenderingError
            rest_longer(spent)

        try:
            yield rest
        finally:
            if began:
                self._allowance.use(min(seconds, monotonic() - began[0]))

    def render(self, names: Mapping[str, object], asked: Asked) -> str | None:
        """The marked text; None where the process gets no core, or ended.

        Raises: TemplateError as ChatTemplate.render does.
        """
        try:
            apart = self._free.pop()
        except IndexError:
            apart = ApartProcess(__name__)
        try:
            apart.ask(json.dumps([names, vars(asked)]))
            said = _patient(apart)
            if not said:
                apart.close()
                return None
        finally:
            self._free.append(apart)
            if self._is_closed:
                self.close()
        told: dict[str, Any] = json.loads(said)
        if "error" in told:
            raise TemplateError(told["error"]) from (BudgetError() if told["is_spent"] else None)
        return Written(told["text"], told["origin"])

    def close(self) -> None:
        """End the processes."""
        self._is_closed = True
        while self._free:
            self._free.pop().close()


def _patient(apart: ApartProcess) -> str | None:
    """What it says; None as soon as others leave it nothing of any core."""
    computed = apart.computed_seconds
    while (said := apart.hear(STARVED_SECONDS)) is None:
        before, computed = computed, apart.computed_seconds
        if computed < before + LEAST_SHARE * STARVED_SECONDS:
            return None
    return said


# Everything below runs in the process.


@lru_cache(maxsize=4)
def _template(names: str) -> ChatTemplate:
    given: dict[str, Any] = json.loads(names)
    controls = frozenset(given.pop("control_strings"))
    return ChatTemplate(given.pop("source"), control_strings=controls, **given)


def _answer(names: Mapping[str, object], asked: Mapping[str, Any]) -> dict[str, object]:
    """The text and its marks, or what is wrong."""
    try:
        text = _template(json.dumps(names)).render_marked(Asked(**asked), rest=_never_rest)
    except TemplateError as error:
        return {"error": str(error), "is_spent": isinstance(error.__cause__, BudgetError)}
    return {"text": text, "origin": origin_of(text)}


def _never_rest(spent: int) -> None:
    """There is no other thread."""


def _serve() -> None:
    be_idle()
    say("ready")
    for line in sys.stdin:
        say(_answer(*json.loads(line)))


if __name__ == "__main__":
    _serve()
