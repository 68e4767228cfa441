"""What a drafter does."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from cutaway.core.request import SamplingParams
from cutaway.sampling.rejection import Proposal

_GREEDY = SamplingParams(temperature=0.0)


class GuessLimits(NamedTuple):
    """Within what a draft is made, by a drafter that heeds bounds: see Wish."""

    most: int
    least_kept: float
    least_followed: float


@dataclass(frozen=True)
class Wish:
    """One answer that may be given guesses.

    key:        stays the same for all of the answer.
    token_ids:  all that is known of it, the prompt included; it only grows.
    most:       guesses that can be taken.
    num_prompt: of token_ids, those of the prompt.
    params, seed, choice: what decides its draws beside logits, for drafters that draw. A request
                without a seed is verified by rejection where the drafter gives proposals.
    max_length: prompt and answer together; also the declared length for rotary bases.
    root:       answers of another root share nothing.
    allowed:    what a grammar lets come behind some guesses, one bit per token id; None where
                there is no grammar, or nothing that may come.
    least_kept: a guess is worth verifying while the product of chances is no less, and
    least_followed: another one worth making behind it; of drafters that heed bounds. What is drawn
                by numbers of its own is kept whatever it is: else answers would be others.
    """

    key: Hashable
    token_ids: Sequence[int]
    most: int
    num_prompt: int = 0
    params: SamplingParams = _GREEDY
    seed: int = 0
    choice: int = 0
    max_length: int = 2**31
    root: bytes = b""
    allowed: Callable[[Sequence[int]], bytes | None] | None = None
    least_kept: float = 0.0
    least_followed: float = 0.0

    @property
    def draws_alone(self) -> bool:
        """Whether guesses are drawn by numbers of their own: no seed says which token comes.

        Not under a grammar: an end is never verified as a guess there, and whether a guess is
        verified must not depend on what it is.
        """
        return self.params.seed is None and not self.params.is_greedy and self.allowed is None


@dataclass(frozen=True)
class Draft:
    """Guesses for one answer, and how sure the drafter is of them.

    kind:    guesses of one kind turn out right about equally often; the controller counts by it.
    chances: what the drafter gave each guess of its own distribution; none where it has none.
    proposals: the distributions that the guesses were drawn from by random numbers of their own:
             one for each, or none where they are to be compared with what the target draws.
    other_token_ids: what may come in place of all these guesses, where the drafter is in two minds:
             as many, with another first one.
    """

    token_ids: list[int] = field(default_factory=list[int])
    kind: str = ""
    chances: list[float] = field(default_factory=list[float])
    proposals: list[Proposal] = field(default_factory=list[Proposal])
    other_token_ids: list[int] = field(default_factory=list[int])

    def first(self, length: int, *, num_other: int = 0) -> Draft:
        """No more than so many of the guesses, and of the others."""
        return Draft(
            self.token_ids[:length],
            self.kind,
            self.chances[:length],
            self.proposals[:length],
            self.other_token_ids[:num_other],
        )


class Drafter(Protocol):
    """Proposes tokens; a wrong guess costs time and never changes the answer.

    All that a step needs is asked for at once, so that a drafter may compute it in one batch. What
    it keeps of an answer it keeps by the answer's key.
    """

    @property
    def only_kind(self) -> str | None:
        """The kind of all its drafts, where making one is dear: how long is then chosen before.

        None where guesses cost next to nothing, and are best chosen when they are known.
        """
        ...

    @property
    def heeds_bounds(self) -> bool:
        """Whether it ends a draft by the bounds of its wish."""
        ...

    @property
    def is_behind(self) -> bool:
        """Whether the latest proposals took time for what later ones will find done."""
        ...

    def propose(self, wishes: Sequence[Wish]) -> list[Draft]:
        """One draft for each wish, in order, at most as long as wished; empty for no guess.

        An answer may come with fewer tokens than before only if it begins anew.
        """
        ...

    def may_guess(self, key: Hashable, token_ids: Sequence[int]) -> bool:
        """Whether there may be a guess for an answer; asked before anything of a wish is made."""
        ...

    def finish(self, key: Hashable) -> None:
        """Forget an answer. One that never came is no fault."""
        ...
