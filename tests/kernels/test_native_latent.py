"""Native latent attention and its maps by head against the plain forms, and their bits."""

from __future__ import annotations

import pytest
import torch
from native_cases import ISAS, KINDS, needs_native, packed, random, random_step, rounded, running
from torch import Tensor

from cutaway.core.step import Step
from cutaway.kernels import native
from cutaway.kernels.attention import paged_latent_attention
from cutaway.kernels.native import library
from cutaway.kernels.rotary import rotate_neighbours
from cutaway.kernels.store import scale_rows, store

pytestmark = needs_native

DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.int8, torch.float8_e4m3fn]


def pages_of(
    dtype: torch.dtype, *, rank: int, rotary_size: int, num_pages: int, page_size: int
) -> native.LatentPages:
    latent, rotary = (
        random(num_pages, page_size, width, seed=i) for i, width in enumerate((rank, rotary_size))
    )
    if dtype.itemsize > 1:
        return native.LatentPages(latent.to(dtype), rotary.to(dtype))
    (latent, first), (rotary, second) = scale_rows(latent, dtype), scale_rows(rotary, dtype)
    return native.LatentPages(latent, rotary, 0, first, second)


def attend(query: Tensor, pages: native.LatentPages, step: Step) -> Tensor:
    out = torch.full((*query.shape[:2], pages.latent.shape[2]), torch.nan)
    operation = native.attend_latent(query, pages, out=out, scoring=native.NativeScoring(0.1))
    native.run(operation, native.NativeStep.of(step))
    return out


def expected(query: Tensor, pages: native.LatentPages, step: Step) -> Tensor:
    return paged_latent_attention(
        query.double(),
        pages.latent,
        pages.rotary,
        page_table=step.groups[0].page_table,
        context_lengths=step.context_lengths,
        plan=step.plan,
        softmax_scale=0.1,
        latent_scales=pages.latent_scales,
        rotary_scales=pages.rotary_scales,
    )


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("heads", "rank", "rotary_size"), [(4, 32, 16), (17, 20, 6), (48, 130, 10), (1, 3, 1)]
)
def test_latent_attention_is_that_of_the_plain_twin(
    isa: str, dtype: torch.dtype, heads: int, rank: int, rotary_size: int
) -> None:
    pages = pages_of(dtype, rank=rank, rotary_size=rotary_size, num_pages=120, page_size=16)
    queries, contexts = [1, 3, 40, 1, 9], [1, 300, 270, 513, 9]
    step = random_step(queries, contexts, page_size=16, num_pages=120)
    query = random(sum(queries), heads, rank + rotary_size, seed=3)
    with running(isa, threads=2):
        found = attend(query, pages, step)
    torch.testing.assert_close(found.double(), expected(query, pages, step), rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_query_has_the_same_bits_in_any_chunk_on_any_instruction_set(dtype: torch.dtype) -> None:
    context = 560
    pages = pages_of(dtype, rank=40, rotary_size=8, num_pages=80, page_size=8)
    whole = random_step([context], [context], page_size=8, num_pages=80)
    query = random(context, 6, 48, seed=7)
    with running("portable"):
        wanted = attend(query, pages, whole)
    table = whole.groups[0].page_table
    for isa in library.isas():
        with running(isa, threads=2):
            for first, last in ((0, 1), (250, 258), (255, 300), (559, 560)):
                step = random_step([last - first], [last], page_size=8, num_pages=80)
                step.groups[0].page_table[0, :] = table[0, : step.groups[0].page_table.shape[1]]
                assert torch.equal(attend(query[first:last], pages, step), wanted[first:last]), isa


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rows_are_stored_as_the_plain_twin_stores_them(dtype: torch.dtype) -> None:
    ours, twin = (
        pages_of(dtype, rank=50, rotary_size=7, num_pages=60, page_size=16) for _ in range(2)
    )
    step = random_step([3, 90, 1], [9, 107, 17], page_size=16, num_pages=60)
    rows = random(94, 60, seed=12) * 100
    latent, rotary = rows[:, :50], rows[:, 50:57]
    with running(threads=2):
        native.run(native.store_latent(latent, rotary, ours), native.NativeStep.of(step))
    slots = step.groups[0].slots
    store(twin.latent, latent, slots, scales=twin.latent_scales)
    store(twin.rotary, rotary, slots, scales=twin.rotary_scales)
    for a, b in zip(ours.tensors, twin.tensors, strict=True):
        assert (a is None and b is None) or torch.equal(a, b)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("count", [1, 40])
@pytest.mark.parametrize("kind", KINDS)
def test_maps_by_head_are_dense_products(kind: native.Kind, count: int, isa: str) -> None:
    heads, rows, columns = 3, 37, 64
    stack = native.WeightStack.of([packed(kind, rows, columns, i) for i in range(heads)])
    # Heads and tokens lie apart on both sides.
    x = random(count, heads + 1, columns + 5)[:, 1:, 5:]
    memory = torch.full((count, heads, rows + 9), -7.0)
    out = memory[:, :, 4 : 4 + rows]
    with running(isa, threads=2):
        native.run(native.heads_linear(x, stack, out=out), native.NativeStep.of_rows(count))
    seen = rounded(x) if kind.is_integer else x.double()
    dense = torch.stack([stack.matrix(i).dense() for i in range(heads)]).double()
    wanted = torch.einsum("thk,hnk->thn", seen, dense)
    torch.testing.assert_close(out.double(), wanted, rtol=1e-4, atol=1e-4 * float(wanted.std()))
    assert (memory[:, :, :4] == -7).all() and (memory[:, :, 4 + rows :] == -7).all()
    with running("portable"):
        one = torch.empty(1, heads, rows)
        native.run(native.heads_linear(x[-1:], stack, out=one), native.NativeStep.of_rows(1))
    assert torch.equal(one[0], out[-1])


@pytest.mark.parametrize("isa", ISAS)
def test_neighbours_turn_as_in_the_plain_twin_into_heads_that_lie_apart(isa: str) -> None:
    x = random(7, 4, 40)[:, :, 30:]
    cos, sin = random(40, 5, seed=1), random(40, 5, seed=2)
    step = random_step([3, 4], [9, 30], page_size=16, num_pages=20)
    memory = torch.full((7, 4, 16), -7.0)
    rotation = native.Rotation(cos, sin, are_neighbours=True)
    with running(isa, threads=2):
        operation = native.rotate(x, rotation, out=memory[:, :, 6:])
        native.run(operation, native.NativeStep.of(step))
    wanted = rotate_neighbours(x, cos[step.positions], sin[step.positions])
    assert torch.equal(memory[:, :, 6:], wanted)
    assert (memory[:, :, :6] == -7).all()
