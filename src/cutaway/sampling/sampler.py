"""Logits of a step to one token per row: start reading here.

    raw logits -> edits (grammar, bias, bans, penalties, temperature)
        |             -> cuts (min_p, top_k, top_p) -> draw
        +-> logprobs

A greedy row takes the largest logit after grammar, bias, bans and penalties. It knows no text, no
stop rule and no sequence: what a row needs is in its SamplerRow.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from itertools import islice, repeat
from typing import Any, NamedTuple, Protocol, TypedDict, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cutaway.kernels import native
from cutaway.kernels.checksum import checksum
from cutaway.kernels.sample import sample, takes
from cutaway.sampling import upload
from cutaway.sampling.bias import Bans, LogitBias
from cutaway.sampling.candidates import Candidates, SamplerRow, SamplerStage
from cutaway.sampling.draw import draw
from cutaway.sampling.filters import MinP, Temperature, TopK, TopP, min_p_floor, top_p_rest
from cutaway.sampling.grammars.mask import GrammarMask
from cutaway.sampling.integer_weights import MAX_VOCAB_SIZE
from cutaway.sampling.largest import first_largest
from cutaway.sampling.logprobs import (
    BAD_SCORE,
    Score,
    Sent,
    alternatives,
    measure,
    read_score,
    read_scores,
    rows_at_once,
)
from cutaway.sampling.penalties import Penalties
from cutaway.sampling.threads import one_thread
from cutaway.sampling.uniform import uniform

# vLLM's order. Hugging Face differs only in min_p, which it puts last; llama.cpp cuts before it
# divides by the temperature and so keeps other sets.
ORDER: tuple[SamplerStage, ...] = (
    GrammarMask(),
    LogitBias(),
    Bans(),
    Penalties(),
    Temperature(),
    MinP(),
    TopK(),
    TopP(),
)

# What sample_native knows, in its order: edits are made in torch before the native call, and the
# others are numbers that choice_of hands to it. A row that passes another stage goes through torch.
_EDITS: tuple[type[SamplerStage], ...] = (GrammarMask, LogitBias, Bans, Penalties)
_NATIVE: tuple[type[SamplerStage], ...] = (*_EDITS, Temperature, MinP, TopK, TopP)
_MOST_KEPT = 16  # numbers of rows: with guesses they change from step to step
# What kernels/sample has of them on a GPU; a row that passes any other goes through torch.
_FUSED: tuple[type[SamplerStage], ...] = (Temperature, MinP, TopK, TopP)


class Sampled(NamedTuple):
    """What became of one row.

    token_id: None when the row is bad: NaN or +inf among its logits, or no token left.
    u:        the random number of the draw, in [0, 2^32); None for a greedy row.
    checksum: of the raw row as float32, 64 bits; see kernels/checksum.
    residual: where a guess fell (rejection.py), the token's share of what was left for its place.
    """

    token_id: int | None
    u: int | None
    score: Score
    checksum: int
    residual: float | None = None

    @property
    def is_bad(self) -> bool:
        """Whether the row gave no token; its request fails, the other rows do not."""
        return self.token_id is None


class Sampler:
    """Samples the rows of a step, each by its own settings.

    Every row's result is the same bits alone and in any batch: rows share memory passes, never
    a sum.
    """

    def __init__(self, vocab_size: int) -> None:
        assert 1 <= vocab_size <= MAX_VOCAB_SIZE, f"sums over {vocab_size} tokens are not exact"
        self.vocab_size = vocab_size
        self._native: dict[int, native.RowSampler] = {}  # of the latest logits, by their rows

    def sample(self, logits: Tensor, rows: Sequence[SamplerRow]) -> list[Sampled]:
        """One token per row.

        Shapes: logits [R, V] of any float type on any device, left as they are.
        The device is waited for once, at the end.
        """
        assert logits.shape == (len(rows), self.vocab_size), f"logits are {tuple(logits.shape)}"
        if rows and rows[0].scores_drawn:  # all rows of an engine are alike in it
            return sample_plain(logits, rows)
        kept = self._native.get(len(rows))
        if kept is not None and kept.logits is logits:
            return sample_native(kept, rows)  # new numbers in the same place
        if logits.is_cpu and native.is_available():
            if len(self._native) >= _MOST_KEPT:
                self._native.clear()
            kept = self._native[len(rows)] = native.RowSampler(logits.to(torch.float32))
            return sample_native(kept, rows)
        return sample_plain(logits, rows)


@dataclass(frozen=True)
class PendingDraws:
    """Rows that are being sampled on a device: the host has not waited for them yet.

    order: of each row of the parts the index among the rows.   draws: its random number.
    """

    order: list[int]
    draws: list[int | None]
    parts: list[Tensor]
    sent: Sent

    def token_ids(self, indices: Sequence[int]) -> Tensor:
        """The tokens of some rows where they are, on the device. Shapes: [R] whole numbers."""
        first, *others = self.parts
        column = torch.cat([part[:, 0] for part in self.parts]) if others else first[:, 0]
        if indices == self.order:
            return column
        places = {index: place for place, index in enumerate(self.order)}
        wanted = [places[index] for index in indices]
        if wanted == list(range(len(column))):
            return column
        return column.index_select(0, upload.integers(wanted, column))

    def read_tokens(self) -> list[int | None]:
        """The token of each row, None of a bad one; the device is waited for here."""
        token_ids: list[int | None] = [None] * len(self.order)
        places = iter(self.order)
        for numbers in self.sent.parts():
            columns = cast("list[list[float]]", numbers[:, :4].tolist())
            for token_id, left, _, peak in columns:
                place = next(places)
                if math.isfinite(left) and math.isfinite(peak):
                    token_ids[place] = int(token_id)
        return token_ids

    def read(self, indices: Sequence[int] | None = None) -> list[Sampled]:
        """What became of each row, or of some; the device is waited for here."""
        results: list[Sampled] = [Sampled(None, None, BAD_SCORE, 0)] * len(self.order)
        draws = iter(zip(self.order, self.draws, strict=True))
        for numbers in self.sent.parts():
            rows = list(islice(draws, len(numbers)))
            read = _read_part(numbers, [u for _, u in rows])
            for (index, _), sampled in zip(rows, read, strict=True):
                results[index] = sampled
        return results if indices is None else [results[index] for index in indices]


class CapturedSample(Protocol):
    """As kernels.sample.sample, for logits that it has already."""

    def __call__(
        self, choices: NDArray[np.float64], /, *, has_top_k: bool, has_top_p: bool
    ) -> Tensor:
        """Shapes: choices [R, 6] -> [R, 7]."""
        ...


class SteadyRows:
    """Rows that kernels/sample has all of at any position: their settings, kept for many steps."""

    def __init__(
        self,
        settings: NDArray[np.float64],
        drawing: list[int],
        keys: list[tuple[int, int]],
    ) -> None:
        self._settings, self._drawing, self._keys = settings, drawing, keys
        self._cuts = _cuts(settings)
        self._sent: Tensor | None = None  # on the device, where nothing is drawn

    @staticmethod
    def of(rows: Sequence[SamplerRow], logits: Tensor) -> SteadyRows | None:
        """The settings of some rows; None where one asks for more, or these logits do."""
        if not takes(logits) or not all(map(_is_fused, rows)):
            return None
        settings = [_fused_choice(row, -1.0) for row in rows]
        drawing = [index for index, row in enumerate(rows) if not row.params.is_greedy]
        keys = [(row.seed, row.choice) for row in rows]
        return SteadyRows(np.array(settings), drawing, keys)

    def keep(self, indices: list[int]) -> SteadyRows:
        """Some of the rows, in that order."""
        places = {index: place for place, index in enumerate(indices)}
        drawing = [places[index] for index in self._drawing if index in places]
        return SteadyRows(
            self._settings[indices], sorted(drawing), [self._keys[index] for index in indices]
        )

    @torch.no_grad()
    def begin(
        self, logits: Tensor, positions: Sequence[int], captured: CapturedSample | None = None
    ) -> PendingDraws:
        """Draw the token at each row's position; the device is not waited for.

        captured: has these logits already.   Shapes: logits [R, V].
        """
        draws: list[int | None] = [None] * len(self._keys)
        if self._drawing:
            drawn = _uniforms([(*self._keys[i], positions[i]) for i in self._drawing])
            for index, u in zip(self._drawing, drawn, strict=True):
                draws[index] = u
            self._settings[self._drawing, 2] = drawn
        if captured is not None:
            part = captured(self._settings, **self._cuts)
        else:
            if self._drawing or self._sent is None:
                self._sent = upload.doubles(self._settings, logits)
            part = sample(logits, self._sent, **self._cuts)
        return PendingDraws(list(range(len(draws))), draws, [part], Sent([part]))


def sample_plain(logits: Tensor, rows: Sequence[SamplerRow]) -> list[Sampled]:
    """In torch, on any device: rows that are alike go through every stage together."""
    return begin_plain(logits, rows).read()


@one_thread()
@torch.no_grad()
def begin_plain(logits: Tensor, rows: Sequence[SamplerRow]) -> PendingDraws:
    """The same, handed to the device and not waited for."""
    fused = [index for index, row in enumerate(rows) if _is_fused(row)] if takes(logits) else []
    order, draws, parts = _sample_fused(logits, rows, fused)
    for indices in _tiles(logits, rows, without=set(fused)):
        group = [rows[i] for i in indices]
        u = None if group[0].params.is_greedy else uniforms(group)
        own = _take(logits, indices).to(torch.float32)
        parts.append(_sample_alike(own, group, u))
        order += indices
        draws += u or [None] * len(group)
    return PendingDraws(order, draws, parts, Sent(parts))


def _is_fused(row: SamplerRow) -> bool:
    """Whether kernels/sample has all that a row asks for."""
    if row.num_logprobs is not None:
        return False
    return all(type(stage) in _FUSED or stage.is_neutral(row) for stage in ORDER)


def _fused_choice(row: SamplerRow, u: float) -> tuple[float, ...]:
    """A row's settings as kernels/sample takes them. u: of its draw; -1 where nothing is drawn."""
    params = row.params
    if params.is_greedy:
        return 1.0, 0.0, -1.0, 0.0, -1.0, 0.0
    rest = -1.0 if params.top_p == 1 else float(top_p_rest(params.top_p))
    floor, top_k = min_p_floor(params.min_p), max(0.0, params.top_k)
    return params.temperature, floor, u, top_k, rest, float(row.scores_drawn)


def _cuts(choices: NDArray[np.float64]) -> _Cuts:
    """Which cuts any of the rows has."""
    has_top_k, has_top_p = (choices[:, 3] > 0).any(), (choices[:, 4] >= 0).any()
    return _Cuts(has_top_k=bool(has_top_k), has_top_p=bool(has_top_p))


class _Cuts(TypedDict):
    has_top_k: bool
    has_top_p: bool


def _sample_fused(
    logits: Tensor, rows: Sequence[SamplerRow], indices: list[int]
) -> tuple[list[int], list[int | None], list[Tensor]]:
    """Some rows by the kernels that have them all in a few passes: order, draws, numbers."""
    if not indices:
        return [], [], []
    drawing = [index for index in indices if not rows[index].params.is_greedy]
    drawn = dict(zip(drawing, uniforms([rows[i] for i in drawing]) if drawing else [], strict=True))
    draws = [drawn.get(index) for index in indices]
    choices = np.array(
        [
            _fused_choice(rows[index], -1.0 if u is None else float(u))
            for index, u in zip(indices, draws, strict=True)
        ]
    )
    part = sample(_take(logits, indices), upload.doubles(choices, logits), **_cuts(choices))
    return list(indices), draws, [part]


def sample_native(sampling: native.RowSampler, rows: Sequence[SamplerRow]) -> list[Sampled]:
    """The same bits on a CPU: edits in torch, for the rows that have any; the rest in one call.

    Rows that pass a stage without a native form are sampled in torch from beginning to end.
    """
    logits = sampling.logits
    in_torch = rows_for_torch(rows)
    if in_torch and len(in_torch) == len(rows):
        return sample_plain(logits, rows)
    draws: list[int | None] = [None] * len(rows)
    drawing = [index for index, row in enumerate(rows) if not row.params.is_greedy]
    if drawing:
        for index, u in zip(drawing, uniforms([rows[i] for i in drawing]), strict=True):
            draws[index] = u
    drawn = sampling.run(edited_rows(logits, rows), list(map(choice_of, rows, draws)))
    more = _alternatives(logits, drawn, rows)
    results: list[Sampled] = []
    for index, (each, u) in enumerate(zip(drawn, draws, strict=True)):
        scores = (each.logit, each.peak, each.total, *more.get(index, ()))
        results.append(_read((each.token_id, each.left, *scores), u, each.checksum))
    if in_torch:
        again = sample_plain(_take(logits, in_torch), [rows[index] for index in in_torch])
        for index, sampled in zip(in_torch, again, strict=True):
            results[index] = sampled
    return results


def rows_for_torch(rows: Sequence[SamplerRow]) -> list[int]:
    """Indices of the rows that pass a stage of which the native call knows nothing."""
    strangers = _without_native_form(ORDER)
    if not strangers:
        return []
    return [i for i, row in enumerate(rows) if not all(s.is_neutral(row) for s in strangers)]


@cache
def _without_native_form(order: tuple[SamplerStage, ...]) -> tuple[SamplerStage, ...]:
    """Stages that are not in _NATIVE; all of them where its own come in another order."""
    known = tuple(type(stage) for stage in order if type(stage) in _NATIVE)
    if known != _NATIVE:
        return order
    return tuple(stage for stage in order if type(stage) not in _NATIVE)


@contextmanager
def _in_torch() -> Generator[None]:
    """Around the few operations that a native row still leaves to torch."""
    with one_thread(), torch.no_grad():
        yield


def edited_rows(logits: Tensor, rows: Sequence[SamplerRow]) -> dict[int, Tensor]:
    """The rows [V] whose settings ask for edits, after them."""
    edited: dict[int, Tensor] = {}
    for index, row in enumerate(rows):
        stages = [stage for stage in _edits(ORDER) if not stage.is_neutral(row)]
        if not stages:
            continue
        with _in_torch():
            candidates = Candidates(logits[index : index + 1])
            for stage in stages:
                candidates = stage(candidates, [row])
            edited[index] = candidates.logits[0]
    return edited


@cache
def _edits(order: tuple[SamplerStage, ...]) -> tuple[SamplerStage, ...]:
    return tuple(stage for stage in order if type(stage) in _EDITS)


_GREEDY = native.RowChoice()


def choice_of(row: SamplerRow, u: int | None, watched: int = -1) -> native.RowChoice:
    """A row's settings in the numbers that sampling/filters.py defines.

    watched: a token whose weight is wanted; -1 for the one that is drawn.
    """
    params = row.params
    if u is None:
        return _GREEDY
    return native.RowChoice(
        temperature=params.temperature,
        floor=min_p_floor(params.min_p),
        top_k=max(0, params.top_k),
        rest=-1 if params.top_p == 1 else top_p_rest(params.top_p),
        u=u,
        watched=watched,
    )


def _alternatives(
    logits: Tensor, drawn: Sequence[native.Drawn], rows: Sequence[SamplerRow]
) -> dict[int, list[float]]:
    """Rank and likeliest tokens of the rows that ask for them."""
    groups: dict[int, list[int]] = {}
    for index, row in enumerate(rows):
        if row.num_logprobs is not None:
            groups.setdefault(row.num_logprobs, []).append(index)
    found: dict[int, list[float]] = {}
    for num_logprobs, indices in groups.items():
        for tile in _in_tiles(indices, logits):
            logit = torch.tensor([[drawn[index].logit] for index in tile])
            with _in_torch():
                numbers = alternatives(_take(logits, tile), logit, num_logprobs)
            found.update(zip(tile, cast("list[list[float]]", numbers.tolist()), strict=True))
    return found


def stages_of(row: SamplerRow) -> tuple[SamplerStage, ...]:
    """The stages that act on a row, in order."""
    return tuple(stage for stage in ORDER if not stage.is_neutral(row))


def uniforms(rows: Sequence[SamplerRow]) -> list[int]:
    """The random number of each row's draw."""
    return _uniforms([(row.seed, row.choice, row.position) for row in rows])


def _uniforms(draws: Sequence[tuple[int, int, int]]) -> list[int]:
    """The random number of each draw: its seed, choice and position."""
    # On integers a hash takes 8 us; as arrays any number of them takes 130 us.
    if len(draws) < 16:
        return [uniform(seed, choice=choice, position=place) for seed, choice, place in draws]
    seeds, choices, positions = (
        np.array(column, dtype=np.int64) for column in zip(*draws, strict=True)
    )
    return uniform(seeds, choice=choices, position=positions).tolist()


def _sample_alike(logits: Tensor, rows: Sequence[SamplerRow], u: list[int] | None) -> Tensor:
    """Sample rows that pass the same stages: [R, V] float32 -> [R, N + 2] float64.

    The last two are the checksum's halves, the others what _read takes.
    """
    raw = candidates = Candidates(logits)
    for stage in stages_of(rows[0]):
        candidates = stage(candidates, rows)
    if u is None:
        token_ids = first_largest(candidates.logits)
    else:
        token_ids = draw(candidates.weights, upload.integers(u, logits)).token_ids
    scored = candidates if rows[0].scores_drawn else raw
    score = measure(scored, token_ids, num_logprobs=rows[0].num_logprobs)
    left = candidates.peak.to(torch.float64)  # -inf when every token was banned
    told = checksum(logits).to(torch.float64)
    return torch.cat([token_ids[:, None].to(torch.float64), left, score, told], dim=1)


def _read_part(numbers: NDArray[np.float64], draws: Sequence[int | None]) -> Iterable[Sampled]:
    """Rows that were sampled alike. Shapes: [R, N + 2], as _sample_alike gives them."""
    if len(numbers) < _FEW:
        few = cast("list[list[float]]", numbers.tolist())
        return [
            _read(row[:-2], u, int(row[-2]) | int(row[-1]) << 32)
            for row, u in zip(few, draws, strict=True)
        ]
    told = numbers[:, -2].astype(np.uint64) | numbers[:, -1].astype(np.uint64) << np.uint64(32)
    if numbers.shape[1] > _PLAIN_COLUMNS or not np.isfinite(numbers[:, (1, 3)]).all():
        rows = cast("list[list[float]]", numbers[:, :-2].tolist())
        return map(_read, rows, draws, told.tolist())
    token_ids = numbers[:, 0].astype(np.int64).tolist()
    scores = read_scores(numbers[:, 2:5])
    return map(_SAMPLED, zip(token_ids, draws, scores, told.tolist(), repeat(None)))


# As logprobs makes scores.
_SAMPLED = cast("Callable[[tuple[Any, ...]], Sampled]", partial(tuple.__new__, Sampled))

_FEW = 12  # rows that are read sooner one by one: 3 us each, 40 for any number as columns
_PLAIN_COLUMNS = 7  # of a row without alternatives


def _read(numbers: Sequence[float], u: int | None, told: int) -> Sampled:
    token_id, left = numbers[0], numbers[1]
    score = read_score(numbers[2:])
    if score.is_bad or not math.isfinite(left):
        return Sampled(None, u, BAD_SCORE, told)
    return Sampled(int(token_id), u, score, told)


def _tiles(
    logits: Tensor, rows: Sequence[SamplerRow], *, without: Collection[int]
) -> Iterator[list[int]]:
    """Rows to be worked on together: alike in what they need, few enough for the cache."""
    groups: dict[object, list[int]] = {}
    for index, row in enumerate(rows):
        if index in without:
            continue
        alike = (stages_of(row), row.params.is_greedy, row.num_logprobs, row.scores_drawn)
        groups.setdefault(alike, []).append(index)
    for indices in groups.values():
        yield from _in_tiles(indices, logits)


def _in_tiles(indices: list[int], logits: Tensor) -> Iterator[list[int]]:
    size = rows_at_once(logits)
    for start in range(0, len(indices), size):
        yield indices[start : start + size]


def _take(logits: Tensor, indices: list[int]) -> Tensor:
    first, past = indices[0], indices[-1] + 1
    if past - first == len(indices):
        return logits[first:past]
    return logits.index_select(0, upload.integers(indices, logits))
