"""Residual ledger: what each layer's attention and feed-forward add to a token's vector."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from cutaway.views.parts.drawing import WIDTH, Drawing, Span, bar
from cutaway.views.parts.payload import Array
from cutaway.views.parts.query import Query
from cutaway.views.parts.replay_values import ReplayValues, Wanted
from cutaway.views.parts.subject import Subject
from cutaway.views.parts.view import View

ATTENTION, MLP = "blocks.attention.update", "blocks.mlp.update"


@dataclass(frozen=True)
class Residual:
    """Norms of one position's stream and of what was added to it, layer by layer.

    Shapes: each [L].   embedding: the norm before the first layer.
    cosine: between the stream after a layer and before it.
    """

    position: int
    text: str
    embedding: float
    stream: Array
    attention: Array
    mlp: Array
    cosine: Array

    def draw(self) -> Drawing:
        """The picture: bars by layer of what attention and feed-forward add, and of the stream."""
        drawing = Drawing()
        drawing.line(
            "token ",
            Span(self.text, "strong"),
            f" at {self.position}: embedding has norm ",
            f"{self.embedding:.2f}",
        )
        top = max(float(self.stream.max()), self.embedding)
        width = WIDTH - 62
        rows = [
            (
                str(layer),
                f"{attention:.2f}",
                f"{mlp:.2f}",
                f"{stream:.2f}",
                f"{cosine:.3f}",
                bar(stream / top, width),
            )
            for layer, (attention, mlp, stream, cosine) in enumerate(
                zip(self.attention, self.mlp, self.stream, self.cosine, strict=True)
            )
        ]
        header = ("layer", "attention adds", "feed-forward adds", "stream", "cosine", "")
        drawing.table(header, rows, sides="rrrrrl")
        return drawing


def wants(subject: Subject, query: Query) -> Wanted:
    """The stream and both updates of every layer, at the position."""
    position = position_of(subject, query)
    return Wanted(
        taps=frozenset(("embedding.hidden", "blocks.hidden", ATTENTION, MLP)),
        layers=frozenset(range(subject.facts.num_layers)),
        start=position,
        end=position + 1,
    )


def position_of(subject: Subject, query: Query) -> int:
    """The query's position, or the last one where it names none."""
    return subject.num_positions - 1 if query.position is None else query.position


def probe(subject: Subject, query: Query, taken: ReplayValues) -> Residual:
    """Norms of the stream and of both updates, and how far each layer turns the stream."""
    position = position_of(subject, query)

    def row(name: str, layer: int | None = None) -> Tensor:
        return taken.value(name, layer, start=position, end=position + 1)[0].double()

    layers = range(subject.facts.num_layers)
    streams = [row("embedding.hidden"), *(row("blocks.hidden", layer) for layer in layers)]
    cosines = [torch.cosine_similarity(after, before, dim=0) for before, after in pairwise(streams)]

    def norms(values: list[Tensor]) -> Array:
        return (
            torch.stack([torch.linalg.vector_norm(value) for value in values]).float().cpu().numpy()
        )

    return Residual(
        position=position,
        text=subject.text(subject.answer.token_ids[position]),
        embedding=float(norms(streams[:1])[0]),
        stream=norms(streams[1:]),
        attention=norms([row(ATTENTION, layer) for layer in layers]),
        mlp=norms([row(MLP, layer) for layer in layers]),
        cosine=torch.stack(cosines).float().cpu().numpy(),
    )


VIEW = View(
    "residual",
    "blocks",
    "What does each layer add to the stream?",
    probe,
    takes=("position",),
    wants=wants,
)
