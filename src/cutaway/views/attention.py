"""Attention: what each head looks at; with a layer and a head, the weights themselves."""

from __future__ import annotations

from cutaway.core.errors import RequestError
from cutaway.views.parts import head, head_grid
from cutaway.views.parts.head import Head
from cutaway.views.parts.head_grid import HeadGrid
from cutaway.views.parts.query import Query
from cutaway.views.parts.replay_values import ReplayValues, Wanted
from cutaway.views.parts.subject import Subject
from cutaway.views.parts.view import View


def wants(subject: Subject, query: Query) -> Wanted:
    """Inner values of one head where the query names a head, else those of the grid of heads.

    Raises: RequestError for a head without a layer.
    """
    if query.head is None:
        return head_grid.wants(subject, query)
    if query.layer is None:
        last = subject.facts.num_layers - 1
        raise RequestError(
            f"head is {query.head}, of no layer; give layer, from 0 to {last}, as well.",
            param="layer",
        )
    return head.wants(subject, query)


def flops(subject: Subject, query: Query) -> int:
    """Of the view of all heads; one alone is next to nothing beside them."""
    return head_grid.flops(subject, query) if query.head is None else 0


def walks(subject: Subject, query: Query) -> int:
    """The same of what is no product."""
    return head_grid.walks(subject, query) if query.head is None else 0


def probe(subject: Subject, query: Query, taken: ReplayValues) -> Head | HeadGrid:
    """One head where the query names one, else the grid of heads."""
    kind = head_grid if query.head is None else head
    return kind.probe(subject, query, taken)


VIEW = View(
    "attention",
    "blocks",
    "Which earlier tokens does each head look at?",
    probe,
    takes=("position", "layer", "head", "top"),
    wants=wants,
    flops=flops,
    walks=walks,
)
