"""One attention head: which earlier tokens each token looks at, and how much."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from cutaway.views.parts.drawing import Drawing, Span, bar, columns, cut
from cutaway.views.parts.head_layers import (
    QUERY,
    Met,
    layer_of,
    met,
    position_of,
    reach_of,
    window_of,
)
from cutaway.views.parts.payload import Array
from cutaway.views.parts.query import Query
from cutaway.views.parts.replay_values import ReplayValues, Wanted
from cutaway.views.parts.subject import Subject

SQUARE = 256  # positions of which every weight is told
TILES = 64
MOST_TILED = 2**26  # weights that tiles are pooled from: a second for a head of 128 numbers

_SHADES = ((0.5, "\u2588"), (0.2, "\u2593"), (0.05, "\u2592"), (0.01, "\u2591"))
_SHADE_WORDS = "\u2588 from 0.5, \u2593 0.2, \u2592 0.05, \u2591 0.01, \u00b7 below; blank: masked"
_LABEL, _COLUMNS, _ROWS = 14, 84, 42


@dataclass(frozen=True)
class Head:
    """Weights of one head.

    Letters: Q positions from start on, K keys from start on, M the top ones.
    group:    of heads that share keys and values with it, num_shared in all.
    window:   tokens that it sees, its own included; None: all earlier ones.
    reach:    tokens back of which this layer's output can have heard through those below it.
    tokens:   texts of the positions from start on.
    weights:  [Q, K], rows of queries over keys; 0 where masked.
    before:   [Q], what rows give to keys before start.   sink: [Q], to a learned score.
    position: the chosen query; top_keys, top_weights: [M], its largest, over all keys.
    top_texts: of those keys.   hidden: what it gives to all others.
    tiles:    [64, 64], the largest weight in each tile in units of tile_scale, where the text is
              longer: queries from tile_start on by keys from 0 on. Else None.
    """

    layer: int
    head: int
    num_layers: int
    num_heads: int
    group: int
    num_shared: int
    window: int | None
    reach: int | None
    start: int
    tokens: tuple[str, ...]
    weights: Array
    before: Array
    sink: Array
    position: int
    text: str
    top_keys: Array
    top_texts: tuple[str, ...]
    top_weights: Array
    hidden: float
    tiles: Array | None
    tile_start: int
    tile_scale: float

    def draw(self) -> Drawing:
        """The picture: a square of weights or a map of tiles, and arcs from one position."""
        drawing = Drawing()
        drawing.line(
            f"layer {self.layer} of 0 to {self.num_layers - 1}, head {self.head} of 0 to "
            f"{self.num_heads - 1}",
            Span(self._sharing(), "dim"),
        )
        drawing.line(Span(self._seen(), "dim"))
        if self.tiles is not None:
            self._map(drawing)
        else:
            self._square(drawing)
        self._arcs(drawing)
        return drawing

    def _sharing(self) -> str:
        if self.num_shared == 1:
            return "; keys and values of its own"
        return f"; keys and values of group {self.group}, shared by {self.num_shared} heads"

    def _seen(self) -> str:
        """Which tokens it can see."""
        if self.window is None:
            return "each token sees itself and all before it; later ones are masked, weight 0"
        far = "all" if self.reach is None else f"{self.reach:,} tokens back"
        return (
            f"each token sees {self.window:,} tokens, itself included; through the layers below "
            f"it hears of {far}"
        )

    def _square(self, drawing: Drawing) -> None:
        """Rows of queries over keys; where there are too many, each cell is the largest."""
        count = len(self.tokens)
        high, wide = -(-count // _ROWS), -(-count // _COLUMNS)
        size = 2 if 2 * count <= _COLUMNS else 1  # columns of a cell
        drawing.line(Span(f"rows: who looks; columns: at whom. {_SHADE_WORDS}", "dim"))
        if high * wide > 1:
            drawing.line(Span(f"a cell is the largest of {high} rows by {wide} columns", "dim"))
        drawing.line(Span(" " * _LABEL + _ruler(self.start, count, wide, size), "dim"))
        for row in range(0, count, high):
            some = self.weights[row : row + high]
            cells = "".join(
                _shade(float(some[:, at : at + wide].max()), self._sees(row, high, at, wide)) * size
                for at in range(0, count, wide)
            )
            place = self.start + row
            is_chosen = place <= self.position < place + high
            label = f"{place:>4} {_fit(self.tokens[row], _LABEL - 6)} "
            drawing.line(Span(label, "strong" if is_chosen else "plain"), cells.rstrip())

    def _map(self, drawing: Drawing) -> None:
        assert self.tiles is not None
        end = self.start + len(self.tokens)
        drawing.line(
            Span(
                f"rows: who looks, {self.tile_start:,} to {end - 1:,}; columns: at whom, from 0; "
                "a cell: the largest of its tile",
                "dim",
            )
        )
        drawing.line(Span(_SHADE_WORDS, "dim"))
        high, wide = 2 * (end - self.tile_start) // TILES, end // TILES
        for row in range(0, TILES, 2):
            place = self.tile_start + row * (end - self.tile_start) // TILES
            cells = (
                _shade(
                    float(each) * self.tile_scale,
                    self._sees(place, high, column * end // TILES, wide),
                )
                for column, each in enumerate(self.tiles[row : row + 2].max(axis=0))
            )
            drawing.line(f"{place:>9,}  ", "".join(cells).rstrip())

    def _sees(self, row: int, high: int, column: int, wide: int) -> bool:
        """Whether one of some queries sees one of some keys."""
        is_near = self.window is None or column + wide - 1 > row - self.window
        return column <= row + high - 1 and is_near

    def _arcs(self, drawing: Drawing) -> None:
        """What the chosen token looks at, the largest first."""
        drawing.line(Span(self.text, "strong"), f" at {self.position} looks at")
        rows = [
            (
                str(key),
                cut(text, 20),
                _distance(self.position - key),
                f"{weight:.3f}",
                bar(float(weight), 40),
            )
            for key, text, weight in zip(
                self.top_keys.tolist(), self.top_texts, self.top_weights, strict=True
            )
        ]
        drawing.table(("at", "token", "", "weight", ""), rows, sides="rllrl")
        others = self.position + 1 - len(rows)
        if others:
            words = f"{others:,} other tokens: {self.hidden:.3f} together, not shown"
            drawing.line(Span(words, "dim"))
        sink = float(self.sink[self.position - self.start])
        if sink > 0:
            drawing.line(Span(f"the head's sink, which has no value: {sink:.3f}", "dim"))


def wants(subject: Subject, query: Query) -> Wanted:
    """The layer's queries of the positions that are drawn, and what it stored up to the last."""
    start, end = _window(subject, query)
    layers = frozenset({layer_of(subject, query)})
    return Wanted(
        taps=frozenset({QUERY}),
        layers=layers,
        start=min(start, _tile_start(end)),
        end=end,
        stored=layers,
    )


def probe(subject: Subject, query: Query, taken: ReplayValues) -> Head:
    """One head's attention weights over the positions that are drawn."""
    layer, head, position = layer_of(subject, query), query.head, position_of(subject, query)
    assert head is not None, "one head was asked for"
    start, end = _window(subject, query)
    first = _tile_start(end)
    seen = met(subject, taken, layer, start=min(start, first), end=end, keys=end)
    texts = subject.texts()
    whole, sink = _rows(seen, start, end, head)
    weights, row = whole[:, start:], whole[position - start]
    top = row[: position + 1].topk(min(query.top, position + 1))
    tiles, scale = (None, 0.0) if end <= SQUARE else _tiles(seen, first, end, head)
    shared = seen.attention.num_heads // seen.keys.shape[1]
    return Head(
        layer=layer,
        head=head,
        num_layers=subject.facts.num_layers,
        num_heads=seen.attention.num_heads,
        group=head // shared,
        num_shared=shared,
        window=window_of(seen.attention.scoring.extent),
        reach=reach_of(subject, layer),
        start=start,
        tokens=tuple(texts[start:end]),
        weights=weights.float().cpu().numpy(),
        before=whole[:, :start].sum(dim=-1).float().cpu().numpy(),
        sink=sink.float().cpu().numpy(),
        position=position,
        text=texts[position],
        top_keys=top.indices.cpu().numpy(),
        top_texts=tuple(texts[int(key)] for key in top.indices),
        top_weights=top.values.float().cpu().numpy(),
        hidden=max(0.0, float(row.double().sum() - top.values.double().sum())),
        tiles=tiles,
        tile_start=first,
        tile_scale=scale,
    )


def _window(subject: Subject, query: Query) -> tuple[int, int]:
    """Positions of which every weight is told: the chosen one is the last of them."""
    end = position_of(subject, query) + 1  # later rows are another question, at another price
    return max(0, end - SQUARE), end


def _tile_start(end: int) -> int:
    """First query of the tiles: as many as can be afforded, up to the end."""
    return 0 if end <= SQUARE else max(0, end - max(SQUARE, MOST_TILED // end))


def _rows(seen: Met, start: int, end: int, head: int) -> tuple[Tensor, Tensor]:
    """Shapes: weights over all keys [Q, K], what goes to a sink [Q]."""
    parts = [seen.open_rows(*span, head=head) for span in seen.spans(start, end, num_heads=1)]
    weights = torch.cat([part.weights[:, 0] for part in parts])
    return weights, torch.cat([part.sink[:, 0] for part in parts])


def _tiles(seen: Met, start: int, end: int, head: int) -> tuple[Array, float]:
    """The largest weight of each tile as bytes, and what one is worth."""
    device = seen.query.device
    column = torch.arange(end, device=device) * TILES // end  # of each key
    tiles = torch.zeros(TILES, TILES, device=device)
    for first, last in seen.spans(start, end, num_heads=1):
        weights = seen.open_rows(first, last, head=head).weights[:, 0].float()
        row = (torch.arange(first, last, device=device) - start) * TILES // (end - start)
        places = row[:, None] * TILES + column[None, :]
        tiles.view(-1).scatter_reduce_(0, places.flatten(), weights.flatten(), "amax")
    scale = max(float(tiles.max()), 1e-30) / 255
    return (tiles / scale).round().to(torch.uint8).cpu().numpy(), scale


def _shade(weight: float, is_visible: bool) -> str:
    for least, shade in _SHADES:
        if weight >= least:
            return shade
    return "\u00b7" if is_visible else " "


def _ruler(start: int, count: int, wide: int, size: int) -> str:
    """Every tenth cell's position, from its place on."""
    text = ""
    for cell in range(0, -(-count // wide), 10):
        text = text.ljust(cell * size) + str(start + cell * wide)
    return text


def _fit(text: str, width: int) -> str:
    text = cut(text, width)
    return text + " " * (width - columns(text))


def _distance(count: int) -> str:
    return "itself" if count == 0 else f"{count:,} back"
