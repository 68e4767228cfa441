"""Logits: the whole row that a token was drawn from, with all that decided the draw besides it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import cast

import numpy as np
from torch import Tensor

from cutaway.core.limits import DRAW_SETTINGS
from cutaway.sampling.candidates import SamplerRow
from cutaway.sampling.largest import largest
from cutaway.sampling.sampler import uniforms
from cutaway.views.parts.drawing import Drawing, Span, bar, cut
from cutaway.views.parts.payload import Array
from cutaway.views.parts.query import Query
from cutaway.views.parts.replay_values import ReplayValues, Wanted
from cutaway.views.parts.subject import Subject
from cutaway.views.parts.view import View

_BINS = 16


@dataclass(frozen=True)
class LogitRow:
    """One row of logits, and what the sampler needs to draw from it again.

    seed:     as text: it has 64 bits, and a number of JavaScript holds 53.
    u:        the random number of this draw, of 2^32, whether it was used or not.
    settings: all that docs/randomness.md names, neutral ones too.
    logits:   [V] float32, as the model gave them.
    said_token_ids:   different tokens of prompt and answer before this one.
    output_token_ids, output_counts: those of the answer before this one, and how often.
    bias_token_ids, bias, banned_token_ids: what the request moved or forbade.
    allowed:  [V / 8] uint8, a bit per token from the lowest on; empty where no form was asked for.
    top_token_ids, top_texts: the likeliest, in order, and the recorded token last.
    """

    token: int
    seed: str
    choice: int
    position: int
    u: int
    settings: dict[str, float]
    logits: Array
    said_token_ids: Array
    output_token_ids: Array
    output_counts: Array
    bias_token_ids: Array
    bias: Array
    banned_token_ids: Array
    allowed: Array
    recorded: int
    top_token_ids: Array
    top_texts: tuple[str, ...]

    def draw(self) -> Drawing:
        """The picture: a histogram of logits, and the settings that lead to the draw."""
        drawing = Drawing()
        row = self.logits[np.isfinite(self.logits)].astype(np.float64)
        mass = np.exp(row - row.max())
        counts, edges = np.histogram(row, bins=_BINS)
        shares, _ = np.histogram(row, bins=edges, weights=mass / mass.sum())
        drawing.line(
            f"token {self.token} of the answer: {len(self.logits):,} logits from {row.min():.2f} "
            f"to {row.max():.2f}, {row.mean():.2f} on average"
        )
        rows = [
            (
                f"{edges[index]:.1f} to {edges[index + 1]:.1f}",
                f"{counts[index]:,}",
                bar(float(counts[index]) / max(1, int(counts.max())), 30),
                f"{shares[index]:.2%}",
            )
            for index in reversed(range(_BINS))
        ]
        drawing.table(("logit", "entries", "", "of the mass"), rows, sides="rrlr")
        first = cut(self.top_texts[0], 24)
        drawing.line("the largest: ", Span(first, "strong"), f", u = {self.u / 2**32:.6f}")
        return drawing


def wants(subject: Subject, query: Query) -> Wanted:
    """The row of logits of the chosen token."""
    del subject
    return Wanted(rows=frozenset((query.token or 0,)))


def walks(subject: Subject, query: Query) -> int:
    """The row of logits, sorted and written."""
    del query
    return 8 * subject.facts.vocab_size


def probe(subject: Subject, query: Query, taken: ReplayValues) -> LogitRow:
    """The chosen token's row, with all that the sampler needs to draw from it again."""
    token = query.token or 0
    logits, row = taken.rows[token], subject.row(token)
    recorded = subject.answer.tokens[token].token_id
    top = _likeliest(logits, recorded, top=query.top)
    counts = Counter(row.output_token_ids)
    said = sorted({*row.prompt_token_ids, *row.output_token_ids})
    bias = row.params.logit_bias
    return LogitRow(
        token=token,
        seed=str(row.seed),
        choice=row.choice,
        position=row.position,
        u=uniforms([row])[0],
        settings={name: getattr(row.params, name) for name in DRAW_SETTINGS},
        logits=logits.float().cpu().numpy(),
        said_token_ids=np.array(said, np.int64),
        output_token_ids=np.array(sorted(counts), np.int64),
        output_counts=np.array([counts[each] for each in sorted(counts)], np.int64),
        bias_token_ids=np.array(list(bias), np.int64),
        bias=np.array(list(bias.values()), np.float32),
        banned_token_ids=np.array(sorted(row.banned_token_ids), np.int64),
        allowed=_allowed(row),
        recorded=recorded,
        top_token_ids=np.array(top, np.int64),
        top_texts=tuple(subject.text(each) for each in top),
    )


def _likeliest(logits: Tensor, recorded: int, *, top: int) -> list[int]:
    order = largest(logits.float()[None], min(top, len(logits)))[0]
    return list(dict.fromkeys((*cast("list[int]", order.tolist()), recorded)))


def _allowed(row: SamplerRow) -> Array:
    return np.frombuffer(row.allowed or b"", np.uint8)


VIEW = View(
    "logits",
    "logits",
    "What did the model say of every entry of its vocabulary?",
    probe,
    takes=("token", "top"),
    wants=wants,
    walks=walks,
)
