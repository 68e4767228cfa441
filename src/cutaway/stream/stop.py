"""Stop strings in a text that comes in pieces: what may be shown now, and where the answer ends.

Knows text only, no token.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass
class _State:
    """The end of the text so far, as far as it is the start of a stop string."""

    depth: int = 0  # characters of that start
    next: dict[str, _State] = field(default_factory=dict[str, "_State"])
    shorter: _State | None = None  # the next shorter end that is a start of a stop string too
    stop: str | None = None  # the longest stop string that ends here


class StopStrings:
    """Finds the stop string that is complete first; of two that end together, the longer.

    Withheld is exactly the longest end of the text that is a proper start of a stop string. Cuts
    of the text into pieces make no difference.

    Source: Aho and Corasick 1975, doi 10.1145/360825.360855; so the work per character does not
    depend on the number of stop strings, and a push costs what its piece costs.
    """

    def __init__(self, stops: Sequence[str], *, include_stop: bool = False) -> None:
        assert all(stops), "an empty stop string would end every answer at once"
        self._root = _automaton(stops)
        self._state = self._root
        self._include_stop = include_stop
        self.held = ""  # the end of the text that may be the start of a stop string
        self.stopped_by: str | None = None

    def push(self, text: str, *, may_stop: bool = True) -> str:
        """What may be shown of the text so far and was not shown yet.

        With may_stop false a stop string that is completed by this piece is passed over; its end
        may still be the start of another.
        """
        assert self.stopped_by is None, "nothing follows a stop string"
        if not self._root.next:
            return text
        text, start = self.held + text, len(self.held)
        for index in range(start, len(text)):
            self._state = _step(self._state, text[index])
            if self._state.stop is not None and may_stop:
                return self._cut(text, index + 1, self._state.stop)
        shown = len(text) - _held_depth(self._state)
        self.held = text[shown:]
        return text[:shown]

    def finish(self) -> str:
        """The withheld text, when no more comes."""
        held, self.held = self.held, ""
        self._state = self._root
        return held

    def _cut(self, text: str, end: int, stop: str) -> str:
        self.stopped_by, self.held = stop, ""
        return text[: end if self._include_stop else end - len(stop)]


def _automaton(stops: Sequence[str]) -> _State:
    root = _State()
    for stop in stops:
        state = root
        for char in stop:
            state = state.next.setdefault(char, _State(state.depth + 1))
        state.stop = stop
    waiting = deque(root.next.values())
    for state in root.next.values():
        state.shorter = root
    while waiting:
        state = waiting.popleft()
        assert state.shorter is not None, "states are visited from short to long"
        state.stop = state.stop or state.shorter.stop
        for char, longer in state.next.items():
            longer.shorter = _step(state.shorter, char)
            waiting.append(longer)
    return root


def _step(state: _State, char: str) -> _State:
    """The state after one more character."""
    while char not in state.next:
        if state.shorter is None:
            return state
        state = state.shorter
    return state.next[char]


def _held_depth(state: _State) -> int:
    """Characters to withhold: a stop string that was passed over is no proper start of itself."""
    while not state.next and state.shorter is not None:
        state = state.shorter
    return state.depth
