"""Probabilities: what could have come in a token's place, how likely, and any word among it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from torch import Tensor

from cutaway.core.errors import RequestError
from cutaway.views.parts.drawing import Drawing, Span, bar, cut
from cutaway.views.parts.query import Query
from cutaway.views.parts.replay_values import ReplayValues, Wanted
from cutaway.views.parts.subject import Subject
from cutaway.views.parts.view import View

LEVELS = (0.01, 1e-3, 1e-4, 1e-5, 1e-6)
MOST_PIECES = 32  # of a word that is looked up; each is a row of the whole vocabulary


@dataclass(frozen=True)
class Entry:
    """One token of the vocabulary. rank: from 1, among equals the smaller id first."""

    token_id: int
    text: str
    probability: float
    logprob: float
    rank: int


@dataclass(frozen=True)
class Lookup:
    """Some text in this token's place.

    pieces:      its tokens. The first stands in this row; each other in the row behind those
                 before it, which is computed for this.
    probability: of all of them, one after the other; logprob: its natural logarithm.
    num_tokens:  that went through the model for the other rows.
    """

    text: str
    pieces: tuple[Entry, ...]
    probability: float
    logprob: float
    num_tokens: int


@dataclass(frozen=True)
class Below:
    """How many entries have less than a probability, and what they have together."""

    probability: float
    num_entries: int
    mass: float


@dataclass(frozen=True)
class Probabilities:
    """The softmax of one row of logits, before any setting of the sampler.

    token:    of the answer; chosen: what was taken.
    top, tail_mass: the likeliest entries, and what all others have together.
    entropy:  in bits; 2 to that power is as many equally likely tokens.
    """

    token: int
    before: str
    vocab_size: int
    chosen: Entry
    top: tuple[Entry, ...]
    tail_mass: float
    entropy: float
    below: tuple[Below, ...]
    lookups: tuple[Lookup, ...]

    def draw(self) -> Drawing:
        """The picture: bars of the likeliest tokens, and how long the tail is."""
        drawing = Drawing()
        drawing.line(
            f"token {self.token} of the answer, after ",
            Span(self.before, "strong"),
            f": one of {self.vocab_size:,} entries",
        )
        shown = list(self.top)
        if self.chosen not in shown:
            shown.append(self.chosen)
        widest = max(each.probability for each in shown)
        rows = [
            (
                f"#{each.rank:,}",
                Span(cut(each.text, 24), "strong" if each == self.chosen else "plain"),
                _percent(each.probability),
                bar(each.probability / widest, 40),
                Span("taken", "good") if each == self.chosen else "",
            )
            for each in shown
        ]
        drawing.table(("rank", "token", "share", "", ""), rows, sides="rlrll")
        others = self.vocab_size - len(self.top)
        drawing.line(
            f"the other {others:,} have {_percent(self.tail_mass)} together; entropy "
            f"{self.entropy:.2f} bits, as of {2**self.entropy:,.1f} equally likely tokens"
        )
        counts = ", ".join(
            f"{each.num_entries:,} have less than {each.probability * 100:g}%"
            for each in self.below
        )
        drawing.wrap([Span(word + " ") for word in f"of all, {counts}".split()])
        for each in self.lookups:
            self._looked_up(drawing, each)
        if not self.lookups:
            drawing.line(Span("any other word: --text WORD; another token: --token N", "dim"))
        return drawing

    def _looked_up(self, drawing: Drawing, found: Lookup) -> None:
        first, *others = found.pieces
        drawing.line()
        drawing.line(
            "the text ",
            Span(cut(found.text, 40), "strong"),
            f": {_percent(first.probability)}, rank #{first.rank:,}"
            if not others
            else f": {len(found.pieces)} pieces, {_percent(found.probability)} one after the other",
        )
        if not others:
            return
        rows = [
            (
                cut(each.text, 24),
                _percent(each.probability),
                f"#{each.rank:,}",
                "of this row" if index == 0 else "of the row behind the pieces before it",
            )
            for index, each in enumerate(found.pieces)
        ]
        drawing.table(("piece", "share", "rank", ""), rows, sides="lrrl")
        drawing.line(Span(f"{found.num_tokens} tokens went through the model for that", "dim"))


def _percent(share: float) -> str:
    """Two digits that mean something, however small."""
    if share >= 0.0995:
        return f"{share:.1%}"
    if share == 0:
        return "0%"
    digits = max(2, 1 - math.floor(math.log10(share * 100)))
    return f"{share * 100:.{digits}f}%" if digits <= 7 else f"{share * 100:.1e}%"


def wants(subject: Subject, query: Query) -> Wanted:
    """The row of logits of the chosen token."""
    del subject
    return Wanted(rows=frozenset((query.token or 0,)))


def walks(subject: Subject, query: Query) -> int:
    """The row in float64: shares, sorted, and sums of them."""
    del query
    return 60 * subject.facts.vocab_size


def probe(subject: Subject, query: Query, taken: ReplayValues) -> Probabilities:
    """The distribution that the chosen token was drawn from, before any filter."""
    token = query.token or 0
    row, answer = _Row(subject, taken.rows[token]), subject.answer
    shares = row.shares
    ids = cast("list[int]", row.order[: query.top].tolist())
    top = tuple(row.entry(each) for each in ids)
    below = [
        Below(level, int((is_below := shares < level).sum()), float(shares[is_below].sum()))
        for level in LEVELS
    ]
    return Probabilities(
        token=token,
        before=subject.text(answer.token_ids[subject.row_position(token)]),
        vocab_size=len(shares),
        chosen=row.entry(answer.tokens[token].token_id),
        top=top,
        tail_mass=float(shares[row.order[query.top :]].sum()),
        entropy=float(-(shares * row.logprobs).nan_to_num(nan=0.0).sum()) / math.log(2),
        below=tuple(below),
        lookups=_lookups(subject, token, row, query.text),
    )


class _Row:
    """One row of logits [V], as probabilities in float64."""

    def __init__(self, subject: Subject, logits: Tensor) -> None:
        self._subject = subject
        self.logprobs = logits.double().log_softmax(-1)
        self.shares = self.logprobs.exp()
        self.order = logits.sort(descending=True, stable=True).indices

    def entry(self, token_id: int) -> Entry:
        return Entry(
            token_id=token_id,
            text=self._subject.text(token_id),
            probability=float(self.shares[token_id]),
            logprob=float(self.logprobs[token_id]),
            rank=1 + int((self.order == token_id).nonzero()[0, 0]),
        )


def _lookups(subject: Subject, token: int, row: _Row, text: str | None) -> tuple[Lookup, ...]:
    """The text as given, and behind a blank where it has none: either may begin a word."""
    if not text:
        return ()
    return tuple(_lookup(subject, token, row, form) for form in _forms(text))


def _forms(text: str) -> tuple[str, ...]:
    return (text,) if text[0].isspace() else (text, f" {text}")


def flops(subject: Subject, query: Query) -> int:
    """Of words of several tokens: all before them goes through the model once more."""
    if not query.text:
        return 0
    before = subject.answer.num_prompt_tokens + (query.token or 0)
    sizes = [len(subject.tokenizer.encode(each, is_start=False)) for each in _forms(query.text)]
    tokens = sum(before + size - 1 for size in sizes if size > 1)
    return 2 * subject.facts.num_parameters * tokens


def _lookup(subject: Subject, token: int, row: _Row, text: str) -> Lookup:
    # Text inside a conversation, so no blank is put in front of it.
    ids = subject.tokenizer.encode(text, is_start=False)
    if not 1 <= len(ids) <= MOST_PIECES:
        raise RequestError(
            f"text has {len(ids)} tokens; it must have from 1 to {MOST_PIECES}. Look up a word.",
            param="text",
        )
    pieces, num_tokens = [row.entry(ids[0])], 0
    if len(ids) > 1:
        pieces += _behind(subject, token, ids)
        num_tokens = subject.answer.num_prompt_tokens + token + len(ids) - 1
    logprob = sum(each.logprob for each in pieces)
    return Lookup(
        text=text,
        pieces=tuple(pieces),
        probability=math.exp(logprob),
        logprob=logprob,
        num_tokens=num_tokens,
    )


def _behind(subject: Subject, token: int, ids: Sequence[int]) -> list[Entry]:
    """Every piece but the first, in the row behind those before it."""
    rows = subject.branch(token, ids)[1:]
    return [_Row(subject, logits).entry(each) for logits, each in zip(rows, ids[1:], strict=True)]


VIEW = View(
    "probabilities",
    "logits",
    "What could have come in its place, and how likely?",
    probe,
    takes=("token", "top", "text"),
    wants=wants,
    is_by_step=True,
    flops=flops,
    walks=walks,
)
