"""Weights: one stored matrix as a histogram, in figures, and as a small picture of itself."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from cutaway.blocks.transformer import Transformer
from cutaway.core.errors import RequestError
from cutaway.core.limits import quote
from cutaway.host.turns import breathe
from cutaway.quantize.dense import DenseWeight
from cutaway.quantize.dense_stack import Stack
from cutaway.quantize.packed import Packed
from cutaway.quantize.scheme import Weight
from cutaway.views.parts.drawing import Drawing, Span, bar
from cutaway.views.parts.payload import Array
from cutaway.views.parts.query import Query
from cutaway.views.parts.replay_values import ReplayValues
from cutaway.views.parts.subject import Subject
from cutaway.views.parts.view import View

BINS, SPREAD = 48, 4.0  # the histogram spans so many deviations to either side of the mean
SIDE = 32  # of the thumbnail
WALKS = 24  # unpacked once, eleven for figures, ten for the histogram, two for the picture
NUMBERS_AT_ONCE = 2**20  # unpacked between two breaths
Parts = Callable[[], Iterator[Tensor]]  # rows of a matrix, as often as they are wanted

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
        """The picture: figures of the matrix, a thumbnail, and a histogram of its numbers."""
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
            drawing.wrap((Span(f"{each}  ", "dim") for each in self.others[:16]), indent=2)
            if len(self.others) > 16:
                drawing.line(Span(f"  and {len(self.others) - 16} more", "dim"))
        return drawing

    def _shades(self, row: int) -> str:
        """Two rows of the thumbnail in one line, from its smallest value to its largest."""
        least, most = int(self.thumbnail.min()), int(self.thumbnail.max())
        values = self.thumbnail[2 * row : 2 * row + 2].mean(axis=0)
        span = max(most - least, 1)
        return "".join(_SHADES[round((float(each) - least) / span * 4)] for each in values)


def probe(subject: Subject, query: Query, taken: ReplayValues) -> Weights:
    """Figures, histogram and thumbnail of the matrix that the query names."""
    del taken
    named = _named(subject.transformer)
    name, others = _chosen(named, query)
    parts, stored, num_bytes, num_numbers = _opened(named[name], query)
    found = _figures(parts)
    reach = max(SPREAD * found.deviation, 1e-30)
    edges = torch.linspace(found.mean - reach, found.mean + reach, BINS + 1)
    counts, num_inside = torch.zeros(BINS), 0
    for part in parts():
        inside = part[(part >= edges[0]) & (part <= edges[-1])].cpu()
        counts += inside.histogram(edges).hist
        num_inside += len(inside)
    thumbnail = _thumbnail(parts)
    scale = max(float(thumbnail.max()), 1e-30) / 255
    return Weights(
        name=name,
        rows=found.rows,
        columns=found.columns,
        stored=stored,
        num_bytes=num_bytes,
        num_numbers=num_numbers,
        bits_per_number=8 * num_bytes / num_numbers,
        mean=found.mean,
        deviation=found.deviation,
        least=found.least,
        most=found.most,
        zeros=found.zeros,
        outside=1 - num_inside / (found.rows * found.columns),
        edges=edges.numpy(),
        counts=counts.long().numpy(),
        thumbnail=(thumbnail / scale).round().to(torch.uint8).cpu().numpy(),
        thumbnail_scale=scale,
        others=others,
    )


def walks(subject: Subject, query: Query) -> int:
    """The matrix for each of four questions: its figures, twice, the histogram and the picture."""
    named = _named(subject.transformer)
    stored = named[_chosen(named, query)[0]]
    if isinstance(stored, nn.Parameter):
        return WALKS * stored.numel()
    if isinstance(stored, Packed):
        return WALKS * stored.packed.num_rows * stored.packed.num_columns
    num_bytes = stored.num_bytes // (1 if isinstance(stored, Weight) else stored.num_matrices)
    return WALKS * num_bytes  # a number has about a byte, or few more


def _named(model: Transformer) -> dict[str, Weight | Stack | nn.Parameter]:
    """Everything stored by name: matrices whatever their scheme, and vectors beside them."""
    model.check_whole()
    found: dict[str, Weight | Stack | nn.Parameter] = {}
    modules = cast("Iterator[tuple[str, nn.Module]]", model.named_modules())
    is_stored: dict[type[nn.Module], bool] = {}  # asked once each: a protocol is slow to ask for
    for name, module in modules:
        kind = type(module)
        if kind not in is_stored:
            is_stored[kind] = isinstance(module, Weight | Stack)
        if is_stored[kind]:
            found[name] = cast("Weight | Stack", module)
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
            f"no tensor's name has {quote(query.text)} in it; there are, for instance, "
            f"{', '.join(names[:8])}.",
            param="text",
        )
    return meant[0], tuple(meant[1:])


def _opened(stored: Weight | Stack | nn.Parameter, query: Query) -> tuple[Parts, str, int, int]:
    """Its rows in parts, how they are kept, and bytes and count of all of it."""
    if isinstance(stored, nn.Parameter):
        return _parts_of(stored.detach()), _dtype(stored), stored.nbytes, stored.numel()
    if isinstance(stored, Weight):
        kept = type(stored).__name__
        if isinstance(stored, Packed):
            kept = f"packed {stored.packed.kind.name.lower()}"
            shape = (stored.packed.num_rows, stored.packed.num_columns)
            parts = _tiles_of(stored)
            if shape[0] * shape[1] <= NUMBERS_AT_ONCE:
                parts = _parts_of(stored.dense())  # unpacked once for all walks
            return parts, kept, stored.num_bytes, shape[0] * shape[1]
        if isinstance(stored, DenseWeight):
            kept = _dtype(stored.weight)
        matrix = stored.dense().detach()
        return _parts_of(matrix), kept, stored.num_bytes, matrix.numel()
    experts, expert = stored.num_matrices, query.expert or 0
    if expert >= experts:
        raise RequestError(
            f"expert is {expert}; it must be from 0 to {experts - 1}.", param="expert"
        )
    matrix = stored.matrix(expert, torch.float32).detach()
    kept = f"{type(stored).__name__}, expert {expert} of {experts}"
    return _parts_of(matrix), kept, stored.num_bytes, experts * matrix.numel()


def _parts_of(matrix: Tensor) -> Parts:
    """Some rows at a time of what lies there unpacked; a vector is one row."""
    rows = matrix.view(1, -1) if matrix.dim() < 2 else matrix.flatten(0, -2)

    def parts() -> Iterator[Tensor]:
        for part in _split(rows, rows.shape[1]):
            breathe()
            yield part.float()

    return parts


def _tiles_of(stored: Packed) -> Parts:
    """Some rows at a time, unpacked when they come."""

    def parts() -> Iterator[Tensor]:
        for tile in stored.tiles(NUMBERS_AT_ONCE):
            breathe()
            yield tile

    return parts


def _split(rows: Tensor, num_columns: int) -> tuple[Tensor, ...]:
    return cast("tuple[Tensor, ...]", rows.split(max(1, NUMBERS_AT_ONCE // num_columns)))


@dataclass(frozen=True)
class _Figures:
    """Of all numbers of a matrix."""

    rows: int
    columns: int
    mean: float
    deviation: float
    least: float
    most: float
    zeros: float


def _figures(parts: Parts) -> _Figures:
    """From two walks: the deviation is taken from the mean, which the first one gives."""
    sizes, total, zeros = list[tuple[int, int]](), 0.0, 0
    least, most = math.inf, -math.inf
    for part in parts():
        sizes.append((part.shape[0], part.shape[1]))
        total += float(part.double().sum())
        zeros += int((part == 0).sum())
        least, most = min(least, float(part.min())), max(most, float(part.max()))
    rows, columns = sum(size[0] for size in sizes), sizes[0][1]
    count = rows * columns
    mean = total / count
    squares = sum(float((part.double() - mean).square().sum()) for part in parts())
    return _Figures(rows, columns, mean, math.sqrt(squares / count), least, most, zeros / count)


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _thumbnail(parts: Parts) -> Tensor:
    """Mean sizes by tile. Shapes: [N, K] -> [32, 32], or fewer where there are fewer."""
    pool = nn.functional.adaptive_avg_pool1d  # by columns, then by rows: tiles are rectangles
    across = torch.cat([pool(part.abs(), min(SIDE, part.shape[1])) for part in parts()])
    return pool(across.T, min(SIDE, len(across))).T


VIEW = View(
    "weights",
    "blocks",
    "What is in one of the model's matrices?",
    probe,
    takes=("layer", "expert", "text"),
    is_content=False,
    walks=walks,
)
