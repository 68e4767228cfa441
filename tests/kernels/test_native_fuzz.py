"""Random shapes, strides, lengths and page tables: nothing is read or written out of bounds.

Each buffer is as large as it must be and no larger, so that a build with the address sanitizer sees
one step beyond; test_native_sanitized.py runs this file against such a build.
"""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from native_cases import (
    FLOAT_KINDS,
    INTEGER_KINDS,
    KINDS,
    filled,
    needs_native,
    packed,
    random,
    running,
)
from torch import Tensor

from cutaway.core.step import GroupTables, ShapePlan, Step
from cutaway.kernels import native
from cutaway.kernels.native import library
from cutaway.kernels.native.pages import PAGE_DTYPES

pytestmark = needs_native

ISAS = st.deferred(lambda: st.sampled_from(library.isas()))
THREADS = st.integers(1, 3)
COUNTS = st.integers(1, 40)
# Of a head: whole registers are read where they lie, others are laid out.
SIZES = st.one_of(st.integers(1, 70), st.sampled_from((16, 32, 64, 80)))


def spaced(rows: int, *shape: int, gap: int) -> Tensor:
    """Rows that lie gap numbers apart, the last one at the very end of its memory."""
    size = int(torch.tensor(shape).prod())
    memory = random((rows - 1) * (size + gap) + size)
    strides = [size + gap]
    for index in range(len(shape)):
        strides.append(int(torch.tensor(shape[index + 1 :]).prod()) if shape[index + 1 :] else 1)
    return memory.as_strided((rows, *shape), strides)


@settings(max_examples=60)
@given(data=st.data(), isa=ISAS, threads=THREADS, count=COUNTS)
def test_linear_and_gated_stay_in_their_buffers(
    data: st.DataObject, isa: str, threads: int, count: int
) -> None:
    is_integer = data.draw(st.booleans())
    columns = data.draw(st.integers(1, 40)) * 32 if is_integer else data.draw(st.integers(1, 300))
    kinds = st.sampled_from(KINDS if is_integer else FLOAT_KINDS)
    shapes = data.draw(st.lists(st.tuples(kinds, st.integers(1, 70)), min_size=1, max_size=4))
    weights = [packed(kind, rows, columns) for kind, rows in shapes]
    width = sum(rows for _, rows in shapes)
    norm = native.NormWeights(random(columns), 1e-5) if data.draw(st.booleans()) else None
    biases = [random(rows) if data.draw(st.booleans()) else None for _, rows in shapes]
    residual = random(count, width) if data.draw(st.booleans()) else None
    x, out = random(count, columns), torch.empty(count, width)
    pair = INTEGER_KINDS if is_integer else FLOAT_KINDS
    gate, up = (packed(data.draw(st.sampled_from(pair)), shapes[0][1], columns) for _ in "ab")
    product = torch.empty(count, shapes[0][1])
    step = native.NativeStep.of_rows(count)
    with running(isa, threads):
        operation = native.linear(x, weights, out=out, norm=norm, biases=biases, residual=residual)
        native.run(operation, step)
        native.run(native.multiply_gate(x, gate, up, out=product, norm=norm), step)
    assert out.isfinite().all() and product.isfinite().all()


@settings(max_examples=30)
@given(data=st.data(), isa=ISAS, threads=THREADS, count=COUNTS, width=st.integers(1, 100))
def test_rows_stay_in_their_buffers(
    data: st.DataObject, isa: str, threads: int, count: int, width: int
) -> None:
    x, weight, out = random(count, width), random(width), torch.empty(count, width)
    gaps = data.draw(st.tuples(st.integers(0, 5), st.integers(0, 5)))
    gate, up = spaced(count, width, gap=gaps[0]), spaced(count, width, gap=gaps[1])
    kind = data.draw(st.sampled_from((native.NormKind.RMS, native.NormKind.LAYER)))
    temperature, top_k = data.draw(st.floats(0, 5)), data.draw(st.integers(0, 2 * width))
    rest, u = data.draw(st.integers(-1, 2**32)), data.draw(st.integers(0, 2**32 - 1))
    watched = data.draw(st.integers(-1, width - 1))
    choice = native.RowChoice(temperature, data.draw(st.floats(0, 2**30)), top_k, rest, u, watched)
    step = native.NativeStep.of_rows(count)
    with running(isa, threads):
        native.run(native.norm(x, weight, 1e-5, out=out, bias=weight, kind=kind), step)
        native.run(native.gate(gate, up, out=out), step)
        drawn = native.RowSampler(x).run({count - 1: x[0].clone()}, [choice] * count)
    assert all(0 <= each.token_id < width for each in drawn)


@settings(max_examples=40)
@given(data=st.data(), isa=ISAS, threads=THREADS, count=COUNTS)
def test_experts_stay_in_their_buffers(
    data: st.DataObject, isa: str, threads: int, count: int
) -> None:
    is_integer = data.draw(st.booleans())
    sizes = st.integers(1, 5).map(lambda n: 32 * n) if is_integer else st.integers(1, 70)
    width, inner = data.draw(sizes), data.draw(sizes)
    kinds = st.sampled_from(INTEGER_KINDS if is_integer else FLOAT_KINDS)
    num_experts = data.draw(st.integers(1, 9))
    chosen = data.draw(st.integers(1, num_experts))
    shapes = ((2 * inner, width), (width, inner))
    stacks = [
        native.WeightStack.of([packed(kind, *shape, seed=i) for i in range(num_experts)])
        for kind, shape in zip((data.draw(kinds), data.draw(kinds)), shapes, strict=True)
    ]
    biases = tuple(random(num_experts, rows) for rows, _ in shapes)
    ids, weights = torch.empty(count, chosen, dtype=torch.int64), torch.empty(count, chosen)
    scores, out = random(count, num_experts), torch.empty(count, width)
    rule = data.draw(st.sampled_from(native.RoutingRule))
    step = native.NativeStep.of_rows(count)
    with running(isa, threads):
        routing = native.Routing(rule, chosen, is_renormalized=True)
        native.run(native.route(scores, routing, ids=ids, weights=weights), step)
        operation = native.experts(
            random(count, width),
            *stacks,
            ids=ids,
            weights=weights,
            out=out,
            biases=(biases[0], biases[1]) if data.draw(st.booleans()) else None,
            norm=native.NormWeights(random(width), 1e-5) if data.draw(st.booleans()) else None,
            is_interleaved=data.draw(st.booleans()),
        )
        native.run(operation, step)
    assert 0 <= int(ids.min()) and int(ids.max()) < num_experts
    assert weights.isfinite().all() and out.isfinite().all()


@settings(max_examples=60)
@given(data=st.data(), isa=ISAS, threads=THREADS)
def test_attention_stays_in_its_pages(data: st.DataObject, isa: str, threads: int) -> None:
    groups = data.draw(st.integers(1, 4))
    heads, size = groups * data.draw(st.integers(1, 4)), data.draw(SIZES)
    half = data.draw(st.integers(0, size // 2))
    page_size = data.draw(st.sampled_from((1, 3, 8, 16, 64)))
    queries = data.draw(st.lists(st.integers(1, 40), min_size=1, max_size=4))
    contexts = [n + data.draw(st.integers(0, 300)) for n in queries]
    dtype = data.draw(st.sampled_from(sorted(PAGE_DTYPES, key=str)))
    window = data.draw(st.one_of(st.none(), st.integers(1, 350)))
    scoring = native.NativeScoring(
        0.1,
        cap=data.draw(st.sampled_from((None, 5.0))),
        window=window,
        num_first=data.draw(st.sampled_from((0, 4, 290))),
        sinks=data.draw(st.sampled_from((None, random(heads)))),
    )
    used = [-(-context // page_size) for context in contexts]
    order = torch.randperm(sum(used), generator=torch.Generator().manual_seed(len(used)))
    # The last page of the pool is in use: beyond it is nothing.
    shape = (sum(used), page_size, groups, size)
    pages = filled(random(*shape, seed=1), random(*shape, seed=2), dtype)
    step = step_over(queries, contexts, order, used, page_size)
    count = sum(queries)
    positions = max(contexts)
    rotation = native.Rotation(random(positions, half), random(positions, half))
    qkv = random(count, (heads + 2 * groups) * size)
    out = torch.empty(count, heads * size)
    now = native.NativeStep.of(step)
    gap = data.draw(st.integers(0, 5))
    key, value = (spaced(count, groups, size, gap=gap) for _ in "kv")
    query, turned = spaced(count, heads, size, gap=gap), spaced(count, heads, size, gap=gap)
    with running(isa, threads):
        fused = native.attention(
            qkv, pages, num_heads=heads, rotation=rotation, out=out, scoring=scoring
        )
        native.run(fused, now)
        native.run(native.store(key, value, pages), now)
        native.run(native.rotate(query, rotation, out=turned), now)
        native.run(native.attend(turned, pages, out=out, scoring=scoring), now)
    assert out.isfinite().all()


def step_over(
    queries: list[int], contexts: list[int], order: Tensor, used: list[int], page_size: int
) -> Step:
    table = torch.full((len(queries), max(used)), -1)
    free = order
    slots: list[int] = []
    positions: list[int] = []
    for row, (count, context) in enumerate(zip(queries, contexts, strict=True)):
        table[row, : used[row]], free = free[: used[row]], free[used[row] :]
        for position in range(context - count, context):
            positions.append(position)
            slots.append(int(table[row, position // page_size]) * page_size + position % page_size)
    starts = torch.tensor([0, *torch.tensor(queries).cumsum(0).tolist()])
    return Step(
        token_ids=torch.zeros(len(slots), dtype=torch.int64),
        positions=torch.tensor(positions),
        declared_lengths=torch.tensor(positions) + 1,
        query_starts=starts,
        context_lengths=torch.tensor(contexts),
        logit_rows=starts[1:] - 1,
        plan=ShapePlan(tuple(queries), tuple(contexts)),
        groups=(GroupTables(table, torch.tensor(slots)),),
    )


@settings(max_examples=40)
@given(data=st.data(), rows=st.integers(1, 60), threads=THREADS)
def test_packing_and_rows_stay_in_their_buffers(
    data: st.DataObject, rows: int, threads: int
) -> None:
    kind = data.draw(st.sampled_from(KINDS))
    columns = data.draw(st.integers(1, 10)) * 32 if kind.is_integer else data.draw(COUNTS)
    with running(threads=threads):
        weight = packed(kind, rows, columns)
        dense = weight.dense()
        ids = torch.randint(0, rows, (data.draw(COUNTS),))
        out = torch.empty(len(ids), columns)
        step = native.NativeStep.of_rows(len(ids))
        step.struct.token_ids = ids.data_ptr()
        native.run(native.gather(weight, out=out), step)
    assert torch.equal(out, dense[ids])


@settings(max_examples=60)
@given(data=st.data())
def test_a_broken_step_is_refused_and_never_followed(data: st.DataObject) -> None:
    """Any of a step's numbers may be wrong: either it is within bounds, or nothing runs."""
    pages = native.Pages.of(torch.zeros(5, 16, 1, 8), torch.zeros(5, 16, 1, 8))
    step = step_over([1, 3], [20, 40], torch.arange(5), [2, 3], 16)
    name = data.draw(
        st.sampled_from(("query_starts", "context_lengths", "positions", "table", "slots"))
    )
    tables = {"table": step.groups[0].page_table, "slots": step.groups[0].slots}
    tensor = tables[name] if name in tables else getattr(step, name)
    flat = tensor.view(-1)
    wild = st.one_of(st.integers(-3, 90), st.sampled_from((1 << 62, -(1 << 62), 1 << 31)))
    flat[data.draw(st.integers(0, len(flat) - 1))] = data.draw(wild)
    qkv, out = random(4, 3 * 8), torch.empty(4, 8)
    rotation = native.Rotation(random(40, 4), random(40, 4))
    operation = native.attention(
        qkv, pages, num_heads=1, rotation=rotation, out=out, scoring=native.NativeScoring(1.0)
    )
    try:
        native.run(operation, native.NativeStep.of(step))
    except AssertionError as refusal:
        assert str(refusal)
