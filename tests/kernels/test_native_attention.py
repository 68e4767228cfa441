"""Attention over pages against the plain twin, and its bits across chunks, mates and threads."""

from __future__ import annotations

import pytest
import torch
from native_cases import ISAS, filled, needs_native, random, random_step, running
from torch import Tensor

from cutaway.core.layout import FULL, Extent, Window
from cutaway.core.step import Step
from cutaway.kernels import native
from cutaway.kernels.attention import paged_attention
from cutaway.kernels.native import library
from cutaway.kernels.native.attention import scoring_struct
from cutaway.kernels.norm import wide_rms_norm
from cutaway.kernels.rotary import rotate
from cutaway.kernels.store import store

pytestmark = needs_native

DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.int8, torch.float8_e4m3fn]
# One, few and many tokens, across the border at 256; three and four are two tiles of nine heads.
CHUNKS = ((0, 1), (0, 255), (250, 258), (255, 257), (254, 257), (400, 404), (300, 560), (559, 560))
SHAPES = [(9, 3, 64), (4, 4, 16), (8, 1, 128), (6, 2, 20), (2, 1, 256), (5, 5, 1)]


def pages_of(
    num_groups: int, head_size: int, *, dtype: torch.dtype, num_pages: int, page_size: int = 16
) -> native.Pages:
    shape = (num_pages, page_size, num_groups, head_size)
    return filled(random(*shape, seed=1), random(*shape, seed=2), dtype)


def attend(
    query: Tensor, pages: native.Pages, step: Step, scoring: native.NativeScoring | None = None
) -> Tensor:
    out = torch.full_like(query, torch.nan)
    operation = native.attend(query, pages, out=out, scoring=scoring or native.NativeScoring(0.3))
    native.run(operation, native.NativeStep.of(step))
    return out


def expected(
    query: Tensor, pages: native.Pages, step: Step, scoring: native.NativeScoring | None = None
) -> Tensor:
    """The plain twin in float64, over pages whose unused entries do not matter."""
    scoring = scoring or native.NativeScoring(0.3)
    return paged_attention(
        query.double(),
        pages.keys,
        pages.values,
        page_table=step.groups[0].page_table,
        context_lengths=step.context_lengths,
        plan=step.plan,
        softmax_scale=scoring.softmax_scale,
        extent=extent_of(scoring),
        cap=scoring.cap,
        sinks=None if scoring.sinks is None else scoring.sinks.double(),
        key_scales=pages.key_scales,
        value_scales=pages.value_scales,
    )


def extent_of(scoring: native.NativeScoring) -> Extent:
    return FULL if scoring.window is None else Window(scoring.window, scoring.num_first)


def write(pages: native.Pages, keys: Tensor, values: Tensor, slots: Tensor) -> None:
    """What the plain twin stores."""
    store(pages.keys, keys, slots, scales=pages.key_scales)
    store(pages.values, values, slots, scales=pages.value_scales)


def held(pages: native.Pages) -> list[Tensor]:
    return [each for each in pages.tensors if each is not None]


def assert_same(ours: native.Pages, theirs: native.Pages) -> None:
    assert all(torch.equal(a, b) for a, b in zip(held(ours), held(theirs), strict=True))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("heads", "groups", "size"), SHAPES)
def test_attention_is_that_of_the_plain_twin(
    isa: str, dtype: torch.dtype, heads: int, groups: int, size: int
) -> None:
    pages = pages_of(groups, size, dtype=dtype, num_pages=120)
    queries, contexts = [1, 3, 40, 1, 9], [1, 300, 270, 513, 9]
    step = random_step(queries, contexts, page_size=16, num_pages=120)
    query = random(sum(queries), heads, size, seed=3)
    with running(isa, threads=2):
        found = attend(query, pages, step)
    # Scores reach 20, so their last bits move weights by 1e-6 of themselves.
    torch.testing.assert_close(found.double(), expected(query, pages, step), rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("length", [1, 30])
@pytest.mark.parametrize("page_size", [1, 8, 48, 256, 512])
def test_any_page_size_gives_the_same_bits(page_size: int, length: int, dtype: torch.dtype) -> None:
    context = 700
    keys, values = random(context, 2, 32, seed=4), random(context, 2, 32, seed=5)
    query = random(length, 4, 32, seed=6)
    found = []
    for size in (16, page_size):
        step = random_step([length], [context], page_size=size, num_pages=-(-context // size) + 3)
        pages = pages_of(
            2,
            32,
            dtype=dtype,
            num_pages=len(step.groups[0].page_table[0]) + 3,
            page_size=size,
        )
        table = step.groups[0].page_table[0]
        slots = [int(table[p // size]) * size + p % size for p in range(context)]
        write(pages, keys, values, torch.tensor(slots))
        found.append(attend(query, pages, step))
    assert torch.equal(*found)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("window", [None, 100, 256], ids=str)
@pytest.mark.parametrize("num_first", [0, 7])
def test_query_has_the_same_bits_in_any_chunk_and_beside_any_mates(
    dtype: torch.dtype, threads: int, window: int | None, num_first: int
) -> None:
    sinks = random(9, seed=21) if num_first else None
    scoring = native.NativeScoring(0.3, window=window, num_first=num_first, sinks=sinks)
    context, mates = 560, [(1, 40), (70, 310)]
    pages = pages_of(3, 64, dtype=dtype, num_pages=80)
    whole = random_step([context], [context], page_size=16, num_pages=80)
    query = random(context, 9, 64, seed=7)
    with running(threads=1):
        wanted = attend(query, pages, whole, scoring)
    table = whole.groups[0].page_table
    with running(threads=threads):
        for first, last in CHUNKS:
            step = random_step([last - first], [last], page_size=16, num_pages=80)
            step.groups[0].page_table[0, :] = table[0, : step.groups[0].page_table.shape[1]]
            assert torch.equal(attend(query[first:last], pages, step, scoring), wanted[first:last])
            # The same chunk between two other sequences.
            queries = [mates[0][0], last - first, mates[1][0]]
            contexts = [mates[0][1], last, mates[1][1]]
            step = random_step(queries, contexts, page_size=16, num_pages=80)
            used = -(-last // 16)
            step.groups[0].page_table[1, :used] = table[0, :used]
            rows = torch.cat(
                (random(queries[0], 9, 64), query[first:last], random(queries[2], 9, 64))
            )
            found = attend(rows, pages, step, scoring)[queries[0] : queries[0] + last - first]
            assert torch.equal(found, wanted[first:last])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("cap", [None, 5.0])
def test_all_instruction_sets_give_the_same_bits(dtype: torch.dtype, cap: float | None) -> None:
    scoring = native.NativeScoring(0.3, cap=cap, window=300, num_first=9, sinks=random(6, seed=22))
    pages = pages_of(2, 80, dtype=dtype, num_pages=70)
    step = random_step([1, 90, 4], [600, 90, 259], page_size=16, num_pages=70)
    query = random(95, 6, 80, seed=8)
    with running("portable"):
        wanted = attend(query, pages, step, scoring)
    for isa in library.isas():
        with running(isa, threads=2):
            assert torch.equal(attend(query, pages, step, scoring), wanted), isa


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("half", [0, 5, 16, 32])
def test_rotation_is_bit_for_bit_that_of_the_plain_twin(isa: str, half: int) -> None:
    x = random(7, 15, 64, seed=9)
    cos, sin = random(40, half, seed=10), random(40, half, seed=11)
    step = random_step([3, 4], [9, 30], page_size=16, num_pages=20)
    for is_by_token in (False, True):
        rotation = native.Rotation(cos, sin, is_by_token)
        rows = torch.arange(7) if is_by_token else step.positions
        out = torch.empty(7, 9, 64)
        with running(isa, threads=2):
            operation = native.rotate(x[:, :9], rotation, out=out)
            native.run(operation, native.NativeStep.of(step))
        assert torch.equal(out, rotate(x[:, :9], cos[rows], sin[rows]))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("page_size", [5, 16, 48])
@pytest.mark.parametrize("isa", ISAS)
def test_store_writes_what_the_plain_twin_writes(
    isa: str, page_size: int, dtype: torch.dtype
) -> None:
    pages, twin = (
        pages_of(3, 20, dtype=dtype, num_pages=60, page_size=page_size) for _ in range(2)
    )
    # The long one begins and ends within a page, and fills whole ones on both threads.
    step = random_step([3, 90, 1], [9, 107, 17], page_size=page_size, num_pages=60)
    heads = random(94, 12, 20, seed=12) * 100
    with running(isa, threads=2):
        native.run(native.store(heads[:, 6:9], heads[:, 9:], pages), native.NativeStep.of(step))
    write(twin, heads[:, 6:9], heads[:, 9:], step.groups[0].slots)
    assert_same(pages, twin)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("has_norms", [False, True])
@pytest.mark.parametrize("queries", [[1], [1, 1, 1], [1, 40, 3]], ids=str)
def test_fused_attention_is_its_three_parts(
    dtype: torch.dtype, has_norms: bool, queries: list[int]
) -> None:
    contexts = [300, 41, 515][: len(queries)]
    step = random_step(queries, contexts, page_size=16, num_pages=70)
    count = sum(queries)
    qkv = random(count, 15 * 64, seed=13)
    rotation = native.Rotation(random(600, 32, seed=14), random(600, 32, seed=15))
    norms = [
        native.NormWeights(random(64, seed=16 + i), 1e-6) if has_norms else None for i in (0, 1)
    ]
    pages, apart = (pages_of(3, 64, dtype=dtype, num_pages=70) for _ in range(2))
    out = torch.full((count, 9 * 64), torch.nan)
    now = native.NativeStep.of(step)
    with running(threads=2):
        fused = native.attention(
            qkv,
            pages,
            num_heads=9,
            rotation=rotation,
            out=out,
            scoring=native.NativeScoring(0.125),
            query_norm=norms[0],
            key_norm=norms[1],
        )
        native.run(fused, now)
        heads = qkv.view(count, 15, 64)
        query, key = torch.empty(count, 9, 64), torch.empty(count, 3, 64)
        native.run(native.rotate(heads[:, :9], rotation, out=query, norm=norms[0]), now)
        native.run(native.rotate(heads[:, 9:12], rotation, out=key, norm=norms[1]), now)
        native.run(native.store(key, heads[:, 12:], apart), now)
        wanted = attend(query, apart, step, native.NativeScoring(0.125))
    assert_same(pages, apart)
    assert torch.equal(out, wanted.flatten(1))


def test_what_is_not_finite_stays_in_its_sequence() -> None:
    pages = pages_of(2, 16, dtype=torch.float32, num_pages=20)
    step = random_step([20, 3], [20, 3], page_size=16, num_pages=20)
    query = random(23, 4, 16)
    clean = attend(query, pages, step)
    slot = int(step.groups[0].slots[10])
    pages.values[slot // 16, slot % 16] = torch.nan
    found = attend(query, pages, step)
    assert torch.equal(found[:10], clean[:10]) and torch.equal(found[20:], clean[20:])
    assert found[10:20].isnan().all()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("window", [1, 20, 256, 300])
@pytest.mark.parametrize("cap", [None, 3.0])
def test_windows_and_caps_are_those_of_the_plain_twin(
    isa: str, window: int, cap: float | None
) -> None:
    scoring = native.NativeScoring(0.3, cap=cap, window=window)
    pages = pages_of(2, 64, dtype=torch.float16, num_pages=140)
    queries, contexts = [1, 3, 40, 1, 400], [1, 300, 270, 513, 600]
    step = random_step(queries, contexts, page_size=16, num_pages=140)
    query = random(sum(queries), 4, 64, seed=3)
    with running(isa, threads=2):
        found = attend(query, pages, step, scoring)
    wanted = expected(query, pages, step, scoring)
    torch.testing.assert_close(found.double(), wanted, rtol=1e-4, atol=5e-5)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("window", [None, 3, 256, 300])
@pytest.mark.parametrize("num_first", [0, 5, 280])
@pytest.mark.parametrize("has_sinks", [False, True])
def test_sinks_and_first_keys_are_those_of_the_plain_twin(
    isa: str, window: int | None, num_first: int, has_sinks: bool
) -> None:
    sinks = 3 * random(6, seed=20) if has_sinks else None
    scoring = native.NativeScoring(0.3, window=window, num_first=num_first, sinks=sinks)
    pages = pages_of(2, 64, dtype=torch.float16, num_pages=180)
    # Chunks across the borders of blocks, windows and first keys, and one far behind them all.
    queries, contexts = [1, 3, 40, 8, 72, 1], [1, 300, 270, 903, 310, 290]
    step = random_step(queries, contexts, page_size=16, num_pages=180)
    query = random(sum(queries), 6, 64, seed=3)
    with running(isa, threads=2):
        found = attend(query, pages, step, scoring)
    wanted = expected(query, pages, step, scoring)
    torch.testing.assert_close(found.double(), wanted, rtol=1e-4, atol=5e-5)


def test_norms_of_every_head_and_values_are_those_of_the_parts() -> None:
    """Nothing turns here: what is told apart from the fused form has heads that lie apart too."""
    step = random_step([1, 30], [40, 290], page_size=16, num_pages=50)
    now, scoring = native.NativeStep.of(step), native.NativeScoring(0.125, sinks=random(4, seed=1))
    pages, apart = (pages_of(2, 32, dtype=torch.float32, num_pages=50) for _ in range(2))
    norms = [native.NormWeights(random(32, seed=2), 1e-6), None, native.NormWeights(None, 1e-5)]
    qkv, out = random(31, 8, 32, seed=3), torch.empty(31, 4 * 32)
    operation = native.attention(
        qkv.flatten(1),
        pages,
        num_heads=4,
        rotation=None,
        out=out,
        scoring=scoring,
        query_norm=norms[0],
        key_norm=norms[1],
        value_norm=norms[2],
    )
    native.run(operation, now)
    strewn = torch.full((31, 16, 40), torch.nan)
    strewn[:, ::2, :32] = qkv
    query, key, value = (torch.empty(31, n, 32) for n in (4, 2, 2))
    for first, norm, heads in zip((0, 8, 12), norms, (query, key, value), strict=True):
        from_these = strewn[:, first : first + 2 * heads.shape[1] : 2, :32]
        native.run(native.rotate(from_these, None, out=heads, norm=norm), now)
    native.run(native.store(key, value, apart), now)
    assert_same(pages, apart)
    assert torch.equal(out, attend(query, apart, step, scoring).flatten(1))
    torch.testing.assert_close(value, wide_rms_norm(qkv[:, 6:], None, 1e-5))


@pytest.mark.parametrize("queries", [1, 5, 40])
def test_keys_before_the_window_never_matter(queries: int) -> None:
    """Pages that left the window are the scratch page, which may hold anything."""
    scoring = native.NativeScoring(0.3, window=30)
    pages = pages_of(2, 32, dtype=torch.float32, num_pages=50)
    step = random_step([queries], [600], page_size=16, num_pages=50)
    query = random(queries, 4, 32, seed=4)
    clean = attend(query, pages, step, scoring)
    seen_from = 600 - queries - 29
    pages.keys[0] = pages.values[0] = torch.nan
    step.groups[0].page_table[0, : seen_from // 16] = 0
    assert torch.equal(attend(query, pages, step, scoring), clean)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_plain_twin_reads_and_writes_pages_in_the_order_of_the_kernels(dtype: torch.dtype) -> None:
    """A step that somebody watches runs in torch over the same pages."""
    pages = pages_of(2, 32, dtype=dtype, num_pages=50)
    order = [None if each is None else each.contiguous() for each in pages.tensors]
    plain = native.Pages(order[0], order[1], 0, order[2], order[3])
    step = random_step([1, 30], [100, 290], page_size=16, num_pages=50)
    query, entries = random(31, 4, 32, seed=3), random(31, 4, 32, seed=4)
    for each in (pages, plain):
        write(each, entries[:, :2], entries[:, 2:], step.groups[0].slots)
    assert_same(pages, plain)
    assert torch.equal(expected(query, pages, step), expected(query, plain, step))


@pytest.mark.parametrize("keys", [2**31 + 1, 10**12, 2**63 - 1])
def test_a_window_wider_than_any_sequence_is_taken(keys: int) -> None:
    """A look at `window=999999999999999999` raised where the library refused the size."""
    scoring = native.NativeScoring(1.0, window=keys, num_first=keys)
    wide = scoring_struct(scoring, 4)
    assert wide.window == wide.num_first == 2**31
