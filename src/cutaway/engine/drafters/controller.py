"""How many guesses an answer is given: by how many were right, and their cost. Free of torch.

A step over N tokens takes longer than one over fewer; the guesses that stand are tokens won. Both
are measured while the engine runs, and drafting ends by itself where it does not pay: with many
answers at once, or where guesses are mostly wrong.

GuessSource: the expected tokens of a draft, Leviathan et al. 2023, arXiv 2211.17192, section 3.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from cutaway.engine.drafters.drafter import Draft

MOST_DRAFTS = 12  # of one answer in one step
OTHER = "other"  # the kind of what is guessed in place of a draft whose first guess falls
_LEAST_GAIN = 1.08  # below this it is not worth the variance
_KEPT, _KEPT_OF_ALL = 0.9, 0.99  # of what was counted, at each new count
_PRIOR_WEIGHT = 2.0  # guesses that what other answers brought counts as
_FIRST_SHARE = 0.6  # of guesses that are right, before any was tried
_FIRST_OTHER = 0.3  # of those in place of one that fell
_FIRST_SLOPE = 0.15  # a further token of a step, in steps of one token each, before it is measured
_HOPED = 0.15  # plain steps won by one that looked for guesses, before it is known
# Plain steps: what may be lost until no guesses are looked for, and what was won before and is kept
# to be lost too. A step that guesses wins or loses half of one by luck, and 0.1 of one by right.
_RISKED, _SAVED = 4.0, 5.0
_SPENT = 0.004  # of all time, on trying again what did not pay
_LONGEST = 1024  # steps without a trial: guesses may have become better
_PROBE = 64  # steps without guesses after which some are tried anew
_PLAIN_PROBE = 128  # steps that looked for guesses after which a plain one is tried anew
# The same of drafts that end by their bounds: almost all steps have some, and what a plain step
# takes is another as soon as the machine has more to do.
_BOUNDED_PROBE = 24
# Where they lose: what a machine that became slower costs is not to be taken for theirs.
_LOSING_PROBE = 6
_LEAST_KEPT, _LEAST_FOLLOWED = 0.02, 0.1
_FIRST_REST = 128  # steps; four times as many each time, as long as all lose
# Weight of a plain step among those before it, and of one that says that the machine has changed:
# by so many times, which is beyond what one step differs from others.
_NEW, _NEW_AFTER_GUESSES, _NEW_OF_CHANGED, _CHANGED = 0.15, 0.4, 0.7, 1.25
_NEW_RATIO = 0.02  # the least weight of a step with guesses: of few all count alike
# Steps for which one answers whether guesses may pay: asking takes 0.1 ms, read from memory behind
# a model's weights, 1 % of a step of SmolLM2.
_UNWATCHED = 15


@dataclass
class _Share:
    """Guesses of one kind: how many were tried, how many were right. Older ones count less."""

    tried: float = 0.0
    right: float = 0.0

    def count(self, right: int, tried: int, *, kept: float) -> None:
        self.tried = kept * self.tried + tried
        self.right = kept * self.right + right


@dataclass
class _Times:
    """Seconds of steps with one number of answers: plain, and how many times that with guesses."""

    plain: float = 0.0
    num_plain: int = 0
    ratios: dict[int, float] = field(default_factory=dict[int, float])  # by further tokens
    # What follows for any number of them, and the best length by answers that ask: asked some ten
    # times a step, and the same until more is learned.
    known: dict[int, float] = field(default_factory=dict[int, float])
    longest: dict[int, int] = field(default_factory=dict[int, int])
    counts: list[int] = field(default_factory=list[int])  # of ratios, ascending
    measured: Counter[int] = field(default_factory=Counter[int])  # steps, since they rested
    since_plain: int = 0
    since_drafts: int = 0
    won: float = _HOPED  # plain steps, by one that looked for guesses, lately
    lost: float = 0.0  # plain steps, by all that did since they rested; below 0: won
    least_lost: float = 0.0  # since they rested
    # As the last plain step behind others found them.
    lost_before: float = 0.0
    ratios_before: dict[int, float] = field(default_factory=dict[int, float])
    measured_before: Counter[int] = field(default_factory=Counter[int])
    is_pardoned: bool = False  # what those before it lost; not twice in a row, which is noise
    rest: int = 0  # steps without guesses, after they did not pay
    rests: int = 0  # in a row, after guesses that did not pay
    wait: int = _PROBE  # steps without guesses until some are tried anew
    assured: int = 0  # steps for which right guesses were found to pay

    @property
    def is_due(self) -> bool:
        """Whether what a plain step takes is not known, or no longer, beside bounded drafts."""
        probe = _LOSING_PROBE if self.lost > 0 else _BOUNDED_PROBE
        return self.num_plain < 3 or self.since_plain >= probe or self.lost > _RISKED

    def ratio(self, further: int) -> float:
        """What a step with so many further tokens takes, in plain steps.

        Between what was measured; beyond it, as it rose.
        """
        known = self.known.get(further)
        if known is not None:
            return known
        ratios, counts = self.ratios, self.counts
        place = bisect_left(counts, further)
        below = counts[place - 1] if place else 0
        low = ratios.get(below, 1.0)
        if place == len(counts):
            found = low + (further - below) * ((low - 1) / below if below else _FIRST_SLOPE)
        elif counts[place] == further:
            found = ratios[further]
        else:
            above = counts[place]
            found = low + (ratios[above] - low) * (further - below) / (above - below)
        self.known[further] = found = max(1.0, found)
        return found

    def forget_known(self) -> None:
        """What followed from ratios that have changed."""
        self.known.clear()
        self.longest.clear()
        self.counts = sorted(self.ratios)

    def rest_if_lost(self) -> None:
        """Let none look for guesses for a while where steps that did have lost too much.

        The more was lost, the longer, so that trials together cost no more than a small share.
        """
        if self.lost > _RISKED:
            longest = _FIRST_REST << min(2 * self.rests, 4)
            self.rest = min(longest, _pause(self.lost - self.least_lost))
            self.rests, self.assured = self.rests + 1, 0
            self.won, self.lost, self.least_lost = _HOPED, 0.0, 0.0
            self.measured.clear()

    def learn_plain(self, seconds: float) -> None:
        """Take in a plain step; behind others, what they told is kept or forgotten by it.

        A machine whose speed has changed since the last one made them look dear, or cheap.
        """
        self.num_plain += 1
        weight = max(_NEW_AFTER_GUESSES if self.since_plain else _NEW, 1 / self.num_plain)
        if self.since_plain:
            changed = self.plain and not 1 / _CHANGED < seconds / self.plain < _CHANGED
            self.is_pardoned = bool(changed) and not self.is_pardoned
            if self.is_pardoned:
                self.lost, weight = self.lost_before, _NEW_OF_CHANGED
                self.ratios, self.measured = dict(self.ratios_before), self.measured_before.copy()
                self.forget_known()
            self.rest_if_lost()
            self.lost_before = self.lost
            self.ratios_before, self.measured_before = dict(self.ratios), self.measured.copy()
        self.since_plain = 0
        self.plain = _nearer(self.plain or seconds, seconds, weight)


class Controller:
    """Chooses draft lengths for the answers of a step, and learns from how the step came out."""

    def __init__(self) -> None:
        self._all: dict[str, _Share] = {}
        self._own: dict[Hashable, dict[str, _Share]] = {}
        self._times: dict[int, _Times] = {}

    def lengths(self, drafts: Sequence[tuple[Hashable, Draft]], *, num_answers: int) -> list[int]:
        """How much of each draft is taken: what makes tokens a second the most.

        drafts: by the answer's key.   num_answers: that the step brings a token, drafts or none.
        """
        times = self._times.setdefault(num_answers, _Times())
        most = [min(MOST_DRAFTS, len(draft.token_ids)) for _, draft in drafts]
        if not any(most):
            return most
        if times.num_plain < 3 or times.since_plain >= _PLAIN_PROBE:
            return [0] * len(drafts)  # what a plain step takes is not known, or no longer
        gains: list[tuple[float, int]] = []  # expected tokens of each further guess
        for place, (key, draft) in enumerate(drafts):
            share = self.share(key, draft.kind)
            gains += [(share**length, place) for length in range(1, most[place] + 1)]
        gains.sort(key=lambda gain: -gain[0])
        best, taken = _LEAST_GAIN / self.ratio(num_answers, 0), 0
        won = float(num_answers)
        for count, (gain, _) in enumerate(gains, 1):
            won += gain
            gained = won / num_answers / self.ratio(num_answers, count)
            if gained > best:
                best, taken = gained, count
        if taken == 0 and times.since_drafts >= times.wait:
            taken = 1  # guesses may have become better
        lengths = [0] * len(drafts)
        for _, place in gains[:taken]:
            lengths[place] += 1
        return lengths

    def most(self, num_answers: int, num_asking: int) -> int:
        """How long a draft may be that ends by its bounds: as pays if all of it is right."""
        times = self._times.setdefault(num_answers, _Times())
        if times.is_due or times.rest:
            return 0
        taken = times.longest.get(num_asking)
        if taken is None:
            best, taken = _LEAST_GAIN, 0
            for length in range(1, MOST_DRAFTS + 1):
                won = 1 + num_asking * length / num_answers
                gained = won / times.ratio(num_asking * length)
                if gained > best:
                    best, taken = gained, length
            times.longest[num_asking] = taken
        return taken or int(times.since_drafts >= _LONGEST)  # guesses may have become cheaper

    def bounds(self, num_answers: int) -> tuple[float, float]:
        """Products of chances down to which a guess is worth verifying, and worth one behind it.

        A guess is worth its product in tokens, and costs what a step takes longer that verifies
        it. Where none was found wanting yet, half of the first one's time is its making. One
        behind another is right two times in three, or no good.
        """
        times = self._times.setdefault(num_answers, _Times())
        worth = max(1.0, 1.0 + times.won)  # tokens that a plain step's time brings
        none, one, two = (times.ratio(count * num_answers) for count in range(3))
        if 0 not in times.ratios:
            none = (1 + one) / 2
        kept, followed = worth * (one - none), 1.5 * worth * (two - one)
        return min(1.0, max(kept, _LEAST_KEPT)), min(1.0, max(followed, _LEAST_FOLLOWED))

    def may_pay(self, num_answers: int, num_asking: int) -> bool:
        """Whether guesses are worth making at all, before any was made: they take time too.

        num_asking: of the answers, those that want guesses.
        """
        times = self._times.get(num_answers)
        if times is None or times.num_plain < 3 or times.since_plain >= _PLAIN_PROBE:
            return False  # what a plain step takes is not known, or no longer
        if times.rest or times.lost > _RISKED:
            return False
        if times.since_drafts >= times.wait:
            return True
        if times.assured:
            times.assured -= 1
            return True
        kinds = [kind for kind in self._all if kind != OTHER]
        share = max((self.share(None, kind) for kind in kinds), default=_FIRST_SHARE)
        won = 0.0
        for length in range(1, MOST_DRAFTS + 1):
            won += num_asking * share**length
            ratio = self.ratio(num_answers, num_asking * length)
            if (num_answers + won) / num_answers / ratio > _LEAST_GAIN:
                times.assured = _UNWATCHED
                return True
        return False

    def skip(self, num_answers: int) -> int:
        """Steps behind this one, which gets no guesses, that get none either: all are counted now.

        Nobody need ask before they are over, nor measure what they take.
        """
        times = self._times.get(num_answers)
        if times is None or times.is_due:
            return 0  # this one is to be measured, and may be the last that is
        left = times.rest or times.wait - times.since_drafts
        count = max(0, min(_UNWATCHED, left - 1))
        times.rest = max(0, times.rest - count)
        times.since_drafts += count
        return count

    def takes_other(
        self, key: Hashable, draft: Draft, *, length: int, num_answers: int, further: int
    ) -> bool:
        """Whether what may come in place of so much of a draft is worth verifying too.

        further: tokens of the step beside one for each answer, as it is planned without it.
        """
        share = self.share(key, draft.kind)
        behind = sum(share**place for place in range(length))  # with the first one right
        won = num_answers + share * behind  # at least: of this answer's guesses alone
        more = (1 - share) * self.share(key, OTHER) * behind
        longer = self.ratio(num_answers, further + 1 + length) / self.ratio(num_answers, further)
        return (won + more) / won > longer

    def share(self, key: Hashable, kind: str) -> float:
        """The share of an answer's guesses of a kind that will be right, if those before were."""
        every = self._all.get(kind, _Share())
        first = _FIRST_OTHER if kind == OTHER else _FIRST_SHARE
        prior = (every.right + _PRIOR_WEIGHT * first) / (every.tried + _PRIOR_WEIGHT)
        own = self._own.get(key, {}).get(kind, _Share())
        return (own.right + _PRIOR_WEIGHT * prior) / (own.tried + _PRIOR_WEIGHT)

    def ratio(self, num_answers: int, further: int) -> float:
        """What a step with further tokens takes, in steps of one token for each answer."""
        times = self._times.get(num_answers)
        return (_Times() if times is None else times).ratio(further)

    def learn(self, key: Hashable, kind: str, *, tried: int, right: int) -> None:
        """Take in how an answer's guesses came out: those behind a wrong one tell nothing."""
        counted = min(tried, right + 1)
        self._all.setdefault(kind, _Share()).count(right, counted, kept=_KEPT_OF_ALL)
        own = self._own.setdefault(key, {}).setdefault(kind, _Share())
        own.count(right, counted, kept=_KEPT)

    def learn_time(
        self,
        num_answers: int,
        further: int,
        seconds: float,
        *,
        right: int = 0,
        was_sought: bool = False,
    ) -> None:
        """Take in what a step took that brought each answer a token, and so many guesses.

        right: of the guesses. Where what they won falls behind their time, none are made for a
        while, whatever was expected of them.
        was_sought: whether guesses were looked for, found or not: that takes time as well, and a
            step that may get some cannot be begun ahead.
        """
        times = self._times.setdefault(num_answers, _Times())
        if not further and not was_sought:
            times.rest = max(0, times.rest - 1)
            times.since_drafts += 1
            times.learn_plain(seconds)
            return
        times.since_plain += 1
        times.since_drafts = 0 if further else times.since_drafts + 1
        if not times.plain:
            return
        # Where the machine held the step up, that was no fault of its guesses; and a length that
        # seemed dear when it was first tried might never be tried again.
        before = times.ratio(further)
        times.measured[further] += 1
        weight = max(_NEW_RATIO, 1 / times.measured[further])
        times.ratios[further] = _nearer(before, seconds / times.plain, weight)
        times.forget_known()
        # Weighed by what such steps take: of one step the noise is larger than what it wins.
        took = times.ratio(further)
        self._weigh(times, min(1.0, 1 + right / num_answers - took))  # luck is soon forgotten
        if further:
            times.wait = _pause(took - 1 - right / num_answers)

    def _weigh(self, times: _Times, won: float) -> None:
        """Take in what a step won."""
        times.won += 0.02 * (won - times.won)
        times.lost = max(-_SAVED, times.lost - won)
        times.least_lost = min(times.least_lost, times.lost)
        if times.lost <= -_SAVED:
            times.rests = 0

    def finish(self, key: Hashable) -> None:
        """Forget an answer; what all of its kind taught stays."""
        self._own.pop(key, None)


def _pause(lost: float) -> int:
    """Steps until what lost so many plain steps is tried again."""
    return max(_PROBE, min(_LONGEST, round(lost / _SPENT)))


def _nearer(before: float, now: float, weight: float) -> float:
    """The mean of what was measured lately; a step that the machine held up counts for little."""
    return before + weight * (min(now, 1.5 * before) - before)
