"""Drift: how far context moves a word's vector from the row it began as, layer by layer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from cutaway.views.parts.drawing import Drawing, Span, bar, cut
from cutaway.views.parts.payload import Array
from cutaway.views.parts.query import Query
from cutaway.views.parts.replay_values import ReplayValues, Wanted
from cutaway.views.parts.subject import Subject
from cutaway.views.parts.token_words import num_letters
from cutaway.views.parts.view import View

MAX_APART = 128  # positions between two occurrences: streams of all between them are taken
_DRAWN, _AROUND, _BAR = 40, 5, 20


@dataclass(frozen=True)
class Drift:
    """One token, and the furthest place of the same token that is near enough to be taken.

    own:     cosine of its stream with its embedding: before the first layer, and after each.
    other:   the other place.   between: cosine of the two streams at each of these points.
    context: the text around the place, and around the other.
    is_far:  whether the same token stands further away than MAX_APART alone.

    Shapes: own, between [L + 1]; between is empty without another place.
    """

    position: int
    text: str
    own: Array
    other: int | None
    between: Array
    context: tuple[str, ...]
    is_far: bool

    def draw(self) -> Drawing:
        """The picture: cosines by layer, with the own row and with the same token elsewhere."""
        drawing = Drawing()
        drawing.line("token ", Span(self.text, "strong"), f" at {self.position}: {self.context[0]}")
        if self.other is not None:
            drawing.line(f"the same token at {self.other}: {self.context[1]}")
        elif self.is_far:
            drawing.line(f"the same token is elsewhere, more than {MAX_APART} positions away")
        else:
            drawing.line("the same token is nowhere else, so there is nothing to compare it with")
        head = ("", "with its own row", "")
        head += ("with the other place", "") if self.other is not None else ()
        drawing.table(head, self._rows(), sides="rrlrl"[: len(head)])
        drawing.line(Span("cosines; 1 is the same direction, 0 nothing in common", "dim"))
        return drawing

    def _rows(self) -> Iterator[tuple[str, ...]]:
        count = len(self.own)
        every = -(-count // _DRAWN)
        for index in sorted({0, *range(count - 1, 0, -every)}):
            name = f"after layer {index - 1}" if index else "the row itself"
            columns = [float(self.own[index])]
            if self.other is not None:
                columns.append(float(self.between[index]))
            cells = [each for value in columns for each in (f"{value:.3f}", bar(value, _BAR))]
            yield name, *cells


def wants(subject: Subject, query: Query) -> Wanted:
    """The stream after every layer at the position, and at the other place of the same token."""
    position, other, _ = _places(subject, query)
    places = (position, position if other is None else other)
    return Wanted(
        taps=frozenset(("embedding.hidden", "blocks.hidden")),
        layers=frozenset(range(subject.facts.num_layers)),
        start=min(places),
        end=max(places) + 1,
    )


def probe(subject: Subject, query: Query, taken: ReplayValues) -> Drift:
    """Cosines of the stream with the token's own row and with the other place, layer by layer."""
    position, other, is_far = _places(subject, query)
    streams = _streams(subject, taken, position)
    between = streams.new_zeros(0)
    if other is not None:
        others = _streams(subject, taken, other)
        between = torch.cosine_similarity(streams, others, dim=-1)
    places = (position,) if other is None else (position, other)
    return Drift(
        position=position,
        text=subject.text(subject.answer.token_ids[position]),
        own=_array(torch.cosine_similarity(streams, streams[:1], dim=-1)),
        other=other,
        between=_array(between),
        context=tuple(_context(subject, place) for place in places),
        is_far=is_far,
    )


def _places(subject: Subject, query: Query) -> tuple[int, int | None, bool]:
    """A token's place, another place of that token, and whether all others are too far."""
    ids = subject.answer.token_ids[: subject.num_positions]
    position = query.position
    if position is None:
        position = _longest_repeated(subject, ids)
    others = [at for at, each in enumerate(ids) if each == ids[position] and at != position]
    near = [at for at in others if abs(at - position) <= MAX_APART]
    # The furthest: a word that comes again at once has much the same context.
    other = max(near, key=lambda at: abs(at - position), default=None)
    return position, other, bool(others) and not near


def _longest_repeated(subject: Subject, ids: tuple[int, ...]) -> int:
    """The last place of the longest word that stands twice, or of the question's longest word."""
    last = {each: at for at, each in enumerate(ids)}
    seen: dict[int, int] = {}
    near: list[int] = []
    for at, each in enumerate(ids):
        if each in seen and at == last[each] and at - seen[each] <= MAX_APART:
            near.append(at)
        seen[each] = at
    control = subject.tokenizer.control_ids
    words = [at for at in near if ids[at] not in control and _size(subject, ids[at])]
    asked = [at for at in subject.asked_positions if at < len(ids)]
    return max(words or asked, key=lambda at: (_size(subject, ids[at]), at))


def _size(subject: Subject, token_id: int) -> int:
    return num_letters(subject.text(token_id))


def _streams(subject: Subject, taken: ReplayValues, position: int) -> Tensor:
    """A position's vector before the first layer and after each. Shapes: [L + 1, D]."""
    place = {"start": position, "end": position + 1}
    layers = range(subject.facts.num_layers)
    after = [taken.value("blocks.hidden", layer, **place) for layer in layers]
    return torch.cat([taken.value("embedding.hidden", **place), *after]).double()


def _context(subject: Subject, place: int) -> str:
    """Words around a place, the token itself in brackets."""
    ids = subject.answer.token_ids

    def words(start: int, end: int) -> str:
        return "".join(map(subject.text, ids[max(0, start) : end]))

    around = words(place - _AROUND, place), words(place + 1, place + 1 + _AROUND)
    return cut(f"...{around[0]}[{subject.text(ids[place])}]{around[1]}...", 66)


def _array(values: Tensor) -> Array:
    return values.float().cpu().numpy()


VIEW = View(
    "drift",
    "blocks",
    "How far does context move a word from where it began?",
    probe,
    takes=("position",),
    wants=wants,
)
