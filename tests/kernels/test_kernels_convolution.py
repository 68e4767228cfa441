"""A short convolution over pages: in chunks as at once, beside others as alone, as torch has it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from native_cases import ISAS, needs_native, random, random_step, running
from torch import Tensor
from torch.nn import functional

from cutaway.core.step import LayerCache, Step
from cutaway.kernels import native
from cutaway.kernels.convolution import convolve_sequences

WIDTH, PAGE, NUM_PAGES = 70, 4, 12
BIAS = random(WIDTH, seed=1)


def expected(x: Tensor, weight: Tensor) -> Tensor:
    before = weight.shape[1] - 1
    rows = functional.conv1d(x.T[None], weight[:, None], BIAS, padding=before, groups=WIDTH)
    return rows[0, :, : len(x)].T


def cached(kernel: int, queries: list[int], contexts: list[int], kept: Tensor) -> Step:
    step = random_step(queries, contexts, page_size=PAGE, num_pages=NUM_PAGES)
    table = torch.arange(1, NUM_PAGES).view(1, -1).repeat(len(queries), 1)
    table[1:] = table[1:].flip(1)  # pages of a second sequence, from the other end
    groups = (replace(step.groups[0], page_table=table),)
    return replace(step, groups=groups, caches=(LayerCache({"inputs": kept}, 0, PAGE),))


@pytest.mark.parametrize("kernel", [2, 3, 4])
def test_chunks_beside_another_sequence_are_as_torch_has_them(kernel: int) -> None:
    weight, x, other = random(WIDTH, kernel, seed=2), random(19, WIDTH), random(3, WIDTH, seed=4)
    kept = torch.full((NUM_PAGES, kernel - 1, WIDTH), torch.nan)
    made: list[Tensor] = []
    start = 0
    for count in (1, 6, 1, 9, 2):
        step = cached(kernel, [count, 3], [start + count, 3], kept)
        rows = torch.cat((x[start : start + count], other))
        mixed = convolve_sequences(rows, weight, BIAS, step=step, layer=0)
        made.append(mixed[:count])
        torch.testing.assert_close(mixed[count:], expected(other, weight))
        start += count
    whole = torch.cat(made)
    torch.testing.assert_close(whole, expected(x, weight))
    alone = convolve_sequences(x, weight, BIAS, step=Step.without_cache([[0] * 19]), layer=0)
    assert torch.equal(whole, alone)
    # Every full page keeps the inputs before its end, from which a prefix hit goes on.
    for page in range(19 // PAGE):
        end = (page + 1) * PAGE
        assert torch.equal(kept[page + 1], x[end - kernel + 1 : end])


@needs_native
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("has_bias", [False, True])
def test_the_native_form_leaves_what_the_plain_one_leaves(isa: str, has_bias: bool) -> None:
    weight, x, other = random(WIDTH, 3, seed=2), random(19, WIDTH), random(3, WIDTH, seed=4)
    bias = BIAS if has_bias else None
    kept = [torch.full((NUM_PAGES, 2, WIDTH), 100.0) for _ in range(2)]
    start = 0
    for count in (1, 6, 1, 9, 2):
        step = cached(3, [count, 3], [start + count, 3], kept[0])
        rows = torch.cat((x[start : start + count], other))
        plain = convolve_sequences(rows, weight, bias, step=step, layer=0)
        out = torch.full_like(rows, torch.nan)
        operation = native.convolve(
            rows, weight, bias, native.InputPages(kept[1], 0, PAGE), out=out
        )
        with running(isa, threads=2):
            native.run(operation, native.NativeStep.of(step))
        assert torch.equal(out, plain)
        assert torch.equal(kept[0], kept[1])
        start += count
