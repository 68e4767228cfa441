"""Grammar: how many tokens the asked form allowed at each step, and what it cut away at one."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import zip_longest

import numpy as np
import torch
from torch import Tensor

from cutaway.core.errors import GrammarError
from cutaway.host.turns import breathe
from cutaway.views.parts.drawing import Drawing, Span, cut, strip
from cutaway.views.parts.payload import Array
from cutaway.views.parts.query import Query
from cutaway.views.parts.replay_values import ReplayValues, Wanted
from cutaway.views.parts.subject import Subject, visible
from cutaway.views.parts.view import View

MAX_TEXT = 400
_DRAWN, _STRIP = 24, 90

Bits = np.ndarray[tuple[int, ...], np.dtype[np.bool_]]


@dataclass(frozen=True)
class MaskedToken:
    """A token by the raw row, and by the row without what is forbidden."""

    token_id: int
    text: str
    probability: float
    allowed_probability: float
    is_allowed: bool


@dataclass(frozen=True)
class Masked:
    """One row under its mask. token: of the answer.

    allowed_mass: probability of all that was allowed, before anything was masked.
    likeliest: of all tokens.   allowed: the likeliest of those that were allowed.
    """

    token: int
    allowed_mass: float
    likeliest: tuple[MaskedToken, ...]
    allowed: tuple[MaskedToken, ...]


@dataclass(frozen=True)
class GrammarSteps:
    """The mask of each step; min_tokens may forbid ends beside it.

    kind, grammar: what was asked for; None without a grammar, and then nothing else is here.
    num_allowed:   tokens that the grammar allowed.   probability: of the token that came, in the
    raw row.   texts: of the tokens.   fault: why the masks end early, if they do.

    Shapes: num_allowed, probability [tokens of the answer].
    """

    kind: str | None
    grammar: str
    num_allowed: Array
    probability: Array
    texts: tuple[str, ...]
    vocab_size: int
    row: Masked | None
    fault: str | None

    def draw(self) -> Drawing:
        """The picture: how many tokens each step allowed, and one row under its mask."""
        drawing = Drawing()
        if self.kind is None:
            drawing.line("this answer had no grammar: every token was allowed at every step")
            return drawing
        drawing.line(f"{self.kind}  ", Span(cut(visible(self.grammar.encode()), 80), "dim"))
        forced = int((self.num_allowed == 1).sum())
        drawing.line(
            f"{len(self.num_allowed)} steps of {self.vocab_size} tokens; in {forced} of them one "
            "token alone was allowed"
        )
        # Powers of two: one allowed token and a whole vocabulary are both to be seen.
        levels = np.log2(1.0 + self.num_allowed[:_STRIP].astype(np.float64))
        drawing.line(Span("allowed ", "dim"), strip(levels.tolist()))
        self._draw_steps(drawing)
        if self.fault is not None:
            drawing.line(Span(cut(self.fault, 98), "bad"))
        if self.row is not None:
            _draw_row(self.row, drawing)
        return drawing

    def _draw_steps(self, drawing: Drawing) -> None:
        count = len(self.num_allowed)
        centre = 0 if self.row is None else self.row.token
        start = max(0, min(centre - _DRAWN // 2, count - _DRAWN))
        shown = range(start, min(count, start + _DRAWN))
        rows = [
            (
                str(index),
                cut(self.texts[index], 24),
                str(int(self.num_allowed[index])),
                f"{float(self.probability[index]):.4f}",
            )
            for index in shown
        ]
        drawing.table(("", "token", "allowed", "its probability before"), rows, sides="rlrr")
        if len(rows) < count:
            drawing.line(Span(f"{count - len(rows)} steps are not drawn; name one", "dim"))


def _draw_row(row: Masked, drawing: Drawing) -> None:
    drawing.line(
        Span(f"token {row.token}: ", "strong"),
        f"what was allowed had {row.allowed_mass:.2%} of the probability; the rest was cut away",
    )
    rows: list[tuple[Span | str, ...]] = []
    for one, other in zip_longest(row.likeliest, row.allowed):
        left, right = ("", "", ""), ("", "")
        if one is not None:
            verdict = Span("allowed", "good") if one.is_allowed else Span("forbidden", "bad")
            left = (cut(one.text, 20), f"{one.probability:.4f}", verdict)
        if other is not None:
            right = (cut(other.text, 20), f"{other.allowed_probability:.4f}")
        rows.append((*left, *right))
    head = ("likeliest", "before", "", "likeliest allowed", "after")
    drawing.table(head, rows, sides="lrllr")


def wants(subject: Subject, query: Query) -> Wanted:
    """The row of logits of the chosen token, where the answer had a grammar."""
    has_row = subject.answer.request.params.grammar is not None and subject.num_rows > 0
    return Wanted(rows=frozenset({query.token or 0}) if has_row else frozenset())


def probe(subject: Subject, query: Query, taken: ReplayValues) -> GrammarSteps:
    """Run the grammar over the answer again, and count what it allowed at each step."""
    asked, tokens = subject.answer.request.params.grammar, subject.answer.tokens
    token = query.token or 0
    counts, mask, fault = _masks(subject, token)
    tokens, logits = tokens[: len(counts)], taken.rows.get(token)
    row = None
    if logits is not None and mask is not None:
        row = _masked(subject, token, logits, mask, query.top)
    scores = [each.logit - each.logsumexp for each in tokens]
    return GrammarSteps(
        kind=None if asked is None else asked.kind,
        grammar="" if asked is None else asked.text[:MAX_TEXT],
        num_allowed=np.array(counts, np.int64),
        probability=np.exp(np.array(scores, np.float64)).astype(np.float32),
        texts=tuple(subject.text(each.token_id) for each in tokens),
        vocab_size=subject.facts.vocab_size,
        row=row,
        fault=fault,
    )


def _masks(subject: Subject, token: int) -> tuple[list[int], Bits | None, str | None]:
    """How many tokens each step allowed, and which at one of them; why they end early, if so."""
    state, counts, wanted = subject.grammar(), list[int](), None
    for index, each in enumerate(subject.answer.tokens if state is not None else ()):
        assert state is not None, "nothing is looked at without a grammar"
        breathe()
        try:
            packed = np.frombuffer(state.masks([])[0], np.uint8)
        except GrammarError as error:
            return counts, wanted, str(error)
        bits = np.unpackbits(packed, count=subject.facts.vocab_size, bitorder="little")
        counts.append(int(bits.sum()))
        if index == token:
            wanted = bits.astype(np.bool_)
        state.completes(each.token_id)
    return counts, wanted, None


def _masked(subject: Subject, token: int, logits: Tensor, mask: Bits, top: int) -> Masked:
    allowed = torch.from_numpy(mask).to(logits.device)
    before = logits.double().softmax(0)
    mass = float(before[allowed].sum())
    after = logits.double().masked_fill(~allowed, float("-inf")).softmax(0)

    def choices(ordered: Tensor) -> tuple[MaskedToken, ...]:
        return tuple(
            MaskedToken(
                each,
                subject.text(each),
                float(before[each]),
                float(after[each]),
                bool(mask[each]),
            )
            for each in map(int, ordered)
        )

    likeliest = choices(before.topk(min(top, len(before))).indices)
    best = choices(after.topk(min(top, int(mask.sum()))).indices)
    return Masked(token, mass, likeliest, best)


VIEW = View(
    "grammar",
    "sampling",
    "Which tokens did the asked form allow?",
    probe,
    takes=("token", "top"),
    wants=wants,
)
