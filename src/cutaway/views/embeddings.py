"""Embeddings: the row that a token's id reads, what lies near it, and whether meaning adds up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from cutaway.host.turns import breathe
from cutaway.views.parts.drawing import Drawing, Span, cut
from cutaway.views.parts.payload import Array
from cutaway.views.parts.plane import draw_points, principal
from cutaway.views.parts.query import Query
from cutaway.views.parts.replay_values import ReplayValues
from cutaway.views.parts.subject import Subject
from cutaway.views.parts.token_words import Equation, equation_of, ids_of_word, num_letters
from cutaway.views.parts.view import View

NUM_FIRST = 6
NUM_BINS = 96
MAX_WINDOW = 64  # tokens of the cosine matrix
_MATRIX = 11
_KNOWN = "king - man + woman = queen"  # Mikolov et al. 2013, arXiv 1301.3781


@dataclass(frozen=True)
class Neighbour:
    """A row of the table. rank: from 1, by cosine among all rows."""

    token_id: int
    text: str
    cosine: float
    rank: int


@dataclass(frozen=True)
class EmbeddingWindow:
    """Tokens of the prompt beside one another.

    cosines: of each with each.   points: on the two axes along which they and the neighbours
    differ most.   explained: share of all differences along each axis.

    Shapes: cosines [n, n]; points [n + neighbours, 2].
    """

    start: int
    texts: tuple[str, ...]
    cosines: Array
    points: Array
    explained: tuple[float, float]


@dataclass(frozen=True)
class Analogy:
    """Words added and taken away, and what lies near the sum.

    terms: +1 or -1, word, and the ids that spell it; several ids count as their mean.
    expected: what should be nearest, if one is named; rank_without counts no word of the terms.
    """

    terms: tuple[tuple[int, str, tuple[int, ...]], ...]
    nearest: tuple[Neighbour, ...]
    expected: Neighbour | None
    rank_without: int | None


@dataclass(frozen=True)
class Embeddings:
    """One row of the table and its surroundings.

    position: of the token, if it is of the prompt or answer; token_ids: one, or those that spell
    a word, whose rows' mean is shown.   first: the first values.   strip: lowest, mean and highest
    value of each bin of the row.   multiplier: what the model multiplies rows by.
    mean_cosine: of this row with all rows.

    Shapes: first [NUM_FIRST]; strip [3, up to NUM_BINS].
    """

    text: str
    token_ids: tuple[int, ...]
    position: int | None
    width: int
    vocab_size: int
    first: Array
    lowest: float
    highest: float
    norm: float
    multiplier: float | None
    strip: Array
    neighbours: tuple[Neighbour, ...]
    mean_cosine: float
    window: EmbeddingWindow
    analogy: Analogy

    def draw(self) -> Drawing:
        """The picture: the row's numbers, its nearest neighbours, and an equation of words."""
        drawing = Drawing()
        where = "" if self.position is None else f" at {self.position}"
        ids = " ".join(map(str, self.token_ids))
        drawing.line(
            "token ",
            Span(self.text, "strong"),
            cut(f"{where}: row {ids} of a table of {self.vocab_size} x {self.width}", 70),
        )
        values = ", ".join(f"{value:.5f}" for value in self.first)
        drawing.line(f"values {values}, ... (from {self.lowest:.4f} to {self.highest:.4f})")
        times = "" if self.multiplier is None else f"; the model multiplies it by {self.multiplier}"
        drawing.line(f"norm {self.norm:.4f}{times}; nothing in it changes while a model answers")
        drawing.line(
            Span(f"nearest of all {self.vocab_size} rows by cosine", "strong"),
            f" (with all of them it is {self.mean_cosine:.3f} on average)",
        )
        _draw_neighbours(self.neighbours, drawing)
        _draw_matrix(self.window, drawing)
        across, up = self.window.explained
        drawing.line(
            Span("the same tokens and their neighbours on a plane", "strong"),
            f"; its axes hold {across:.0%} and {up:.0%} of the differences",
        )
        names = (*self.window.texts, *(each.text for each in self.neighbours))
        places = dict(zip(names, self.window.points, strict=True))  # each name once
        draw_points(tuple(places), np.stack(tuple(places.values())), drawing)
        _draw_analogy(self.analogy, self.vocab_size, drawing)
        return drawing


def _draw_neighbours(neighbours: Sequence[Neighbour], drawing: Drawing) -> None:
    spans = (Span(f"{cut(each.text, 24)} {each.cosine:.3f}   ") for each in neighbours)
    drawing.wrap(spans, indent=2)


def _draw_matrix(window: EmbeddingWindow, drawing: Drawing) -> None:
    count = min(len(window.texts), _MATRIX)
    drawing.line(Span("cosines between tokens of the prompt", "strong"))
    texts = [cut(each, 6) for each in window.texts[:count]]
    rows = [
        (cut(window.texts[i], 14), *(f"{window.cosines[i, j]:.2f}" for j in range(count)))
        for i in range(count)
    ]
    drawing.table(("", *texts), rows, sides="l" + "r" * count)
    if count < len(window.texts):
        drawing.line(Span(f"{len(window.texts) - count} tokens more are not drawn", "dim"))


def _draw_analogy(analogy: Analogy, vocab_size: int, drawing: Drawing) -> None:
    words = "".join(f" {'+' if sign > 0 else '-'} {word}" for sign, word, _ in analogy.terms)
    drawing.line(Span(words.removeprefix(" + "), "strong"), ", nearest rows:")
    _draw_neighbours(analogy.nearest, drawing)
    for _, word, ids in analogy.terms:
        if len(ids) > 1:
            drawing.line(Span(f"{word} is {len(ids)} tokens; their mean stands for it", "dim"))
    if analogy.expected is not None:
        expected = analogy.expected
        drawing.line(
            f"{expected.text} has rank {expected.rank} of {vocab_size}, cosine "
            f"{expected.cosine:.3f}; rank {analogy.rank_without} without the words that were added "
            "or taken"
        )


def probe(subject: Subject, query: Query, taken: ReplayValues) -> Embeddings:
    """The token's row of the table, the rows nearest to it, and the query's equation."""
    del taken
    equation = equation_of(query.text or _KNOWN) or equation_of(_KNOWN)
    assert equation is not None, "the known one has terms"
    is_word = query.text is not None and equation_of(query.text) is None
    position = None if is_word else _position(subject, query)
    ids = (
        ids_of_word(subject.tokenizer, query.text or "")
        if position is None
        else (subject.answer.token_ids[position],)
    )
    vector = _mean_row(subject, ids)
    total, spelled = _sum(subject, equation)
    cosines = subject.transformer.embedding.cosines(torch.stack((vector, total)))
    neighbours = _nearest(subject, cosines[0], query.top, without=ids)
    return Embeddings(
        text=subject.text(ids[0]) if len(ids) == 1 else query.text or "",
        token_ids=ids,
        position=position,
        width=len(vector),
        vocab_size=cosines.shape[1],
        first=_array(vector[:NUM_FIRST]),
        lowest=float(vector.min()),
        highest=float(vector.max()),
        norm=float(vector.square().sum().sqrt()),
        multiplier=subject.transformer.embedding.multiplier,
        strip=_strip(vector),
        neighbours=neighbours,
        mean_cosine=float(cosines[0].mean()),
        window=_window(subject, position, [each.token_id for each in neighbours]),
        analogy=_analogy(subject, equation, spelled, cosines[1], query.top),
    )


def flops(subject: Subject, query: Query) -> int:
    """Of two cosines with every row, whose own norms are taken too."""
    del query
    return 6 * subject.facts.width * subject.facts.vocab_size


def walks(subject: Subject, query: Query) -> int:
    """The table, unpacked and measured."""
    del query
    return 2 * subject.facts.width * subject.facts.vocab_size


def _position(subject: Subject, query: Query) -> int:
    """The longest word of the question, unless another place is named."""
    if query.position is not None:
        return query.position
    ids = subject.answer.token_ids
    asked = subject.asked_positions[-MAX_WINDOW:]
    return max(asked, key=lambda at: num_letters(subject.text(ids[at])))


def _mean_row(subject: Subject, ids: Sequence[int]) -> Tensor:
    """Shapes: [D]."""
    return _rows(subject, ids).mean(dim=0)


def _rows(subject: Subject, ids: Sequence[int]) -> Tensor:
    subject.transformer.check_whole()
    wanted = torch.tensor(list(ids), dtype=torch.int64, device=subject.build.device)
    return subject.transformer.embedding.table.rows(wanted).detach().float()


def _sum(subject: Subject, equation: Equation) -> tuple[Tensor, list[tuple[int, ...]]]:
    """Directions of the words added up, and the ids of each word. Shapes: [D]."""
    spelled = [ids_of_word(subject.tokenizer, word) for _, word in equation.terms]
    signs = (sign for sign, _ in equation.terms)
    rows = (_mean_row(subject, ids) for ids in spelled)
    parts = [sign * functional.normalize(row, dim=0) for sign, row in zip(signs, rows, strict=True)]
    return torch.stack(parts).sum(dim=0), spelled


def _nearest(
    subject: Subject, cosines: Tensor, top: int, *, without: Sequence[int] = ()
) -> tuple[Neighbour, ...]:
    """The likeliest neighbours; what they are neighbours of is left out."""
    count = min(len(cosines), top + len(without))
    best, known = cosines.topk(count), frozenset(without)
    ids, values = (cast("list[float]", each.tolist()) for each in (best.indices, best.values))
    ranked = enumerate(zip(map(int, ids), values, strict=True), start=1)
    found: list[Neighbour] = []
    for rank, (each, cosine) in ranked:
        breathe()
        if each not in known and len(found) < top:
            found.append(Neighbour(each, subject.text(each), cosine, rank))
    return tuple(found)


def _analogy(
    subject: Subject,
    equation: Equation,
    spelled: Sequence[tuple[int, ...]],
    cosines: Tensor,
    top: int,
) -> Analogy:
    expected, rank_without = None, None
    if equation.expected is not None:
        (wanted, *_) = ids_of_word(subject.tokenizer, equation.expected)
        higher = (cosines > cosines[wanted]).nonzero()[:, 0]
        above = cast("list[int]", higher.tolist())
        given = {each for ids in spelled for each in ids}
        expected = Neighbour(
            wanted, subject.text(wanted), float(cosines[wanted]), rank=len(above) + 1
        )
        rank_without = len(set(above) - given) + 1
    return Analogy(
        terms=tuple(
            (sign, word, ids) for (sign, word), ids in zip(equation.terms, spelled, strict=True)
        ),
        nearest=_nearest(subject, cosines, top),
        expected=expected,
        rank_without=rank_without,
    )


def _window(subject: Subject, position: int | None, neighbours: Sequence[int]) -> EmbeddingWindow:
    asked = subject.asked_positions
    centre = asked.start if position is None else position
    if centre not in asked:
        asked = range(len(subject.answer.token_ids))
    start = max(asked.start, min(centre - MAX_WINDOW // 2, asked.stop - MAX_WINDOW))
    places = range(start, min(asked.stop, start + MAX_WINDOW))
    ids = [subject.answer.token_ids[at] for at in places]
    rows = _rows(subject, [*ids, *neighbours]).double()
    directions = functional.normalize(rows[: len(ids)], dim=-1)
    points, explained = principal(rows)
    return EmbeddingWindow(
        start=start,
        texts=tuple(map(subject.text, ids)),
        cosines=_array(directions @ directions.T),
        points=_array(points),
        explained=explained,
    )


def _strip(vector: Tensor) -> Array:
    """Lowest, mean and highest of each bin. Shapes: [D] -> [3, bins]."""
    bins = vector.tensor_split(min(NUM_BINS, len(vector)))
    return _array(torch.stack([torch.stack((b.min(), b.mean(), b.max())) for b in bins], dim=1))


def _array(values: Tensor) -> Array:
    return values.float().cpu().numpy()


VIEW = View(
    "embeddings",
    "embedding",
    "Which vector does a token become, and what lies near it?",
    probe,
    takes=("position", "text", "top"),
    flops=flops,
    walks=walks,
)
