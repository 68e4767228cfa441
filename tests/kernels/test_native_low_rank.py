"""What adapters add to native products, against the plain form and against each row alone."""

from __future__ import annotations

import pytest
import torch
from native_cases import ISAS, needs_native, packed, random, running
from torch import Tensor

from cutaway.core.step import Numbers, ShapePlan
from cutaway.kernels import native
from cutaway.kernels.gate import silu_gate
from cutaway.kernels.linear import LowRankPair, LowRankPairs, project
from cutaway.quantize.packed import Packed

pytestmark = needs_native

DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def pair(rows: int, columns: int, rank: int, dtype: torch.dtype) -> LowRankPair:
    return LowRankPair((random(rank, columns) / 8).to(dtype), (random(rows, rank) / 2).to(dtype))


def step_of(adapters: list[int]) -> native.NativeStep:
    count = len(adapters)
    zeros = [0] * count
    plan = ShapePlan((count,), (count,))
    return native.NativeStep.of_numbers(
        Numbers(zeros, zeros, zeros, [], plan, [], [], adapters=adapters)
    )


def linear(x: Tensor, weights: list[Packed], pairs: LowRankPairs, adapters: list[int]) -> Tensor:
    out = torch.full((len(x), sum(each.num_rows for each in weights)), torch.nan)
    kept = [each.packed for each in weights]
    native.run(native.linear(x, kept, out=out, pairs=pairs.packed), step_of(adapters))
    return out


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("count", [1, 3, 5, 40])
def test_equals_the_plain_form(isa: str, dtype: torch.dtype, count: int) -> None:
    columns, rows = 100, (40, 7, 16)
    weights = [Packed(packed(native.Kind.F32, each, columns)) for each in rows]
    adapters = [each % 4 - 1 for each in range(count)]
    pairs = LowRankPairs(
        rows,
        [
            [pair(each, columns, 8, dtype) for each in rows],
            [pair(40, columns, 3, dtype), None, pair(16, columns, 20, dtype)],
            None,
        ],
    )
    x = random(count, columns)
    wanted = project(x, weights, None, pairs, torch.tensor(adapters))
    base = project(x, weights, None)
    with running(isa):
        found = linear(x, weights, pairs, adapters)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-4)
    with_one = torch.tensor([each in (0, 1) for each in adapters])
    assert not with_one.any() or (wanted - base)[with_one].abs().max() > 0.1
    assert torch.equal(wanted[~with_one], base[~with_one])


@pytest.mark.parametrize("kind", [native.Kind.Q4_AFFINE, native.Kind.Q8, native.Kind.F16])
def test_a_row_is_the_same_whatever_its_mates_have(kind: native.Kind) -> None:
    columns, rows = 576, (64, 32)
    weights = [Packed(packed(kind, each, columns)) for each in rows]
    pairs = LowRankPairs(
        rows, [[pair(each, columns, r, torch.float16) for each in rows] for r in (4, 8)]
    )
    x, adapters = random(33, columns), [each % 3 - 1 for each in range(33)]
    together = linear(x, weights, pairs, adapters)
    for index, adapter in enumerate(adapters):
        alone = linear(x[index : index + 1].contiguous(), weights, pairs, [adapter])
        assert torch.equal(together[index], alone[0])
    # Without an adapter a row is that of a linear that has none.
    bare = torch.empty(33, sum(rows))
    kept = [each.packed for each in weights]
    native.run(native.linear(x, kept, out=bare), native.NativeStep.of_rows(33))
    assert torch.equal(together[0::3], bare[0::3])
    assert not torch.equal(together[1::3], bare[1::3])


@pytest.mark.parametrize("count", [1, 9])
def test_gate_and_up_have_their_own(count: int) -> None:
    gate, up = (Packed(packed(native.Kind.F32, 48, 96)) for _ in range(2))
    pairs = LowRankPairs(
        (48, 48), [[pair(48, 96, 4, torch.float32), pair(48, 96, 2, torch.float32)]]
    )
    x, adapters = random(count, 96), [0] * count
    out = torch.empty(count, 48)
    operation = native.multiply_gate(x, gate.packed, up.packed, out=out, pairs=pairs.packed)
    native.run(operation, step_of(adapters))
    both = project(x, [gate, up], None, pairs, torch.tensor(adapters))
    wanted = silu_gate(both[:, :48].contiguous(), both[:, 48:].contiguous())
    torch.testing.assert_close(out, wanted, rtol=1e-4, atol=1e-4)


def test_an_adapter_that_is_not_there_is_refused() -> None:
    weight = Packed(packed(native.Kind.F32, 16, 32))
    pairs = LowRankPairs((16,), [[pair(16, 32, 4, torch.float32)]])
    with pytest.raises(AssertionError, match="adapter is none of those"):
        linear(random(2, 32), [weight], pairs, [0, 1])


def test_a_pair_of_another_shape_is_refused() -> None:
    weight = Packed(packed(native.Kind.F32, 16, 32))
    with pytest.raises(AssertionError, match="row for each"):
        linear(
            random(1, 32), [weight], LowRankPairs((16,), [[pair(17, 32, 4, torch.float32)]]), [0]
        )
    with pytest.raises(AssertionError, match="reads what its weight reads"):
        linear(
            random(1, 32), [weight], LowRankPairs((16,), [[pair(16, 48, 4, torch.float32)]]), [0]
        )
