"""What has been told of a request so far, and from where another engine goes on with it.

Free of engines and of loops: whoever follows the request tells it what came.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Final

import msgspec

from cutaway.core.errors import DeadlineError, EngineClosedError
from cutaway.core.output import Delta, DrawProof, FinishReason, Timings, ToldChoice, Usage
from cutaway.core.request import Request
from cutaway.fleet.fleet_config import Resume
from cutaway.sampling.seed import resolve_seed

# An engine that ends before so many tokens more may have ended because of this request.
PROVEN_TOKENS: Final = 16
MOST_SUSPICIONS: Final = 2  # in a row: the second time it goes on alone, the third it ends
MOST_ENDS: Final = 8  # of engines altogether, whatever came between


@dataclass(eq=False)
class _Choice:
    """What was told of one choice."""

    token_ids: list[int] = field(default_factory=list[int])
    draws: list[DrawProof] = field(default_factory=list[DrawProof])
    has_ended: bool = False
    reason: FinishReason | None = None  # why an engine ended it
    is_unwanted: bool = False  # its reader has had enough
    is_rejoining: bool = False  # an engine has to compute the row of its last token again
    is_exact: bool | None = None  # of its seams, if it has any


@dataclass(frozen=True)
class Route:
    """Where a request was sent, and why: cache, idle, shortest or only.

    estimated: tokens that were thought to be in that engine's cache.   missing: the others.
    """

    member: str
    why: str
    estimated: int
    missing: int


class Stream:
    """One request from the fleet's door to its last word.

    clock: seconds.
    """

    def __init__(self, request: Request, resume: Resume, clock: Callable[[], float]) -> None:
        # From here on it is repeatable: a seed that nobody chose is chosen now.
        params = request.params
        self.request = (
            request if params.seed is not None else request.with_seed(resolve_seed(params))
        )
        self.num_moves = 0  # to other engines
        self.num_ends = 0  # of engines that had it
        self.routes: list[Route] = []  # one for each engine that had it, in turn
        self.numeric_class: str | None = None  # of the engine that had it last
        self._resume: Resume = resume
        self._clock = clock
        self._arrived = clock()
        self._bound = self._begun = self._first = 0.0
        self._choices = [_Choice() for _ in range(params.n)]
        self._suspicions = 0
        self._news = 0  # tokens since an engine has it

    @property
    def is_done(self) -> bool:
        """Whether every choice has ended."""
        return all(choice.has_ended for choice in self._choices)

    @property
    def has_begun(self) -> bool:
        """Whether anything was told of it."""
        return any(choice.token_ids or choice.has_ended for choice in self._choices)

    @property
    def is_exact(self) -> bool | None:
        """Whether all seams were; None where there is none."""
        seams = [each.is_exact for each in self._choices if each.is_exact is not None]
        return all(seams) if seams else None

    @property
    def num_told(self) -> int:
        """Tokens that were told, of all choices."""
        return sum(len(each.token_ids) for each in self._choices)

    @property
    def num_open(self) -> int:
        """Choices that have not ended."""
        return sum(not choice.has_ended for choice in self._choices)

    @property
    def num_tokens(self) -> int:
        """That an engine has to know before it can go on, of the longest choice."""
        return len(self.longest)

    @property
    def longest(self) -> tuple[int, ...]:
        """Prompt and answer of the choice that is furthest."""
        told = max((choice.token_ids for choice in self._choices), key=len)
        if not told and not self.request.continued_token_ids:
            return self.request.prompt_token_ids
        return (*self.request.prompt_token_ids, *self.request.continued_token_ids, *told)

    @property
    def is_suspect(self) -> bool:
        """Whether engines ended soon after they got it, so that it should share one with nobody."""
        return self._suspicions >= MOST_SUSPICIONS

    def list_begun(self) -> tuple[ToldChoice, ...]:
        """Its choices that go on; nothing where none has begun."""
        if not self.num_moves:
            return ()
        return tuple(
            ToldChoice(number, tuple(choice.token_ids), tuple(choice.draws))
            for number, choice in enumerate(self._choices)
            if not choice.has_ended
        )

    def list_ended(self) -> tuple[ToldChoice, ...]:
        """All that was told of its choices, once each has ended."""
        return tuple(
            ToldChoice(number, tuple(choice.token_ids), tuple(choice.draws), choice.reason)
            for number, choice in enumerate(self._choices)
            if choice.reason is not None and len(choice.draws) == len(choice.token_ids)
        )

    def for_engine(self) -> Request:
        """The request with what is left of its time. Raises: DeadlineError when nothing is."""
        left = self.seconds_left
        if left is None:
            return self.request
        if left <= 0:
            raise late(self.request)
        return replace(self.request, deadline=left)

    @property
    def seconds_left(self) -> float | None:
        """Of its time; None where it has no end."""
        if self.request.deadline is None:
            return None
        return self.request.deadline - (self._clock() - self._arrived)

    @property
    def waited(self) -> float:
        """Seconds for its first engine until now; 0 once it has had one."""
        return 0.0 if self._bound else self._clock() - self._arrived

    def bind(self, numeric_class: str) -> None:
        """An engine of such numbers has it now."""
        self.numeric_class = numeric_class
        self._news = 0
        self._bound = self._bound or self._clock()
        for choice in self._choices:
            choice.is_rejoining = bool(choice.token_ids) and not choice.has_ended

    def unbind(self, *, has_ended: bool) -> None:
        """The engine has it no more. has_ended: the engine itself, be it for this request.

        Raises: EngineClosedError where it may not go on in another.
        """
        self.num_moves += 1
        self.num_ends += has_ended
        if has_ended:
            self._suspicions = self._suspicions + 1 if self._news < PROVEN_TOKENS else 1
        if self._resume == "off" and self.has_begun:
            raise EngineClosedError(
                "the engine ended while this answer ran, and the fleet does not resume answers. "
                "Try again."
            )
        if self._suspicions > MOST_SUSPICIONS or self.num_ends > MOST_ENDS:
            raise EngineClosedError(
                f"{self.num_ends} engines ended while they computed this answer, the last of them "
                "with nothing else to do. It is not tried again."
            )

    def drop_choice(self, choice: int) -> bool:
        """A reader has had enough of a choice. Whether the engine can be told so already."""
        self._choices[choice].is_unwanted = True
        return not self._choices[choice].is_rejoining

    def cut(self) -> Iterator[Delta]:
        """Last news of choices that nobody wants any more and no engine has."""
        for number, choice in enumerate(self._choices):
            if choice.is_unwanted and not choice.has_ended:
                choice.has_ended = True
                yield self._last(number, choice, None)

    def take(self, delta: Delta) -> tuple[Delta | None, int | None]:
        """What is to be told of an engine's news, and which choice it should end, if any."""
        choice = self._choices[delta.choice]
        if choice.has_ended:
            return None, None  # it ended here before the engine knew
        if delta.seam is not None:
            return self._pass_seam(delta, choice)
        self._begun = self._begun or self._clock()
        if delta.token_ids:
            self._first = self._first or self._clock()
            self._news += len(delta.token_ids)
            choice.token_ids += delta.token_ids
            choice.draws += delta.draws
        if delta.finish_reason is not None:
            choice.has_ended, choice.reason = True, delta.finish_reason
            delta = self._with_own_times(delta, choice)
            delta.seam = choice.is_exact
        delta.draws = ()  # nobody else holds it, and a copy for every token takes 3 us
        return delta, None

    def _pass_seam(self, delta: Delta, choice: _Choice) -> tuple[Delta | None, int | None]:
        choice.is_rejoining = False
        choice.is_exact = bool(delta.seam) and choice.is_exact is not False
        if choice.is_unwanted:
            return None, delta.choice
        if delta.seam or self._resume != "strict":
            return None, None
        choice.has_ended = True
        error = EngineClosedError(
            "the engine ended while this answer ran, and in another the row of its last token came "
            "out otherwise. With resume strict such an answer ends here. Try again."
        )
        return self._last(delta.choice, choice, error), delta.choice

    def _last(self, number: int, choice: _Choice, error: EngineClosedError | None) -> Delta:
        """The last news of a choice that the fleet ends by itself."""
        num_prompt = len(self.request.prompt_token_ids)
        last = Delta(
            self.request.request_id,
            number,
            finish_reason="abort" if error is None else "error",
            error=error,
            usage=Usage(num_prompt, len(choice.token_ids), 0),
            timings=Timings(0, 0, 0, 0, 0),
            seam=choice.is_exact,
        )
        return self._with_own_times(last, choice)

    def _with_own_times(self, delta: Delta, choice: _Choice) -> Delta:
        """Times from the fleet's door on: an engine knows its own part alone."""
        times = delta.timings
        if times is None:
            return delta
        waited = max(0.0, (self._bound or self._clock()) - self._arrived)
        if choice.is_exact is None:
            times = replace(
                times, queue=times.queue + waited, first_token=times.first_token + waited
            )
        else:
            now = self._clock()
            first = self._first or now
            times = replace(
                times,
                queue=waited,
                prefill=first - self._arrived - waited,
                decode=now - first,
                first_token=first - self._arrived,
            )
        return msgspec.structs.replace(delta, timings=times)


def late(request: Request) -> DeadlineError:
    """What is told of a request whose time is over."""
    return DeadlineError(
        f"the answer took longer than its deadline of {request.deadline:g} seconds. Ask for fewer "
        "tokens, or allow more time."
    )
