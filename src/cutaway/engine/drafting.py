"""Guesses for the answers of an engine: who gets some, and how they came out. Free of torch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from cutaway.core.errors import ConfigError, RequestError
from cutaway.engine.config import EngineConfig
from cutaway.engine.drafters import Controller, Draft, Drafter, NGramDrafter, Wish
from cutaway.engine.drafters.controller import MOST_DRAFTS
from cutaway.engine.running import Running
from cutaway.engine.scheduler import Scheduled
from cutaway.engine.sequence import Sequence


class Drafting:
    """One drafter for all answers that want guesses.

    controller: decides how many of a drafter's guesses are worth their time; without one all are
        taken.
    is_default: whether an answer gets guesses whose request does not say.
    """

    def __init__(
        self, drafter: Drafter, *, controller: Controller | None = None, is_default: bool = True
    ) -> None:
        self._drafter, self._controller = drafter, controller
        self._is_default = is_default
        self._asking: set[Sequence] = set()
        self._kinds: dict[Sequence, str] = {}  # of the guesses that a step verifies
        self._num_right = 0  # of a step's guesses

    @property
    def is_asked(self) -> bool:
        """Whether any answer wants guesses."""
        return bool(self._asking)

    def begin(self, sequence: Sequence) -> None:
        """Take in an answer that may want guesses."""
        draft = sequence.request.params.draft
        if self._is_default if draft is None else draft != "off":
            self._asking.add(sequence)

    def finish(self, sequence: Sequence) -> None:
        """Forget an answer, whether it wanted guesses or not."""
        if sequence in self._asking:
            self._asking.discard(sequence)
            self._kinds.pop(sequence, None)
            self._drafter.finish(sequence)
            if self._controller is not None:
                self._controller.finish(sequence)

    def stop(self) -> None:
        """Guess nothing any more, for those that come later neither."""
        self._asking.clear()
        self._kinds.clear()
        self._is_default = False

    def propose(
        self, running: Iterable[Sequence], answers: Mapping[Sequence, Running]
    ) -> Iterator[tuple[Sequence, list[int]]]:
        """What each answer that goes on by one token may get verified beside it.

        What a grammar forces is guessed before anything else.
        """
        self._kinds.clear()
        self._num_right = 0
        decoding = [each for each in running if each.num_tokens == each.num_computed_tokens + 1]
        asking = [each for each in decoding if each in self._asking]
        if not asking:
            return
        if self._controller is not None and not self._controller.may_pay(
            len(decoding), len(asking)
        ):
            return
        wishes = [_wish(each) for each in asking]
        drafts = self._drafter.propose(wishes)
        for place, (sequence, wish) in enumerate(zip(asking, wishes, strict=True)):
            grammar = answers[sequence].grammar
            forced = [] if grammar is None else grammar.forced()[: wish.most]
            if forced:
                drafts[place] = Draft(forced, "grammar")
        lengths = [len(draft.token_ids) for draft in drafts]
        if self._controller is not None:
            pairs = list(zip(asking, drafts, strict=True))
            lengths = self._controller.lengths(pairs, num_answers=len(decoding))
        for sequence, draft, length in zip(asking, drafts, lengths, strict=True):
            self._kinds[sequence] = draft.kind
            yield sequence, draft.token_ids[:length]

    def learn(self, sequence: Sequence, *, tried: int, right: int) -> None:
        """How one answer's guesses came out."""
        self._num_right += right
        if self._controller is not None and sequence in self._kinds:
            self._controller.learn(sequence, self._kinds[sequence], tried=tried, right=right)

    def learn_time(self, scheduled: Iterable[Scheduled], seconds: float) -> None:
        """What a step took. One with a prompt in it tells nothing of guesses."""
        if self._controller is None or not self._asking:
            return
        num_answers = further = 0
        for item in scheduled:
            if not item.samples or item.count != 1 + item.num_drafts:
                return
            num_answers, further = num_answers + 1, further + item.num_drafts
        self._controller.learn_time(num_answers, further, seconds, right=self._num_right)


def drafting_of(config: EngineConfig) -> Drafting:
    """What a configuration asks for; a request may ask for guesses where it does not."""
    return Drafting(NGramDrafter(), controller=Controller(), is_default=config.draft != "off")


def refuse_states(config: EngineConfig, name: str) -> None:
    """Raise ConfigError where guesses are asked of a model that cannot take tokens back."""
    if config.draft != "off":
        raise ConfigError(
            f"draft is {config.draft!r}, but {name} keeps a state that tokens rewrite: a wrong "
            "guess could not be taken back. Set draft to off for this model."
        )


def check_draft(draft: str | None, *, can_roll_back: bool, name: str) -> None:
    """Raise RequestError where a request asks for guesses that its model cannot take back."""
    if draft is not None and draft != "off" and not can_roll_back:
        raise RequestError(
            f"draft is {draft!r}, but {name} keeps a state that tokens rewrite: a wrong guess "
            "could not be taken back. Leave draft out, or send off.",
            param="draft",
        )


def _wish(sequence: Sequence) -> Wish:
    left = sequence.max_length - sequence.num_tokens - 1
    return Wish(sequence, sequence.token_ids, max(0, min(MOST_DRAFTS, left)))
