"""Speculation: which tokens were guessed ahead, which of them stood, and what that won."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np

from cutaway.host.turns import breathe
from cutaway.sampling.effects import shares
from cutaway.sampling.uniform import Purpose, uniform
from cutaway.trace.ledger import part_of
from cutaway.trace.records import Part, StepRecord
from cutaway.views.parts.drawing import Drawing, Span, bar, cut
from cutaway.views.parts.payload import Array
from cutaway.views.parts.query import Query
from cutaway.views.parts.replay_values import ReplayValues, Wanted
from cutaway.views.parts.subject import Subject
from cutaway.views.parts.view import View

MOST_STEPS = 48  # that are told one by one, around the chosen token
ACCEPTED, REFUSED, UNUSED = "accepted", "refused", "unused"
_STYLES = {ACCEPTED: "good", REFUSED: "bad", UNUSED: "dim"}


@dataclass(frozen=True)
class Guess:
    """One guessed token.

    verdict: accepted: the draw gave it too, or u was below p / q; refused: another came; unused: it
             stood behind a refused one, or behind the answer's end.
    came:    what the draw gave in its place; empty where there was none.
    probability: of the guess in the model's own row; chance: of drawing it under the request's
             settings, and so of its acceptance. Of the chosen step alone, else None.
    u:       the random number of the draw, of 2^32; None where the likeliest is taken.
    q:       what the drafter itself gave the guess; None where it has no distribution.
    residual: of a refused guess, the share of what came in its place in all that was left: of p
             above q where a drafter had drawn it, else of p without the guess, in the chosen step.
    """

    token_id: int
    text: str
    verdict: str
    came: str
    probability: float | None = None
    chance: float | None = None
    u: int | None = None
    q: float | None = None
    residual: float | None = None


@dataclass(frozen=True)
class VerifiedStep:
    """One step of the answer. token: the first that it gave; given: how many it gave."""

    number: int
    token: int
    given: int
    guesses: tuple[Guess, ...]
    last: str


@dataclass(frozen=True)
class Speculation:
    """Guesses of one answer; with none, all counts are 0.

    num_steps:  steps that gave tokens.   num_guessing: of these with guesses.
    tried, right [K]: how often a guess stood at each place of a draft and was looked at, and how
                often it was right.
    plain_seconds, guessing_seconds: medians of steps that computed no prompt; None without any.
    expected:   tokens of a step with guesses by the shares that were right at each place, as the
                formula has it (1 + a1 + a1 a2 + ...).   measured: that there were.
    speed_up:   tokens a second of steps with guesses, in those of plain steps; None where one kind
                is missing.
    """

    num_tokens: int
    num_steps: int
    num_guessing: int
    num_guessed: int
    num_accepted: int
    tried: Array
    right: Array
    expected: float
    measured: float
    plain_seconds: float | None
    guessing_seconds: float | None
    speed_up: float | None
    steps: tuple[VerifiedStep, ...]
    row: VerifiedStep | None

    def draw(self) -> Drawing:
        """The picture: each step's guesses with their verdict, and what they won."""
        drawing = Drawing()
        if not self.num_guessed:
            drawing.line("nothing was guessed: every token took a step of its own")
            drawing.line(Span("draft=ngram guesses from what was said before", "dim"))
            return drawing
        drawing.line(
            f"{self.num_tokens} tokens in {self.num_steps} steps: ",
            Span(f"{self.num_accepted} of {self.num_guessed} guesses stood", "strong"),
        )
        self._draw_steps(drawing)
        rows = [
            (str(place + 1), f"{int(right)} of {int(tried)}", bar(float(right / tried), 30))
            for place, (tried, right) in enumerate(zip(self.tried, self.right, strict=True))
            if tried
        ]
        drawing.line()
        drawing.table(("place", "right", ""), rows, sides="rrl")
        drawing.line(
            f"a step with guesses gave {self.measured:.2f} tokens; by the shares above "
            f"{self.expected:.2f}"
        )
        if self.speed_up is not None:
            assert self.plain_seconds and self.guessing_seconds
            drawing.line(
                f"it took {self.guessing_seconds * 1e3:.2f} ms, a plain one "
                f"{self.plain_seconds * 1e3:.2f} ms: {self.speed_up:.2f} times the tokens a second"
            )
        return drawing

    def _draw_steps(self, drawing: Drawing) -> None:
        for step in self.steps:
            if not step.guesses:
                continue
            spans = [Span(f"{step.token:>5} ", "dim")]
            for guess in step.guesses:
                spans.append(Span(f"{cut(guess.text, 16)} ", _STYLES[guess.verdict]))
                if guess.verdict == REFUSED:
                    spans.append(Span(f"→ {cut(guess.came, 16)} ", "strong"))
            drawing.wrap(spans)
        if self.row is None or not self.row.guesses:
            return
        drawing.line()
        drawing.line(f"the step that gave token {self.row.token}")
        rows = [
            (
                cut(each.text, 20),
                _share(each.q),
                _share(each.probability),
                _share(each.chance),
                "-" if each.u is None else f"{each.u / 2**32:.4f}",
                each.verdict,
                cut(each.came, 20),
                _share(each.residual),
            )
            for each in self.row.guesses
        ]
        head = ("guess", "q", "its probability", "its chance", "u", "", "came", "residual")
        drawing.table(head, rows, sides="lrrrrllr")


def wants(subject: Subject, query: Query) -> Wanted:
    """The rows of logits of the chosen token's step, where that step had guesses."""
    if not subject.num_rows:
        return Wanted()
    tokens = _tokens_of(subject, query.token or 0)
    part = _part(subject, subject.answer.tokens[tokens.start].step)
    if part is None or not part.draft_token_ids:
        return Wanted()
    return Wanted(rows=frozenset(tokens))


def probe(subject: Subject, query: Query, taken: ReplayValues) -> Speculation:
    """Walk the answer's steps, and put each guess beside what the draw gave in its place."""
    chosen = query.token or 0
    steps = [_verified(subject, tokens) for tokens in _runs(subject)]
    tried, right = _by_place(steps)
    guessing = [step for step in steps if step.guesses]
    plain_times, guessing_times = _times(subject, steps)
    plain, spent = _median(plain_times), _median(guessing_times)
    measured = statistics.fmean(step.given for step in guessing) if guessing else 1.0
    at = next((i for i, s in enumerate(steps) if s.token <= chosen < s.token + s.given), 0)
    first = max(0, min(at - MOST_STEPS // 2, len(steps) - MOST_STEPS))
    return Speculation(
        num_tokens=len(subject.answer.tokens),
        num_steps=len(steps),
        num_guessing=len(guessing),
        num_guessed=sum(len(step.guesses) for step in steps),
        num_accepted=sum(g.verdict == ACCEPTED for step in steps for g in step.guesses),
        tried=np.array(tried, np.int64),
        right=np.array(right, np.int64),
        expected=_expected(tried, right),
        measured=measured,
        plain_seconds=plain,
        guessing_seconds=spent,
        speed_up=measured * plain / spent if plain and spent else None,
        steps=tuple(steps[first : first + MOST_STEPS]),
        row=_looked_at(subject, steps[at], taken) if steps else None,
    )


def _runs(subject: Subject) -> list[range]:
    """The tokens of each step that gave any."""
    runs: list[range] = []
    start = 0
    for _, tokens in groupby(each.step for each in subject.answer.tokens):
        count = len(list(tokens))
        runs.append(range(start, start + count))
        start += count
    return runs


def _tokens_of(subject: Subject, token: int) -> range:
    return next(tokens for tokens in _runs(subject) if token in tokens)


def _step(subject: Subject, number: int) -> StepRecord | None:
    return subject.ledger.step(number)


def _part(subject: Subject, number: int) -> Part | None:
    """What the answer had in a step; None where the ledger has dropped it."""
    step = _step(subject, number)
    return None if step is None else part_of(step, subject.answer.number)


def _verified(subject: Subject, tokens: range) -> VerifiedStep:
    breathe()
    answer = subject.answer
    number = answer.tokens[tokens.start].step
    part = _part(subject, number)
    guesses: list[Guess] = []
    chances = () if part is None else part.draft_chances
    is_open = True  # whether all before it stood
    for place, draft in enumerate(() if part is None else part.draft_token_ids):
        text, token = subject.text(draft), tokens.start + place
        q = chances[place] if chances else None
        if not is_open or token not in tokens:
            guesses.append(Guess(draft, text, UNUSED, "", q=q))
            continue
        came = answer.tokens[token]
        is_open = came.token_id == draft
        verdict = ACCEPTED if is_open else REFUSED
        told = subject.text(came.token_id)
        guesses.append(
            Guess(draft, text, verdict, told, u=_u(subject, token), q=q, residual=came.residual)
        )
    last = subject.text(answer.tokens[tokens.stop - 1].token_id)
    return VerifiedStep(number, tokens.start, len(tokens), tuple(guesses), last)


def _looked_at(subject: Subject, step: VerifiedStep, taken: ReplayValues) -> VerifiedStep:
    """The step with what its rows say of each guess."""
    guesses: list[Guess] = []
    for place, guess in enumerate(step.guesses):
        logits = taken.rows.get(step.token + place)
        if logits is None or guess.verdict == UNUSED:
            guesses.append(guess)
            continue
        row = shares(logits, subject.row(step.token + place))
        chance = float(row[guess.token_id])
        residual = guess.residual
        if guess.verdict == REFUSED and residual is None:
            came = subject.answer.tokens[step.token + place].token_id
            residual = float(row[came]) / (1 - chance) if chance < 1 else None
        own = float(logits.double().softmax(0)[guess.token_id])
        guesses.append(replace(guess, probability=own, chance=chance, residual=residual))
    return VerifiedStep(step.number, step.token, step.given, tuple(guesses), step.last)


def _u(subject: Subject, token: int) -> int | None:
    """The random number that decided whether a guess stood; of a fixed guess that of the draw."""
    came = subject.answer.tokens[token]
    if came.residual is None:
        return came.u
    row = subject.row(token)
    return uniform(row.seed, choice=row.choice, position=row.position, purpose=Purpose.ACCEPT)


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.2%}"


def _by_place(steps: Sequence[VerifiedStep]) -> tuple[list[int], list[int]]:
    longest = max((len(step.guesses) for step in steps), default=0)
    tried, right = [0] * longest, [0] * longest
    for step in steps:
        for place, guess in enumerate(step.guesses):
            tried[place] += guess.verdict != UNUSED
            right[place] += guess.verdict == ACCEPTED
    return tried, right


def _expected(tried: Sequence[int], right: Sequence[int]) -> float:
    """Leviathan et al. 2023 (arXiv 2211.17192), equation 1, with a share for each place."""
    won, share = 1.0, 1.0
    for looked_at, stood in zip(tried, right, strict=True):
        share *= stood / looked_at if looked_at else 0.0
        won += share
    return won


def _times(subject: Subject, steps: Sequence[VerifiedStep]) -> tuple[list[float], list[float]]:
    """Seconds of plain steps and of those with guesses, without those that computed a prompt."""
    plain, guessing = list[float](), list[float]()
    for each in steps:
        step = _step(subject, each.number)
        part = None if step is None else part_of(step, subject.answer.number)
        if step is None or part is None or part.count != 1 + len(part.draft_token_ids):
            continue
        (guessing if each.guesses else plain).append(step.ended - step.began)
    return plain, guessing


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None


VIEW = View(
    "speculation",
    "sampling",
    "Which tokens were guessed ahead, and which of them stood?",
    probe,
    takes=("token",),
    wants=wants,
)
