"""Experts: which of a layer's feed-forward networks each token went to, and the load of each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import numpy as np
import torch

from cutaway.blocks.block import Block
from cutaway.blocks.moe import MixtureOfExperts
from cutaway.core.errors import RequestError
from cutaway.views.parts.drawing import Drawing, Span, cut, strip
from cutaway.views.parts.payload import Array
from cutaway.views.parts.query import Query
from cutaway.views.parts.replay_values import ReplayValues, Wanted
from cutaway.views.parts.subject import Subject
from cutaway.views.parts.view import View

IDS, WEIGHTS = "blocks.experts.ids", "blocks.experts.weights"
WINDOW = 128  # positions whose experts are told one by one
MOST_COUNTED = 8192  # positions that loads are counted over
_WIDTH = 64  # experts side by side


@dataclass(frozen=True)
class ExpertRoutes:
    """Letters: M layers with experts, T positions from start on, E experts, K for each token.

    ids, weights: [T, M, K], the best first.   load: [M, E], tokens of positions counted_from on
    that went to each expert.   has_shared: whether a further network sees every token.
    """

    layers: tuple[int, ...]
    num_layers: int
    num_experts: int
    num_chosen: int
    has_shared: bool
    position: int
    start: int
    tokens: tuple[str, ...]
    ids: Array
    weights: Array
    load: Array
    counted_from: int
    num_counted: int

    def draw(self) -> Drawing:
        """The picture: for one layer the experts of each token, else the load by layer."""
        drawing = Drawing()
        if not self.layers:
            drawing.line(
                f"no layer of {self.num_layers} has experts: each token passes every parameter"
            )
            return drawing
        shared = ", and one that all pass" if self.has_shared else ""
        drawing.line(
            f"{len(self.layers)} of {self.num_layers} layers have {self.num_experts} experts each; "
            f"a token passes {self.num_chosen} of them{shared}"
        )
        if len(self.layers) == 1:
            self._tokens(drawing)
        self._loads(drawing)
        if len(self.layers) > 1:
            self._token(drawing)
        return drawing

    def _loads(self, drawing: Drawing) -> None:
        """How often each expert was chosen; even would be alike."""
        even = self.num_chosen * self.num_counted / self.num_experts
        drawing.line(
            Span(
                f"load over {self.num_counted:,} positions, one column per expert; even would be "
                f"{even:.1f} each",
                "dim",
            )
        )
        every = -(-self.num_experts // _WIDTH)
        most = float(self.load.max())
        for layer, loads in zip(self.layers, self.load, strict=True):
            pooled = [float(loads[at : at + every].max()) for at in range(0, len(loads), every)]
            busiest = int(loads.argmax())
            note = f"   most: expert {busiest}, {int(loads[busiest])}; unused: {(loads == 0).sum()}"
            drawing.line(f"{layer:>5}  {strip(pooled, highest=most)}", Span(note, "dim"))
        if every > 1:
            drawing.line(Span(f"a column is the busiest of {every} experts", "dim"))

    def _token(self, drawing: Drawing) -> None:
        """The chosen position, layer by layer."""
        row = self.position - self.start
        drawing.line(Span(self.tokens[row], "strong"), f" at {self.position} went to")
        drawing.wrap(
            (Span(f"{layer}: {self._chosen(row, m)}   ") for m, layer in enumerate(self.layers)),
            indent=2,
        )

    def _tokens(self, drawing: Drawing) -> None:
        """One layer, the last positions up to the chosen one."""
        last = self.position - self.start
        for row in range(max(0, last - 23), last + 1):
            label = f"{self.start + row:>5} {cut(self.tokens[row], 16):<17}"
            drawing.line(label, cut(self._chosen(row, 0), 76))

    def _chosen(self, row: int, at: int) -> str:
        pairs = zip(self.ids[row, at].tolist(), self.weights[row, at].tolist(), strict=True)
        return " ".join(f"{expert} ({weight:.2f})" for expert, weight in pairs)


def wants(subject: Subject, query: Query) -> Wanted:
    """Which experts the router chose, and their weights, at the last positions."""
    layers = _layers(subject, query)
    if not layers:
        return Wanted()
    end = _position_of(subject, query) + 1
    return Wanted(
        taps=frozenset({IDS, WEIGHTS}),
        layers=frozenset(layers),
        start=max(0, end - MOST_COUNTED),
        end=end,
    )


def probe(subject: Subject, query: Query, taken: ReplayValues) -> ExpertRoutes:
    """The routes of the last positions, and how often each expert was chosen."""
    layers, position = _layers(subject, query), _position_of(subject, query)
    end = position + 1
    counted, start = max(0, end - MOST_COUNTED), max(0, end - WINDOW)
    if not layers:
        none = np.zeros((0, 0, 0), np.float32)
        empty = np.zeros((0, 0), np.int64)
        return ExpertRoutes(
            (), subject.facts.num_layers, 0, 0, False, position, end, (), none, none, empty, end, 0
        )
    first = cast(MixtureOfExperts, cast(Block, subject.transformer.blocks[layers[0]]).mlp)
    num_experts = first.experts.num_experts
    ids = torch.stack([taken.value(IDS, i, start=counted, end=end) for i in layers], dim=1)
    weights = torch.stack([taken.value(WEIGHTS, i, start=start, end=end) for i in layers], dim=1)
    load = torch.stack(
        [ids[:, m].flatten().bincount(minlength=num_experts) for m in range(len(layers))]
    )
    return ExpertRoutes(
        layers=layers,
        num_layers=subject.facts.num_layers,
        num_experts=num_experts,
        num_chosen=ids.shape[2],
        has_shared=first.shared is not None,
        position=position,
        start=start,
        tokens=tuple(subject.texts()[start:end]),
        ids=ids[start - counted :].long().cpu().numpy(),
        weights=weights.float().cpu().numpy(),
        load=load.long().cpu().numpy(),
        counted_from=counted,
        num_counted=end - counted,
    )


def _layers(subject: Subject, query: Query) -> tuple[int, ...]:
    """Layers with experts, or the one asked for. Raises: RequestError where that has none."""
    blocks = enumerate(subject.transformer.blocks)
    found = tuple(i for i, b in blocks if isinstance(cast(Block, b).mlp, MixtureOfExperts))
    if query.layer is None or not found:
        return found
    if query.layer not in found:
        known = ", ".join(map(str, found))
        raise RequestError(
            f"layer {query.layer} has no experts; layers with experts are {known}.", param="layer"
        )
    return (query.layer,)


def _position_of(subject: Subject, query: Query) -> int:
    return subject.num_positions - 1 if query.position is None else query.position


VIEW = View(
    "experts",
    "blocks",
    "Which experts does each token go to?",
    probe,
    takes=("position", "layer"),
    wants=wants,
)
