"""One place where guesses come from: a drafter, what it is asked for, and how that came out."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace

from cutaway.engine.drafters.controller import MOST_DRAFTS, OTHER, Controller
from cutaway.engine.drafters.drafter import Draft, Drafter, GuessLimits, Wish


class GuessSource:
    """A drafter with the controller that decides how many of its guesses are worth their time.

    controller: without one all are taken.
    """

    def __init__(self, drafter: Drafter, controller: Controller | None = None) -> None:
        self.drafter = drafter
        self._controller = controller
        self._kinds: dict[Hashable, str] = {}  # of the guesses that a step verifies

    @property
    def is_steady(self) -> bool:
        """Whether the time of its latest proposals is what later ones will take."""
        return not self.drafter.is_behind

    def may_guess(self, num_answers: int, num_asking: int) -> bool:
        """Whether guesses may be worth their time in the next step at all.

        num_answers: that the step brings a token.   num_asking: of these, those that want guesses.
        """
        if self._controller is None:
            return True
        if self._heeds_bounds:
            return self._controller.most(num_answers, num_asking) > 0
        return self._controller.may_pay(num_answers, num_asking)

    @property
    def _heeds_bounds(self) -> bool:
        return self.drafter.only_kind is not None and self.drafter.heeds_bounds

    def limits(self, num_answers: int, num_asking: int) -> GuessLimits | None:
        """Within what the drafts of a step are to be made; None where no bounds are set before.

        num_answers: that the step brings a token.   num_asking: of these, those that want guesses.
        """
        if self._controller is None or not self._heeds_bounds:
            return None
        most = self._controller.most(num_answers, num_asking)
        return GuessLimits(most, *self._controller.bounds(num_answers))

    def skip(self, num_answers: int) -> int:
        """Steps behind one that may not have guesses for which that need not be asked again."""
        return 0 if self._controller is None else self._controller.skip(num_answers)

    def propose(
        self, wishes: Sequence[Wish], forced: Mapping[Hashable, list[int]], *, num_answers: int
    ) -> list[Draft]:
        """A draft for each wish, at most as long as pays.

        wishes:      within limits() where that sets any, but those for which something is forced.
        forced:      by key, what an answer's grammar leaves no choice but to say.
        num_answers: that the step brings a token, guesses or none.
        """
        drafts = self._drafts(wishes, forced, num_answers)
        self._kinds.clear()
        for wish, draft in zip(wishes, drafts, strict=True):
            self._kinds[wish.key] = draft.kind
        return drafts

    def _drafts(
        self, wishes: Sequence[Wish], forced: Mapping[Hashable, list[int]], num_answers: int
    ) -> list[Draft]:
        kind = self.drafter.only_kind
        if self._heeds_bounds and not forced:
            return self.drafter.propose(wishes)  # as far as each wish goes
        if kind is None:
            made = iter(self.drafter.propose(wishes))
            drafts = [_chosen(wish, next(made), forced) for wish in wishes]
            lengths = self._lengths(wishes, drafts, num_answers)
            return self._with_others(wishes, drafts, lengths, num_answers)
        # Each guess costs a step of the drafter: no more are made than will be taken.
        drafts = [_chosen(wish, Draft([0] * wish.most, kind), forced) for wish in wishes]
        lengths = self._lengths(wishes, drafts, num_answers)
        if self._heeds_bounds:  # no length is chosen before its guesses are known
            lengths = [
                length if wish.key in forced else wish.most
                for wish, length in zip(wishes, lengths, strict=True)
            ]
        asked = [
            replace(wish, most=0 if wish.key in forced else length)
            for wish, length in zip(wishes, lengths, strict=True)
        ]
        if not any(lengths):
            return [Draft() for _ in wishes]
        made = self.drafter.propose(asked)
        return [
            draft.first(length) if wish.key in forced else own
            for wish, draft, length, own in zip(wishes, drafts, lengths, made, strict=True)
        ]

    def _with_others(
        self,
        wishes: Sequence[Wish],
        drafts: Sequence[Draft],
        lengths: Sequence[int],
        num_answers: int,
    ) -> list[Draft]:
        """So much of each draft, and where it pays as much of what may come in its place."""
        controller, further = self._controller, sum(lengths)
        given: list[Draft] = []
        for wish, draft, length in zip(wishes, drafts, lengths, strict=True):
            may_fork = 0 < length <= len(draft.other_token_ids)
            if may_fork and controller is not None:
                may_fork = controller.takes_other(
                    wish.key, draft, length=length, num_answers=num_answers, further=further
                )
            if may_fork:
                further += 1 + length
            given.append(draft.first(length, num_other=length if may_fork else 0))
        return given

    def _lengths(
        self, wishes: Sequence[Wish], drafts: Sequence[Draft], num_answers: int
    ) -> list[int]:
        if self._controller is None:
            return [len(draft.token_ids) for draft in drafts]
        pairs = [(wish.key, draft) for wish, draft in zip(wishes, drafts, strict=True)]
        return self._controller.lengths(pairs, num_answers=num_answers)

    def learn(self, key: Hashable, *, tried: int, right: int, other: bool | None = None) -> str:
        """How one answer's guesses came out; returns their kind.

        other: whether those stood that were verified in their place; None where there were none.
        """
        kind = self._kinds.get(key, "")
        if self._controller is not None and kind:
            own = 0 if other else right
            self._controller.learn(key, kind, tried=tried, right=own)
            if other is not None and not own:
                self._controller.learn(key, OTHER, tried=1, right=int(other))
        return kind

    def learn_time(
        self, num_answers: int, further: int, seconds: float, *, right: int, was_sought: bool
    ) -> None:
        """What a step took, how many of its further tokens were right, and if any were sought."""
        if self._controller is not None:
            self._controller.learn_time(
                num_answers, further, seconds, right=right, was_sought=was_sought
            )

    def finish(self, key: Hashable) -> None:
        """Forget an answer."""
        self._kinds.pop(key, None)
        self.drafter.finish(key)
        if self._controller is not None:
            self._controller.finish(key)


def most_of(left: int) -> int:
    """Guesses that an answer can take which may still grow by so many tokens."""
    return max(0, min(MOST_DRAFTS, left - 1))


def _chosen(wish: Wish, draft: Draft, forced: Mapping[Hashable, list[int]]) -> Draft:
    """What a grammar forces comes before any other guess."""
    token_ids = forced.get(wish.key)
    return draft if token_ids is None else Draft(token_ids[: wish.most], "grammar")
