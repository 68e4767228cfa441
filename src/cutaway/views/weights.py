"""Weights: one stored matrix as a histogram, in figures, and as a small picture of itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from cutaway.core.errors import RequestError
from cutaway.core.limits import shown
from cutaway.quantize.dense import DenseWeight
from cutaway.quantize.packed import Packed
from cutaway.quantize.scheme import Weight
from cutaway.quantize.stack import Stack
from cutaway.views.drawing import Drawing, Span, bar
from cutaway.views.payload import Array
from cutaway.views.query import Query
from cutaway.views.subject import Subject
from cutaway.views.taken import Taken
from cutaway.views.view import View

BINS, SPREAD = 48, 4.0  # the histogram spans so many deviations to either side of the mean
SIDE = 32  # of the thumbnail
_SHADES = " \u2591\u2592\u2593\u2588"


@dataclass(frozen=True)
class Weights:
    """One tensor of the loaded model.

    stored:     how its numbers are kept in memory.   num_bytes: that all of it takes, scales and
                every expert included; bits_per_number follows.
    mean, deviation, least, most: of its numbers.   zeros: share that is exactly 0.
    edges, counts: [48 + 1], [48], histogram of four deviations to either side; outside: share
                beyond.
    thumbnail:  [32, 32] or fewer, mean size of the numbers in each tile, in units of
                thumbnail_scale.
    others:     names of further tensors that were meant as well, or that there are in the layer.
    """

    name: str
    rows: int
    columns: int
    stored: str
    num_bytes: int
    num_numbers: int
    bits_per_number: float
    mean: float
    deviation: float
    least: float
    most: float
    zeros: float
    outside: float
    edges: Array
    counts: Array
    thumbnail: Array
    thumbnail_scale: float
    others: tuple[str, ...]

    def draw(self) -> Drawing:
        drawing = Drawing()
        drawing.line(Span(self.name, "strong"), f"  {self.rows:,} x {self.columns:,}")
        drawing.line(
            f"kept as {self.stored}: {self.num_bytes:,} bytes, "
            f"{self.bits_per_number:.2f} bits a number",
        )
        drawing.line(
            f"mean {self.mean:.2g}, deviation {self.deviation:.3g}, from {self.least:.3g} to "
            f"{self.most:.3g}; {self.zeros:.2%} are 0, {self.outside:.3%} beyond {SPREAD:g} "
            "deviations"
        )
        height, shown = len(self.thumbnail) // 2, self.counts.reshape(-1, 3).sum(axis=1)
        most = max(int(shown.max()), 1)
        for row in range(max(height, len(shown))):
            left = " " * 42
            if row < len(shown):
                left = f"{self.edges[row * 3]:>9.3g} {bar(shown[row] / most, 30)}  "
            drawing.line(left, self._shades(row) if row < height else "")
        drawing.line(
            Span("left: histogram; right: mean size by place, rows down, columns across", "dim")
        )
        if self.others:
            drawing.line(Span("--text NAME shows another:", "dim"))
            drawing.wrapped((Span(f"{each}  ", "dim") for each in self.others[:16]), indent=2)
            if len(self.others) > 16:
                drawing.line(Span(f"  and {len(self.others) - 16} more", "dim"))
        return drawing

    def _shades(self, row: int) -> str:
        """Two rows of the thumbnail in one line, from its smallest value to its largest."""
        least, most = int(self.thumbnail.min()), int(self.thumbnail.max())
        values = self.thumbnail[2 * row : 2 * row + 2].mean(axis=0)
        span = max(most - least, 1)
        return "".join(_SHADES[round((float(each) - least) / span * 4)] for each in values)


def probe(subject: Subject, query: Query, taken: Taken) -> Weights:
    del taken
    named = _named(subject.transformer)
    name, others = _chosen(named, query)
    matrix, stored, num_bytes, num_numbers = _opened(named[name], query)
    values = matrix.detach().float()
    values = values.view(1, -1) if values.dim() < 2 else values.flatten(0, -2)
    mean, deviation = float(values.double().mean()), float(values.double().std(correction=0))
    reach = max(SPREAD * deviation, 1e-30)
    edges = torch.linspace(mean - reach, mean + reach, BINS + 1)
    inside = values[(values >= edges[0]) & (values <= edges[-1])].cpu()
    counts = inside.histogram(edges).hist
    thumbnail = _thumbnail(values)
    scale = max(float(thumbnail.max()), 1e-30) / 255
    return Weights(
        name=name,
        rows=values.shape[0],
        columns=values.shape[1],
        stored=stored,
        num_bytes=num_bytes,
        num_numbers=num_numbers,
        bits_per_number=8 * num_bytes / num_numbers,
        mean=mean,
        deviation=deviation,
        least=float(values.min()),
        most=float(values.max()),
        zeros=float((values == 0).double().mean()),
        outside=1 - len(inside) / values.numel(),
        edges=edges.numpy(),
        counts=counts.long().numpy(),
        thumbnail=(thumbnail / scale).round().to(torch.uint8).cpu().numpy(),
        thumbnail_scale=scale,
        others=others,
    )


def _named(model: nn.Module) -> dict[str, Weight | Stack | nn.Parameter]:
    """Everything stored by name: matrices whatever their scheme, and vectors beside them."""
    found: dict[str, Weight | Stack | nn.Parameter] = {}
    modules = cast("Iterator[tuple[str, nn.Module]]", model.named_modules())
    for name, module in modules:
        if isinstance(module, Weight | Stack):
            found[name] = module
    for name, parameter in model.named_parameters():
        if name.rpartition(".")[0] not in found:
            found[name] = parameter
    return found


def _chosen(
    named: dict[str, Weight | Stack | nn.Parameter], query: Query
) -> tuple[str, tuple[str, ...]]:
    """The tensor meant and others. Raises: RequestError where none is."""
    names = list(named)
    if query.layer is not None or query.text is None:
        names = [name for name in names if name.startswith(f"blocks.{query.layer or 0}.")]
    if query.text is None:
        matrices = [name for name in names if not isinstance(named[name], nn.Parameter)]
        first = (matrices or names)[0]
        return first, tuple(name for name in names if name != first)
    if query.text in named:
        return query.text, ()
    meant = [name for name in names if query.text in name]
    if not meant:
        raise RequestError(
            f"no tensor's name has {shown(query.text)} in it; there are, for instance, "
            f"{', '.join(names[:8])}.",
            param="text",
        )
    return meant[0], tuple(meant[1:])


def _opened(stored: Weight | Stack | nn.Parameter, query: Query) -> tuple[Tensor, str, int, int]:
    """Its numbers, how they are kept, and bytes and count of all of it."""
    if isinstance(stored, nn.Parameter):
        return stored, _dtype(stored), stored.nbytes, stored.numel()
    if isinstance(stored, Weight):
        matrix = stored.dense()
        kept = type(stored).__name__
        if isinstance(stored, Packed):
            kept = f"packed {stored.packed.kind.name.lower()}"
        elif isinstance(stored, DenseWeight):
            kept = _dtype(stored.weight)
        return matrix, kept, stored.num_bytes, matrix.numel()
    experts, expert = stored.num_matrices, query.expert or 0
    if expert >= experts:
        raise RequestError(
            f"expert is {expert}; it must be from 0 to {experts - 1}.", param="expert"
        )
    matrix = stored.matrix(expert, torch.float32)
    kept = f"{type(stored).__name__}, expert {expert} of {experts}"
    return matrix, kept, stored.num_bytes, experts * matrix.numel()


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _thumbnail(values: Tensor) -> Tensor:
    """Mean sizes by tile. Shapes: [N, K] -> [32, 32], or fewer where there are fewer."""
    sizes = (min(SIDE, values.shape[0]), min(SIDE, values.shape[1]))
    return nn.functional.adaptive_avg_pool2d(values.abs()[None], sizes)[0]


VIEW = View(
    "weights",
    "blocks",
    "What is in one of the model's matrices?",
    probe,
    takes=("layer", "expert", "text"),
    is_content=False,
)
