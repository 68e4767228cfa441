"""One forward pass of the engine, as an argument: tokens, positions, page tables, rows, taps.

What a layer needs is here or in its signature; there is no global context. A sequence may bring
one query token (decode), many (a prefill chunk) or a few (a draft to verify): nothing below
assumes one.

Letters: T tokens in the step, B sequences, R rows that need logits, N pages, P tokens per page.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain, repeat
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from cutaway.core.layout import SCRATCH_PAGE, scale_name

# Parts of a step's one upload begin at 128 bytes: kernels are compiled for aligned addresses.
_ALIGNED = 16
_MANY = 64  # numbers, from which on NumPy makes them sooner than Python
# (name, value, layer) -> None to read, or a tensor of the same shape to put in its place.
Sink = Callable[[str, Tensor, int | None], Tensor | None]


class StreamReader(Protocol):
    """Reads the streams behind some layers while a step runs, or when it is done.

    layers: behind which it reads any.
    """

    @property
    def layers(self) -> Collection[int]:
        """Of the model."""
        ...

    def __call__(self, stream: Tensor, layer: int) -> None:
        """To read at once, since its memory is used again. Shapes: stream [T, D]."""
        ...


def put_range(numbers: array[int], start: int, stop: int) -> None:
    """Put start, start + 1 and so on before stop behind the numbers."""
    if stop - start < _MANY:
        numbers.extend(range(start, stop))
    else:
        numbers.frombytes(np.arange(start, stop, dtype=np.int64).tobytes())


_staging: dict[torch.device, tuple[Tensor, torch.cuda.Event]] = {}


def _staged(numbers: Tensor, device: torch.device) -> Tensor:
    """A copy on a GPU that is not waited for. Shapes: [N] int64.

    From pinned memory it is queued; from pageable memory the host would wait. Pinning takes
    milliseconds, so the room for it is kept; of two steps the second waits for the first's copy.
    """
    if device not in _staging or len(_staging[device][0]) < len(numbers):
        room = torch.empty(2 * len(numbers), dtype=torch.int64, pin_memory=True)
        _staging[device] = room, torch.cuda.Event()
    room, copied = _staging[device]
    copied.synchronize()
    room = room[: len(numbers)]
    room.copy_(numbers)
    sent = room.to(device, non_blocking=True)
    copied.record(torch.cuda.current_stream(device))
    return sent


@dataclass(frozen=True)
class ShapePlan:
    """The step's shape as host numbers: enough to repeat it with other contents."""

    query_lengths: tuple[int, ...]  # new tokens of each sequence
    context_lengths: tuple[int, ...]  # keys of each sequence, the new ones included
    bucket: int | None = None  # sequences of the captured graph that ran it; None is eager
    # In a captured step of guesses lengths are known to the device alone, by query_starts: no
    # sequence brings more tokens than this. None: each brings what query_lengths says.
    most_queries: int | None = None

    @property
    def is_decode(self) -> bool:
        """Whether every sequence brings exactly one token."""
        return all(length == 1 for length in self.query_lengths)


@dataclass(frozen=True)
class GroupTables:
    """Where the tokens of this step and of its context lie in one cache group."""

    page_table: Tensor  # [B, pages] int64; SCRATCH_PAGE past a sequence's last page
    slots: Tensor  # [T] int64: page * P + offset of each new token


@dataclass(frozen=True)
class Numbers:
    """A step on the host, before any of it is a tensor: the same names, the same order.

    pages, slots: for each cache group, what becomes GroupTables.
    """

    token_ids: Sequence[int]
    positions: Sequence[int]
    declared_lengths: Sequence[int]
    logit_rows: Sequence[int]
    plan: ShapePlan
    pages: Sequence[Sequence[Sequence[int]]]  # [B][pages], each sequence's own number of them
    slots: Sequence[Sequence[int]]
    adapters: Sequence[int] = ()  # of each token; empty where no token has one

    @property
    def query_starts(self) -> list[int]:
        """First token of each sequence, and their number."""
        return [0, *accumulate(self.plan.query_lengths)]


@dataclass(frozen=True)
class LayerCache:
    """One layer's pages: each field [N, P, ...]; the group tells which tables address them.

    page_size: tokens per page, which the fields of a state [N, ...] do not show.
    """

    fields: Mapping[str, Tensor]
    group: int
    page_size: int

    def scales(self, field: str) -> Tensor | None:
        """What the numbers of a field are to be multiplied by, where they have scales."""
        return self.fields.get(scale_name(field))

    def read(self, field: str, slots: Tensor) -> Tensor:
        """What is stored at some slots, as float32 with scales applied. Shapes: [S] -> [S, ...]."""
        places = (slots // self.page_size, slots % self.page_size)
        stored, scales = self.fields[field][places].to(torch.float32), self.scales(field)
        return stored if scales is None else stored * scales[places][..., None]


@dataclass(frozen=True)
class Step:
    """Argument of every forward.

    Without caches the step is self-contained (training, scoring): each sequence attends to its
    own tokens only, and nothing is stored.
    """

    token_ids: Tensor  # [T] int64
    positions: Tensor  # [T] int64
    declared_lengths: Tensor  # [T] int64: longest length that the token's request may reach
    query_starts: Tensor  # [B + 1] int64: first token of each sequence
    context_lengths: Tensor  # [B] int64
    logit_rows: Tensor  # [R] int64: tokens whose logits are wanted
    plan: ShapePlan
    groups: tuple[GroupTables, ...] = ()
    caches: tuple[LayerCache, ...] = ()
    sink: Sink | None = field(default=None, compare=False)
    streams: StreamReader | None = field(default=None, compare=False)  # as served: nothing unfuses
    adapters: Tensor | None = None  # [T] int64: each token's, -1 without one; None: all without
    trains: bool = False  # attention in torch's fused forms, equal to the plain one to rounding
    # Without caches: keys and values by layer, for later layers that have none of their own.
    left: dict[int, tuple[Tensor, Tensor]] = field(
        default_factory=dict[int, tuple[Tensor, Tensor]], compare=False, repr=False
    )

    @property
    def num_tokens(self) -> int:
        """How many tokens pass through the model, T."""
        return len(self.token_ids)

    def tap(self, name: str, value: Tensor, layer: int | None = None) -> Tensor:
        """Hand value to the sink, if there is one; what the sink returns takes its place."""
        if self.sink is None:
            return value
        replaced = self.sink(name, value, layer)
        return value if replaced is None else replaced

    @staticmethod
    def of(
        numbers: Numbers,
        caches: tuple[LayerCache, ...],
        *,
        device: torch.device,
        sink: Sink | None = None,
        streams: StreamReader | None = None,
    ) -> Step:
        """The tensors of a step: parts of one, so that a device gets all by one copy."""
        words = array("q")
        ranges: list[tuple[int, int]] = []

        def put(values: Iterable[int]) -> None:
            start = len(words)
            words.extend(values)  # an array of the same kind is copied at once
            ranges.append((start, len(words)))
            words.extend([0] * (-len(words) % _ALIGNED))

        plan = numbers.plan
        for values in (
            *(numbers.token_ids, numbers.positions, numbers.declared_lengths),
            *(numbers.query_starts, plan.context_lengths, numbers.logit_rows),
            *numbers.slots,
        ):
            put(values)
        widths = [max(map(len, pages)) for pages in numbers.pages]
        for pages, width in zip(numbers.pages, widths, strict=True):
            put(
                page for row in pages for page in chain(row, repeat(SCRATCH_PAGE, width - len(row)))
            )
        put(numbers.adapters)
        whole = torch.frombuffer(words, dtype=torch.int64)
        if device.type == "cuda":
            whole = _staged(whole, device)
        parts = [whole[start:end] for start, end in ranges]
        groups = len(numbers.slots)
        tables = [
            part.view(-1, width) for part, width in zip(parts[6 + groups : -1], widths, strict=True)
        ]
        return Step(
            *parts[:6],
            plan=plan,
            groups=tuple(map(GroupTables, tables, parts[6 : 6 + groups])),
            caches=caches,
            sink=sink,
            streams=streams,
            adapters=parts[-1] if numbers.adapters else None,
        )

    @staticmethod
    def without_cache(
        sequences: Sequence[Sequence[int] | Tensor],
        *,
        device: torch.device | str = "cpu",
        sink: Sink | None = None,
        logit_rows: Tensor | None = None,
        trains: bool = False,
    ) -> Step:
        """A step over whole sequences that stores nothing.

        sequences: token ids of each, as numbers or [T] int64.
        logit_rows: the tokens whose logits are wanted [R]; None for all of them.
        trains: whether attention takes the quick differentiable form.
        """
        lengths = [len(ids) for ids in sequences]
        total = sum(lengths)
        counts = torch.tensor(lengths, dtype=torch.int64).to(device)
        starts = torch.tensor([0, *accumulate(lengths)]).to(device)
        # Numbers of tokens are made where they are wanted: a host's threads take longer than a GPU.
        places = torch.arange(total, device=device)
        behind = starts[:-1].repeat_interleave(counts, output_size=total)
        return Step(
            token_ids=torch.cat(
                [torch.as_tensor(each, dtype=torch.int64) for each in sequences]
            ).to(device),
            positions=places - behind,
            declared_lengths=counts.repeat_interleave(counts, output_size=total),
            query_starts=starts,
            context_lengths=counts,
            logit_rows=places if logit_rows is None else logit_rows,
            plan=ShapePlan(tuple(lengths), tuple(lengths)),
            sink=sink,
            trains=trains,
        )
