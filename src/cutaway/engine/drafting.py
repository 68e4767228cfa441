"""Guesses for the answers of an engine: who gets some, from where, and how they came out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from collections.abc import Sequence as Items

from cutaway.core.errors import ConfigError, GrammarError, RequestError
from cutaway.core.limits import quote
from cutaway.engine.config import NEEDED_BY_DRAFT, EngineConfig
from cutaway.engine.drafters import (
    Controller,
    Draft,
    Drafter,
    GuessLimits,
    GuessSource,
    Wish,
    most_of,
)
from cutaway.engine.drafters.streams import Streams
from cutaway.engine.drafters.trained_drafter import TrainedDrafter
from cutaway.engine.running import Running
from cutaway.engine.scheduler import Scheduled
from cutaway.engine.sequence import Sequence
from cutaway.sampling.grammars.grammar_state import GrammarState


class Drafting:
    """Where guesses come from, by the words of a request's draft.

    default:    for answers whose request does not say; off for none.
    model_name: by which a request may call the draft model too.
    streams:    of the target, which a trained drafter reads; None where there is none.
    tried, right: guesses that were looked at, and that stood, by drafter and place in the draft.
    """

    def __init__(
        self,
        sources: Mapping[str, GuessSource],
        *,
        default: str,
        model_name: str | None = None,
        streams: Streams | None = None,
    ) -> None:
        self._sources: Mapping[str, GuessSource] = sources
        self.streams = streams
        self._default, self._model_name = default, model_name
        self._asking: dict[Sequence, str] = {}
        self._right = Counter[str]()  # of a step's guesses
        self._sought: set[str] = set()  # where guesses were sought for it, found or not
        # Of so many running answers, for so many further steps none gets guesses.
        self._num_resting, self._steps_left = 0, 0
        self.is_resting = False  # in this step: there is nothing to learn from it
        self.tried = Counter[tuple[str, int]]()
        self.right = Counter[tuple[str, int]]()

    @classmethod
    def of(
        cls, drafter: Drafter, *, controller: Controller | None = None, is_default: bool = True
    ) -> Drafting:
        """One drafter, under the name of n-grams."""
        default = "ngram" if is_default else "off"
        return cls({"ngram": GuessSource(drafter, controller)}, default=default)

    @property
    def is_asked(self) -> bool:
        """Whether any answer wants guesses."""
        return bool(self._asking)

    @property
    def names(self) -> tuple[str, ...]:
        """What a request's draft may be here."""
        return ("off", *self._sources)

    def drafter(self, name: str) -> Drafter | None:
        """The drafter of that name, if it is here."""
        source = self._sources.get(name)
        return None if source is None else source.drafter

    def check(self, draft: str | None) -> None:
        """Raise RequestError for guesses that nobody here makes."""
        if draft is None or draft == self._model_name or draft in self.names:
            return
        needed = {
            word: f"; start with --{name.replace('_', '-')}"
            for word, name in NEEDED_BY_DRAFT.items()
        }
        named = f", or {self._model_name}" if self._model_name else ""
        raise RequestError(
            f"draft is {quote(draft)}; here it may be {', '.join(self.names)}{named}"
            f"{needed.get(draft, '')}.",
            param="draft",
        )

    def begin(self, sequence: Sequence) -> None:
        """Take in an answer that may want guesses."""
        draft = sequence.request.params.draft
        name = self._default if draft is None else draft
        if name == self._model_name:
            name = "model"
        if name in self._sources:
            self._asking[sequence] = name
            self._steps_left = 0

    def finish(self, sequence: Sequence) -> None:
        """Forget an answer, whether it wanted guesses or not."""
        name = self._asking.pop(sequence, None)
        if name is not None:
            self._sources[name].finish(sequence)

    def stop(self) -> None:
        """Guess nothing any more, for those that come later neither."""
        for sequence in list(self._asking):
            self.finish(sequence)
        self._default = "off"
        self._sources = dict[str, GuessSource]()

    def may_guess(self, scheduled: Items[Scheduled]) -> bool:
        """Whether the step behind this one may have guesses, whatever it says."""
        if self._steps_left:
            return False
        decoding = [item.sequence for item in scheduled if item.samples]
        asking = Counter(name for each in decoding if (name := self._asking.get(each)))
        return any(
            self._sources[name].may_guess(len(decoding), count) for name, count in asking.items()
        )

    def rests(self, num_running: int) -> bool:
        """Whether nobody gets guesses in the next step, as was decided some steps ago.

        A step passes its model's weights through the caches, so that whatever is done for one that
        gets no guesses is done by instructions and data from memory: this is next to nothing.
        """
        self.is_resting = self._steps_left > 0 and num_running == self._num_resting
        if self.is_resting:
            self._steps_left -= 1
        else:
            self._steps_left = 0
        return self.is_resting

    def pass_over(self) -> None:
        """Propose nothing for the next step, which was begun before its tokens were known."""
        self._right.clear()
        self._sought.clear()

    def propose(
        self, running: Iterable[Sequence], answers: Mapping[Sequence, Running]
    ) -> Iterator[tuple[Sequence, Draft]]:
        """What each answer that goes on by one token may get verified beside it.

        What a grammar forces is guessed before anything else.
        """
        self.pass_over()
        running = tuple(running)
        decoding = [each for each in running if each.num_tokens == each.num_computed_tokens + 1]
        asked: list[GuessSource] = []
        for name, source in self._sources.items():
            asking = [each for each in decoding if self._asking.get(each) == name]
            if not asking:
                continue
            may_guess = source.may_guess(len(decoding), len(asking))
            if may_guess:
                self._sought.add(name)
            asked.append(source)
            # Most answers of a chat have none most of the time: what a wish holds is not made then.
            asking = [
                each
                for each in asking
                if answers[each].grammar is not None
                or (may_guess and source.drafter.may_guess(each, each.token_ids))
            ]
            forced = _forced(asking, answers)
            if not may_guess:  # what must come is right all the same
                asking = [each for each in asking if each in forced]
            if not asking:
                continue
            limits = source.limits(len(decoding), len(asking)) if may_guess else None
            wishes = [
                _wish(each, answers[each].grammar, None if each in forced else limits)
                for each in asking
            ]
            drafts = source.propose(wishes, forced, num_answers=len(decoding))
            yield from zip(asking, drafts, strict=True)
        may_rest = len(decoding) == len(running) and not self._sought and len(asked) == 1
        if may_rest and all(answers[each].grammar is None for each in running):
            self._num_resting = len(running)
            self._steps_left = asked[0].skip(len(decoding))

    def observe(self, scheduled: Items[Scheduled], left: Streams) -> None:
        """Hand what a step left to the drafter that reads it, for the answers that ask it.

        left: of the step's tokens, in the order of a batch.
        """
        drafter, asking = self.drafter("trained"), self._asking
        if not any(asking.get(item.sequence) == "trained" for item in scheduled):
            left.drop()
            return
        if not left.are_there or not isinstance(drafter, TrainedDrafter):
            return
        first = 0
        for item in scheduled:
            if asking.get(item.sequence) == "trained":
                drafter.observe_step(item.sequence, item.start, left, first, item.count)
            first += item.count + item.num_other
        left.drop()

    def learn(self, item: Scheduled, *, right: int) -> None:
        """How one answer's guesses came out: of the way on which more stood, so many."""
        sequence, tried = item.sequence, item.num_drafts
        name = self._asking.get(sequence)
        if name is None:
            return
        self._right[name] += right
        other = item.took_other if item.is_forked else None
        kind = self._sources[name].learn(sequence, tried=tried, right=right, other=other)
        told = "grammar" if kind == "grammar" else name
        for place in range(min(tried, right + 1)):  # those behind a wrong one tell nothing
            self.tried[told, place] += 1
            self.right[told, place] += place < right

    def learn_time(
        self, scheduled: Items[Scheduled], seconds: float, *, was_awaited: bool = False
    ) -> None:
        """What a step took. One with a prompt in it tells nothing of guesses.

        Nor does one whose guesses came from several places, or had to wait for a drafter that had
        to catch up.
        was_awaited: it was not begun ahead since it might have got guesses; a plain one that was
            is not what plain steps take.
        """
        if not self._asking or (was_awaited and not self._sought):
            return
        further: dict[str, int] = {}
        for item in scheduled:
            if not item.samples or item.count != 1 + item.num_drafts:
                return
            if item.num_drafts:
                name = self._asking.get(item.sequence, "")
                further[name] = further.get(name, 0) + item.num_drafts + item.num_other
        if len(further) > 1:
            return
        for source in self._sources.values():
            if not source.is_steady:
                return
        for name in further or set(self._asking.values()):
            source = self._sources.get(name)
            if source is not None:
                source.learn_time(
                    len(scheduled),
                    further.get(name, 0),
                    seconds,
                    right=self._right.get(name, 0),
                    was_sought=name in self._sought,
                )


def refuse_states(config: EngineConfig, name: str) -> None:
    """Raise ConfigError where guesses are asked of a model that cannot take tokens back."""
    if config.draft != "off":
        raise ConfigError(
            f"draft is {quote(config.draft)}, but {name} keeps a state that tokens rewrite: a "
            "wrong "
            "guess could not be taken back. Set draft to off for this model."
        )


def check_draft(
    draft: str | None, drafting: Drafting | None, *, can_roll_back: bool, name: str
) -> None:
    """Raise RequestError where a request asks for guesses that nobody makes here.

    can_roll_back: whether its model can take them back; name is the model's.
    """
    if draft is not None and draft != "off" and not can_roll_back:
        raise RequestError(
            f"draft is {quote(draft)}, but {name} keeps a state that tokens rewrite: a wrong guess "
            "could not be taken back. Leave draft out, or send off.",
            param="draft",
        )
    if drafting is not None:
        drafting.check(draft)


def _wish(sequence: Sequence, grammar: GrammarState | None, limits: GuessLimits | None) -> Wish:
    request, most = sequence.request, most_of(sequence.max_length - sequence.num_tokens)
    return Wish(
        sequence,
        sequence.token_ids,
        most if limits is None else min(most, limits.most),
        num_prompt=sequence.num_prompt_tokens,
        params=request.params,
        seed=sequence.seed,
        choice=sequence.choice,
        max_length=sequence.max_length,
        root=sequence.cache_root,
        allowed=None if grammar is None else _allowing(grammar),
        least_kept=0.0 if limits is None else limits.least_kept,
        least_followed=0.0 if limits is None else limits.least_followed,
    )


def _forced(
    asking: Items[Sequence], answers: Mapping[Sequence, Running]
) -> dict[Hashable, list[int]]:
    """What the grammars of some answers leave no choice but to say."""
    found: dict[Hashable, list[int]] = {}
    for sequence in asking:
        grammar = answers[sequence].grammar
        if grammar is not None and (token_ids := grammar.find_forced()):
            found[sequence] = token_ids
    return found


def _allowing(grammar: GrammarState) -> Callable[[Items[int]], bytes | None]:
    """What the grammar lets come behind some guesses; nothing where it cannot go on."""

    def allowed(guesses: Items[int]) -> bytes | None:
        try:
            masks = grammar.masks(guesses)
        except GrammarError:
            return None
        return masks[-1] if len(masks) == len(guesses) + 1 else bytes(len(masks[0]))

    return allowed
