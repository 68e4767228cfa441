"""What the tests of native kernels share: instruction sets, threads, packed weights and steps."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor

from cutaway.core.step import GroupTables, ShapePlan, Step
from cutaway.kernels import native
from cutaway.kernels.native import library
from cutaway.kernels.store import scale_rows

needs_native = pytest.mark.skipif(not native.is_available(), reason=library.why_missing())

ISAS = ("avx512_vnni", "avx512", "avx2", "neon", "portable")
INTEGER_KINDS = (
    native.Kind.Q8,
    native.Kind.Q4,
    native.Kind.Q4_AFFINE,
    native.Kind.Q8_AFFINE,
    native.Kind.Q8_HALVES,
    native.Kind.Q4_HALVES,
)
FLOAT_KINDS = (native.Kind.F32, native.Kind.F16, native.Kind.BF16)
KINDS = (*INTEGER_KINDS, *FLOAT_KINDS)


@contextmanager
def running(isa: str | None = None, threads: int = 1) -> Iterator[None]:
    """Run on one instruction set and so many threads; skip what this CPU lacks."""
    if isa is not None and isa not in library.isas():
        pytest.skip(f"this CPU, or this build, has no {isa}")
    before = library.isa(), library.num_threads()
    try:
        if isa is not None:
            library.use_isa(isa)
        library.set_num_threads(threads, spin_seconds=0.001)
        yield
    finally:
        library.use_isa(before[0])
        library.set_num_threads(before[1])


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def q4_0_blocks(rows: int, columns: int, seed: int = 0) -> bytes:
    """Q4_0 blocks with random nibbles and scales near 0.1."""
    generator = torch.Generator().manual_seed(seed)
    count = rows * columns // 32
    scales = torch.rand(count, 1, generator=generator) * 0.2 - 0.1
    nibbles = torch.randint(0, 256, (count, 16), generator=generator, dtype=torch.uint8)
    return torch.cat((scales.half().view(torch.uint8), nibbles), dim=1).numpy().tobytes()


def random_groups(kind: native.Kind, rows: int, columns: int, seed: int = 0) -> native.Groups:
    """Integers over the whole range of a kind; scales and offsets that float16 holds."""
    generator = torch.Generator().manual_seed(seed)
    low, high = (-128, 128) if kind.has_bytes else (0, 16)
    quants = torch.randint(low, high, (rows, columns), generator=generator)
    shape = (rows, columns // kind.scale_columns)
    scales = torch.rand(shape, generator=generator) * 0.2 - 0.1
    offsets = torch.randn(shape, generator=generator).half().float()
    quants = quants.to(torch.int8 if kind.has_bytes else torch.uint8)
    return native.Groups(quants, scales.half().float(), offsets if kind.is_affine else None)


def packed(kind: native.Kind, rows: int, columns: int, seed: int = 0) -> native.PackedWeight:
    if kind is native.Kind.Q4:
        blocks = q4_0_blocks(rows, columns, seed)
        return native.PackedWeight.from_blocks(blocks, "Q4_0", shape=(rows, columns))
    if kind > native.Kind.Q4_AFFINE:
        weight = native.PackedWeight.from_groups(
            kind, [random_groups(kind, rows, columns, seed)], shape=(rows, columns)
        )
        assert weight is not None
        return weight
    return native.PackedWeight.from_matrix(random(rows, columns, seed=seed), kind)


def rounded(x: Tensor) -> Tensor:
    """Activations as integer weights see them: int8 in groups of 32, in float64."""
    groups = x.unflatten(-1, (-1, 32))
    largest = groups.abs().amax(-1, keepdim=True)
    inverse = torch.where(largest > 0, 127.0 / largest, torch.zeros(()))
    quants = (groups * inverse).round()
    return (quants.double() * (largest / 127.0).double()).flatten(-2)


def filled(keys: Tensor, values: Tensor, dtype: torch.dtype) -> native.Pages:
    """Pages [N, P, G, C] that hold these numbers in a dtype."""
    if dtype.itemsize > 1:
        return native.Pages.of(keys.to(dtype), values.to(dtype))
    (keys, key_scales), (values, value_scales) = scale_rows(keys, dtype), scale_rows(values, dtype)
    return native.Pages.of(keys, values, key_scales=key_scales, value_scales=value_scales)


def random_step(
    queries: list[int], contexts: list[int], *, page_size: int, num_pages: int, seed: int = 0
) -> Step:
    """A step over strewn pages, none shared, with entries past the last page out of any pool."""
    generator = torch.Generator().manual_seed(seed)
    width = max(-(-context // page_size) for context in contexts) + 2
    free = torch.randperm(num_pages - 1, generator=generator) + 1
    table = torch.full((len(queries), width), 1 << 40)
    slots: list[int] = []
    positions: list[int] = []
    for row, (count, context) in enumerate(zip(queries, contexts, strict=True)):
        used = -(-context // page_size)
        table[row, :used], free = free[:used], free[used:]
        for position in range(context - count, context):
            positions.append(position)
            slots.append(int(table[row, position // page_size]) * page_size + position % page_size)
    starts = torch.tensor([0, *torch.tensor(queries).cumsum(0).tolist()])
    return Step(
        token_ids=torch.randint(0, 50, (len(slots),), generator=generator),
        positions=torch.tensor(positions),
        declared_lengths=torch.tensor(positions) + 1,
        query_starts=starts,
        context_lengths=torch.tensor(contexts),
        logit_rows=starts[1:] - 1,
        plan=ShapePlan(tuple(queries), tuple(contexts)),
        groups=(GroupTables(table, torch.tensor(slots)),),
    )
