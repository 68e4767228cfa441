"""How fast an engine is, by its latest steps: what a router predicts from. Free of torch."""

from __future__ import annotations

from collections.abc import Sequence

from cutaway.engine.scheduler import Scheduled

_KEPT = 0.98  # of what was known, at each step: some 50 steps count


class Pace:
    """Prompt tokens per second of steps that hold prompts, and seconds of steps without any.

    Both are sums that fade, so a long step weighs by its length.
    """

    def __init__(self) -> None:
        self._tokens = self._prompt_seconds = 0.0
        self._steps = self._step_seconds = 0.0

    def note(self, scheduled: Sequence[Scheduled], seconds: float) -> None:
        """A step was computed."""
        num_tokens = sum([item.count for item in scheduled])
        if num_tokens > 2 * len(scheduled):
            self._tokens = self._tokens * _KEPT + num_tokens
            self._prompt_seconds = self._prompt_seconds * _KEPT + seconds
        else:
            self._steps = self._steps * _KEPT + 1
            self._step_seconds = self._step_seconds * _KEPT + seconds

    @property
    def prompt_rate(self) -> float:
        """Prompt tokens per second; 0 before the first prompt."""
        return self._tokens / self._prompt_seconds if self._prompt_seconds else 0.0

    @property
    def step_seconds(self) -> float:
        """Of a step that holds no prompt; 0 before the first."""
        return self._step_seconds / self._steps if self._steps else 0.0
