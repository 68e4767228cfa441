"""Where an answer repeats itself: its last tokens are one pattern several times over."""

from __future__ import annotations

from collections import deque

from cutaway.core.request import RepetitionDetection


class RepetitionDetector:
    """Reads an answer token by token and tells when it repeats itself.

    For each distance at which the last token stood before, within the longest pattern, it keeps
    how many tokens in a row were equal at that distance. So a token costs what its own earlier
    places among the last max_pattern_size tokens cost, which in a text are few.
    """

    def __init__(self, wanted: RepetitionDetection) -> None:
        self._wanted = wanted
        self._least = max(1, wanted.min_pattern_size)
        self._num_tokens = 0
        self._places: dict[int, deque[int]] = {}  # of each token, the latest
        self._runs: dict[int, int] = {}  # equal tokens in a row, by distance

    def push(self, token_id: int) -> bool:
        """Whether with this token the answer ends in the pattern min_count times."""
        at, most, copies = self._num_tokens, self._wanted.max_pattern_size, self._wanted.min_count
        self._num_tokens += 1
        places = self._places.setdefault(token_id, deque())
        while places and at - places[0] > most:
            places.popleft()
        runs: dict[int, int] = {}
        is_repeating = False
        for place in places:
            distance = at - place
            if distance < self._least:
                break  # the others are nearer still
            runs[distance] = run = self._runs.get(distance, 0) + 1
            is_repeating = is_repeating or run >= distance * (copies - 1)
        self._runs = runs
        places.append(at)
        return is_repeating
