"""Logit lens: what each layer's stream would say if the model ended there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from typing import cast

import torch
from torch import Tensor

from cutaway.host.turns import breathe
from cutaway.sampling.largest import largest
from cutaway.views.parts.drawing import WIDTH, Drawing, Span, bar, columns, cut
from cutaway.views.parts.payload import Array
from cutaway.views.parts.query import Query
from cutaway.views.parts.replay_values import ReplayValues, Wanted
from cutaway.views.parts.subject import Subject
from cutaway.views.parts.view import View

EVERY = 4  # layers from one to the next; each layer costs as much as all logits of a step
NUM_POSITIONS = 4  # as many columns stand side by side
NUM_WITH_LAYER = 24  # where one layer is asked for, positions are the rows
MOST_NUMBERS = 2**18  # logits held at once, about 10 ms of work


@dataclass(frozen=True)
class Lens:
    """The likeliest tokens of each chosen layer's stream, through the final norm and unembedding.

    Letters: N layers, M positions, K of the ranking.
    layers:     of which the stream is read, as it leaves them.
    texts:      the token at each position.   choices: what came next there; behind the answer's
                last row and inside the prompt, where nothing was drawn, what the last layer says.
    top_token_ids, top_probabilities: [N, M, K].   top_texts: nested alike.
    ranks:      of the choice, from 1.   choice_probabilities: of it.   Both [N, M].
    similarity: cosine of the stream and the token's embedding, [N, M].
    flops:      of the products with the unembedding.
    """

    layers: tuple[int, ...]
    num_layers: int
    positions: tuple[int, ...]
    texts: tuple[str, ...]
    choices: tuple[int, ...]
    choice_texts: tuple[str, ...]
    is_drawn: tuple[bool, ...]
    top_token_ids: Array
    top_texts: tuple[tuple[tuple[str, ...], ...], ...]
    top_probabilities: Array
    ranks: Array
    choice_probabilities: Array
    similarity: Array
    flops: int

    def draw(self) -> Drawing:
        """The picture: a list for one position or layer, a grid for many, and its price."""
        drawing = Drawing()
        if len(self.positions) == 1 or len(self.layers) == 1:
            self._list(drawing)
        else:
            self._grid(drawing)
        cost = f"{self.flops / 1e9:.2f} GFLOP through the unembedding"
        last = "" if len(self.positions) == 1 else f" to {self.positions[-1]}"
        drawing.line(
            Span(
                f"{len(self.layers)} of {self.num_layers} layers at {self.positions[0]}{last}: "
                f"{cost}; others: --layer, --position",
                "dim",
            )
        )
        return drawing

    def _grid(self, drawing: Drawing) -> None:
        drawing.line("what each layer would say, how sure it is, and how it ranks what came (#)")
        width = 92 // len(self.positions)
        head = [Span("layer   ", "dim")]
        for position, text in zip(self.positions, self.texts, strict=True):
            head.append(Span(_padded(f"{position} {text}", width), "strong"))
        drawing.line(*head)
        for row, layer in enumerate(self.layers):
            drawing.line(
                f"{layer:>5}   ", *(self._cell(row, at, width) for at in range(len(self.positions)))
            )
        came = [_padded(f"\u2192 {text}", width) for text in self.choice_texts]
        drawing.line(Span(" came   ", "dim"), *(Span(each, "good") for each in came))
        if not all(self.is_drawn):
            drawing.line(Span("inside the prompt what came is the last layer's likeliest", "dim"))

    def _cell(self, row: int, at: int, width: int) -> Span:
        rank = int(self.ranks[row, at])
        tail = f" {self.top_probabilities[row, at, 0]:.0%} #{rank}"
        text = cut(self.top_texts[row][at][0], width - 2 - len(tail))
        return Span(_padded(text + tail, width), "good" if rank == 1 else "plain")

    def _list(self, drawing: Drawing) -> None:
        """One position by layers, or one layer by positions."""
        by_layer = len(self.positions) == 1
        if by_layer:
            drawing.line(
                f"after {self.positions[0]} ",
                Span(self.texts[0], "strong"),
                " came ",
                Span(self.choice_texts[0], "good"),
                "" if self.is_drawn[0] else " (the last layer's likeliest; nothing was drawn here)",
            )
        else:
            drawing.line(f"as the stream leaves layer {self.layers[0]}")
        rows: list[tuple[Span | str, ...]] = []
        for row, at in product(range(len(self.layers)), range(len(self.positions))):
            place = (
                str(self.layers[row])
                if by_layer
                else f"{self.positions[at]} {cut(self.texts[at], 12)}"
            )
            rank = int(self.ranks[row, at])
            tops = zip(self.top_texts[row][at][:4], self.top_probabilities[row, at], strict=False)
            rows.append(
                (
                    place,
                    Span(f"#{rank}", "good" if rank == 1 else "plain"),
                    *(() if by_layer else (cut(self.choice_texts[at], 10),)),
                    f"{self.choice_probabilities[row, at]:.1%}",
                    bar(float(self.choice_probabilities[row, at]), 8),
                    f"{self.similarity[row, at]:.2f}",
                    "  ".join(f"{cut(text, 7)} {p:.0%}" for text, p in tops),
                )
            )
        header = ("layer", "rank", "it has", "", "to embedding", "likeliest")
        if not by_layer:
            header = ("position", "rank", "came", "it has", "", "to embedding", "likeliest")
        used = sum(
            2 + max(columns(_words(row[i])) for row in (header, *rows))
            for i in range(len(header) - 1)
        )
        rows = [(*row[:-1], cut(_words(row[-1]), WIDTH - used)) for row in rows]
        drawing.table(header, rows, sides="rrrlrl" if by_layer else "lrlrlrl")


def _words(cell: Span | str) -> str:
    return cell.text if isinstance(cell, Span) else cell


def _padded(text: str, width: int) -> str:
    text = cut(text, width - 1)
    return text + " " * (width - columns(text))


def wants(subject: Subject, query: Query) -> Wanted:
    """The embedding and the stream after each layer, at the positions that are read."""
    positions = positions_of(subject, query)
    return Wanted(
        taps=frozenset(("embedding.hidden", "blocks.hidden")),
        layers=frozenset(layers_of(subject, query)),
        start=positions.start,
        end=positions.stop,
        rows=frozenset(_served(subject, query)),
    )


def _served(subject: Subject, query: Query) -> dict[int, int]:
    """Tokens that were drawn from the last layer's rows that are read, and where among these."""
    first = subject.answer.num_prompt_tokens - 1
    if query.layer not in (None, subject.facts.num_layers - 1):
        return {}
    places = enumerate(positions_of(subject, query))
    return {position - first: at for at, position in places if position >= first}


def positions_of(subject: Subject, query: Query) -> range:
    """The query's position, or the last ones where it names none."""
    if query.position is not None:
        return range(query.position, query.position + 1)
    count = NUM_POSITIONS if query.layer is None else NUM_WITH_LAYER
    return range(max(0, subject.num_positions - count), subject.num_positions)


def layers_of(subject: Subject, query: Query) -> list[int]:
    """The last layer is always there: without it nothing says what the model meant."""
    last = subject.facts.num_layers - 1
    if query.layer is not None:
        return sorted({query.layer, last})
    return sorted({*range(EVERY - 1, last, EVERY), last})


@torch.no_grad()
def probe(subject: Subject, query: Query, taken: ReplayValues) -> Lens:
    """What the unembedding makes of the stream after each layer, as if it were the last."""
    positions, layers = positions_of(subject, query), layers_of(subject, query)

    def rows(name: str, layer: int | None = None) -> Tensor:
        return taken.value(name, layer, start=positions.start, end=positions.stop)

    streams = torch.stack([rows("blocks.hidden", layer) for layer in layers])  # [N, M, D]
    choices, is_drawn = _choices(subject, positions, streams[-1]), _is_drawn(subject, positions)
    if query.layer is not None:
        streams, layers = streams[: layers.index(query.layer) + 1][-1:], [query.layer]
    similarity = torch.cosine_similarity(streams, rows("embedding.hidden")[None], dim=-1)
    wanted = choices.repeat(len(layers))
    # The last layer's row is the one that was served: other products have other last bits.
    before = (len(layers) - 1) * len(positions)
    served = {before + at: taken.rows[token] for token, at in _served(subject, query).items()}
    flat = streams.flatten(0, 1)
    tops, shares, ranks, had = _read(subject, flat, wanted, served=served, top=query.top)
    shape = (len(layers), len(positions))
    ids = cast("list[list[list[int]]]", tops.view(*shape, -1).tolist())
    came = cast("list[int]", choices.tolist())
    facts = subject.facts
    return Lens(
        layers=tuple(layers),
        num_layers=facts.num_layers,
        positions=tuple(positions),
        texts=tuple(subject.text(subject.answer.token_ids[position]) for position in positions),
        choices=tuple(came),
        choice_texts=tuple(subject.text(each) for each in came),
        is_drawn=is_drawn,
        top_token_ids=tops.view(*shape, -1).cpu().numpy(),
        top_texts=tuple(
            tuple(tuple(subject.text(each) for each in cell) for cell in row) for row in ids
        ),
        top_probabilities=shares.view(*shape, -1).cpu().numpy(),
        ranks=ranks.view(shape).cpu().numpy(),
        choice_probabilities=had.view(shape).cpu().numpy(),
        similarity=similarity.float().cpu().numpy(),
        flops=flops(subject, query),
    )


def flops(subject: Subject, query: Query) -> int:
    """Operations of the products with the unembedding.

    Where nothing was drawn the last layer counts once more, for what came there.
    """
    return 2 * subject.facts.width * subject.facts.vocab_size * _num_rows(subject, query)


def walks(subject: Subject, query: Query) -> int:
    """Each row of logits: itself, softmax, and what ranks are counted by."""
    return 4 * subject.facts.vocab_size * _num_rows(subject, query)


def _num_rows(subject: Subject, query: Query) -> int:
    layers = 1 if query.layer is not None else len(layers_of(subject, query))
    positions = positions_of(subject, query)
    return layers * len(positions) + _is_drawn(subject, positions).count(False)


def _is_drawn(subject: Subject, positions: range) -> tuple[bool, ...]:
    """Whether a token of the answer was drawn from each position's row."""
    return tuple(position >= subject.answer.num_prompt_tokens - 1 for position in positions)


def _choices(subject: Subject, positions: range, last: Tensor) -> Tensor:
    """What came after each position: of the answer what was drawn, else the last layer's word."""
    ids = subject.answer.token_ids
    came = torch.tensor([*ids, 0])[positions.start + 1 : positions.stop + 1].to(last.device)
    places = [at for at, drawn in enumerate(_is_drawn(subject, positions)) if not drawn]
    size = max(1, MOST_NUMBERS // subject.facts.vocab_size)
    for first in range(0, len(places), size):
        breathe()
        some = places[first : first + size]
        came[some] = _logits(subject, last[some]).argmax(-1)
    return came


def _read(
    subject: Subject,
    streams: Tensor,
    choices: Tensor,
    *,
    served: Mapping[int, Tensor],
    top: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Of each vector [N, D]: the likeliest ids, their shares [N, K], the choice's rank, its share.

    Among equals the smaller id ranks first, as where tokens are taken.
    served: rows of logits [V] that stand in the place of some vectors' own.
    """
    parts: list[tuple[Tensor, ...]] = []
    size = max(1, MOST_NUMBERS // subject.facts.vocab_size)
    for first in range(0, len(streams), size):
        breathe()
        wanted = choices[first : first + size]
        logits = _logits(subject, streams[first : first + size])
        for at, row in served.items():
            if first <= at < first + len(logits):
                logits[at - first] = row
        shares = logits.softmax(-1)
        ids = largest(logits.float(), top)
        own = logits.gather(1, wanted[:, None])
        smaller = torch.arange(logits.shape[1], device=logits.device) < wanted[:, None]
        ranks = 1 + (logits > own).sum(-1) + ((logits == own) & smaller).sum(-1)
        parts.append((ids, shares.gather(1, ids), ranks, shares.gather(1, wanted[:, None])[:, 0]))
    ids, shares, ranks, had = (torch.cat(each) for each in zip(*parts, strict=True))
    return ids, shares.float(), ranks, had.float()


def _logits(subject: Subject, streams: Tensor) -> Tensor:
    dtype = getattr(torch, subject.build.dtype)
    logits = subject.transformer.unembedding.read(streams.to(dtype))
    return logits.to(torch.promote_types(dtype, torch.float32))


VIEW = View(
    "lens",
    "logits",
    "What would each layer say if the model ended there?",
    probe,
    takes=("position", "layer", "top"),
    wants=wants,
    flops=flops,
    walks=walks,
)
