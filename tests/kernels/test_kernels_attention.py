"""Plain attention against a formula written out, and paged against contiguous."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from cutaway.core.layout import FULL, Extent, Window
from cutaway.core.step import ShapePlan
from cutaway.kernels.attention import (
    SEGMENT,
    attention,
    naive_paged_attention,
    paged_attention,
)
from cutaway.kernels.store import store


def written_out(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scale: float,
    extent: Extent,
    first: int,
    *,
    cap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """One head and one query at a time."""
    output = torch.zeros_like(query)
    shared = query.shape[1] // key.shape[1]
    for row in range(query.shape[0]):
        position = first + row
        for head in range(query.shape[1]):
            seen = list(range(position + 1))
            if isinstance(extent, Window):
                seen = [s for s in seen if s > position - extent.width or s < extent.sinks]
            scores = key[seen, head // shared] @ query[row, head] * scale
            if cap is not None:
                scores = cap * torch.tanh(scores / cap)
            if sinks is not None:
                scores = torch.cat((scores, sinks[head : head + 1]))
            output[row, head] = scores.softmax(0)[: len(seen)] @ value[seen, head // shared]
    return output


def tensors(
    length: int, heads: int, groups: int, size: int, seed: int = 0
) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = ((length, heads, size), (length, groups, size), (length, groups, size))
    query, key, value = (
        torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes
    )
    return query, key, value


def plan(*lengths: tuple[int, int]) -> ShapePlan:
    return ShapePlan(tuple(q for q, _ in lengths), tuple(k for _, k in lengths))


@pytest.mark.parametrize("heads, groups", [(4, 4), (4, 2), (6, 2), (8, 1)])
@pytest.mark.parametrize("extent", [FULL, Window(3), Window(5, sinks=2)])
def test_j04_attention_equals_the_formula(heads: int, groups: int, extent: Extent) -> None:
    """Cases J04 (which key head serves which query head) and D05 (a window counts the query)."""
    query, key, value = tensors(17, heads, groups, 8)
    ours = attention(query, key, value, plan=plan((17, 17)), softmax_scale=0.3, extent=extent)
    assert torch.allclose(ours, written_out(query, key, value, 0.3, extent, 0), atol=1e-12)


def test_d05_window_of_three_shows_the_last_three_keys() -> None:
    query, key, _ = tensors(5, 1, 1, 4)
    value = torch.eye(5, dtype=torch.float64)[:, None, :]
    weights = attention(
        query,
        key,
        value[..., :4],
        plan=plan((5, 5)),
        softmax_scale=1.0,
        extent=Window(3),
    )
    assert (weights[2, 0] > 0).tolist() == [True, True, True, False]
    assert (weights[4, 0] > 0).tolist() == [False, False, True, True]


def test_sequences_of_one_step_do_not_see_each_other() -> None:
    query, key, value = tensors(12, 4, 2, 8)
    both = attention(query, key, value, plan=plan((5, 5), (7, 7)), softmax_scale=0.2)
    alone = attention(query[5:], key[5:], value[5:], plan=plan((7, 7)), softmax_scale=0.2)
    assert torch.equal(both[5:], alone)


def test_j07_forbidden_keys_have_no_weight_whatever_the_scores() -> None:
    query = torch.full((2, 1, 1), 1000.0, dtype=torch.float64)
    key = torch.tensor([-110.0, 500.0], dtype=torch.float64)[:, None, None]
    value = torch.tensor([1.0, 7.0], dtype=torch.float64)[:, None, None]
    mixed = attention(query, key, value, plan=plan((2, 2)), softmax_scale=1.0)
    assert mixed[0].item() == 1.0


def paged(key: Tensor, value: Tensor, page_size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Keys and values scattered over pages in a shuffled order, with the page table."""
    length = key.shape[0]
    count = math.ceil(length / page_size)
    order = torch.randperm(count, generator=torch.Generator().manual_seed(5)) + 1
    shape = (count + 1, page_size, *key.shape[1:])
    pages = torch.zeros(shape, dtype=key.dtype), torch.zeros(shape, dtype=key.dtype)
    positions = torch.arange(length)
    slots = order[positions // page_size] * page_size + positions % page_size
    store(pages[0], key, slots)
    store(pages[1], value, slots)
    return *pages, order[None]


@pytest.mark.parametrize("extent", [FULL, Window(300, sinks=4)])
@pytest.mark.parametrize("num_queries", [1, 2, 40, 2 * SEGMENT + 37])
def test_paged_equals_contiguous(num_queries: int, extent: Extent) -> None:
    length = 2 * SEGMENT + 37
    query, key, value = tensors(length, 4, 2, 8)
    key_pages, value_pages, table = paged(key, value, 16)
    first = length - num_queries
    ours = paged_attention(
        query[first:],
        key_pages,
        value_pages,
        page_table=table,
        context_lengths=torch.tensor([length]),
        plan=plan((num_queries, length)),
        softmax_scale=0.35,
        extent=extent,
    )
    whole = attention(
        query, key, value, plan=plan((length, length)), softmax_scale=0.35, extent=extent
    )
    assert torch.allclose(ours, whole[first:], atol=1e-12)


@pytest.mark.parametrize("extent", [FULL, Window(300, sinks=4), Window(20)])
@pytest.mark.parametrize(("cap", "has_sinks"), [(None, False), (5.0, True)])
def test_the_naive_form_gives_the_same_to_rounding(
    extent: Extent, cap: float | None, has_sinks: bool
) -> None:
    """A decode and two chunks at once, over more than one segment; pages nobody sees hold NaN."""
    parts = [(1, 300), (40, 2 * SEGMENT + 37), (9, 9)]
    queries, pages, tables, offset = [], [], [], 0
    for seed, (num_queries, length) in enumerate(parts):
        query, key, value = tensors(length, 4, 2, 8, seed=seed)
        key_pages, value_pages, table = paged(key, value, 16)
        value_pages[0] = torch.nan
        if isinstance(extent, Window):
            first = max(0, length - num_queries + 1 - extent.width) // 16
            kept = 1 if extent.sinks else 0
            table[0, kept : max(kept, first)] = 0  # left the window
        queries.append(query[length - num_queries :])
        pages.append((key_pages, value_pages))
        tables.append(table + torch.where(table > 0, offset, 0))
        offset += key_pages.shape[0]
    widest = max(table.shape[1] for table in tables)
    given = {
        "page_table": torch.cat(
            [torch.nn.functional.pad(table, (0, widest - table.shape[1])) for table in tables]
        ),
        "context_lengths": torch.tensor([length for _, length in parts]),
        "plan": plan(*parts),
        "softmax_scale": 0.35,
        "extent": extent,
        "cap": cap,
        "sinks": torch.randn(4, dtype=torch.float64) if has_sinks else None,
    }
    keys, values = (torch.cat(each) for each in zip(*pages, strict=True))
    ours = naive_paged_attention(torch.cat(queries), keys, values, **given)
    assert torch.allclose(
        ours, paged_attention(torch.cat(queries), keys, values, **given), atol=1e-12
    )


def test_decode_of_unequal_contexts_equals_each_alone() -> None:
    lengths = (3, 70, 300)
    parts = [tensors(n, 4, 2, 8, seed=n) for n in lengths]
    pages = [paged(key, value, 16) for _, key, value in parts]
    offsets = [0]
    for key_pages, _, _ in pages[:-1]:
        offsets.append(offsets[-1] + key_pages.shape[0])
    width = max(table.shape[1] for _, _, table in pages)
    tables = torch.zeros(3, width, dtype=torch.int64)
    for row, ((_, _, table), offset) in enumerate(zip(pages, offsets, strict=True)):
        tables[row, : table.shape[1]] = table[0] + offset
    together = paged_attention(
        torch.cat([query[-1:] for query, _, _ in parts]),
        torch.cat([k for k, _, _ in pages]),
        torch.cat([v for _, v, _ in pages]),
        page_table=tables,
        context_lengths=torch.tensor(lengths),
        plan=plan(*((1, n) for n in lengths)),
        softmax_scale=0.35,
    )
    for row, (query, key, value) in enumerate(parts):
        n = lengths[row]
        alone = attention(query, key, value, plan=plan((n, n)), softmax_scale=0.35)[-1]
        assert torch.allclose(together[row], alone, atol=1e-12)


@pytest.mark.parametrize("num_queries", [1, 3])
@pytest.mark.parametrize("extent", [FULL, Window(20)])
def test_what_pages_hold_beside_the_context_never_matters(num_queries: int, extent: Extent) -> None:
    query, key, value = tensors(70, 4, 2, 8)
    key_pages, value_pages, table = paged(key, value, 16)

    def attend() -> Tensor:
        return paged_attention(
            query[70 - num_queries :],
            key_pages,
            value_pages,
            page_table=table,
            context_lengths=torch.tensor([70]),
            plan=plan((num_queries, 70)),
            softmax_scale=0.35,
            extent=extent,
        )

    clean = attend()
    last = int(table[0, -1])
    key_pages[last, 70 % 16 :] = value_pages[last, 70 % 16 :] = torch.nan
    key_pages[0] = value_pages[0] = torch.nan
    if isinstance(extent, Window):  # pages that left the window are the scratch page
        table[0, :2] = 0
    assert torch.equal(attend(), clean)


EXTRAS = {"cap": {"cap": 0.7}, "sinks": {"sinks": torch.tensor([1.0, -2.0, 0.5, 3.0]).double()}}


@pytest.mark.parametrize("extra", [*EXTRAS.values(), EXTRAS["cap"] | EXTRAS["sinks"]])
@pytest.mark.parametrize("extent", [FULL, Window(5)])
def test_j03_caps_and_sinks_equal_the_formula_in_every_form(extra: dict, extent: Extent) -> None:
    """Whole, from pages in a prefill chunk, and from pages one token at a time."""
    length, page_size = 2 * SEGMENT + 9, 8
    query, key, value = tensors(length, 4, 2, 8)
    given = {"softmax_scale": 0.9, "extent": extent, **extra}
    whole = attention(query, key, value, plan=plan((length, length)), **given)
    rows = [3, SEGMENT + 1, length - 1]
    for row in rows:
        expected = written_out(
            query[row : row + 1], key[: row + 1], value[: row + 1], 0.9, extent, row, **extra
        )
        assert torch.allclose(whole[row : row + 1], expected, atol=1e-12)
    pages = [torch.zeros(80, page_size, 2, 8, dtype=torch.float64) for _ in range(2)]
    table = torch.randperm(79, generator=torch.Generator().manual_seed(2))[None, :66] + 1
    slots = (table[0, :, None] * page_size + torch.arange(page_size)).flatten()[:length]
    for stored, values in zip(pages, (key, value), strict=True):
        store(stored, values, slots)
    for count in (1, 20):
        paged = paged_attention(
            query[-count:],
            *pages,
            page_table=table,
            context_lengths=torch.tensor([length]),
            plan=plan((count, length)),
            **given,
        )
        assert torch.allclose(paged, whole[-count:], atol=1e-12)


def test_j03_a_cap_squeezes_scores_as_published() -> None:
    scores = torch.tensor([100.0, 10.0], dtype=torch.float64)
    # Two keys whose products are those scores, and values that show the two weights.
    weights = attention(
        torch.ones(2, 1, 1, dtype=torch.float64),
        scores[:, None, None],
        torch.tensor([[[0.0]], [[1.0]]]).double(),
        plan=plan((2, 2)),
        softmax_scale=1.0,
        cap=50.0,
    )
    expected = torch.sigmoid(torch.tensor(9.8688 - 48.2014, dtype=torch.float64))
    assert weights[1].item() == pytest.approx(expected.item(), rel=1e-4)
