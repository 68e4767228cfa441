"""Stacks of experts in the native layouts: the numbers of the file, whatever tensors hold them."""

from __future__ import annotations

from collections.abc import Collection

import pytest
import torch
from torch import Tensor, nn

from cutaway.core.weight_targets import Target
from cutaway.kernels import native
from cutaway.kernels.native import library
from cutaway.quantize.dense_stack import DenseStack, Stack
from cutaway.quantize.gguf.gguf_packed import BlockMatrix
from cutaway.quantize.mxfp4 import Mxfp4Matrix, unpack_mxfp4
from cutaway.quantize.packed_stack import PackedStack
from cutaway.quantize.scheme import Quantized
from cutaway.weights.pack_stacks import pack_stacks

pytestmark = pytest.mark.skipif(not native.is_available(), reason=library.why_missing())

E = 3
EVERY = slice(None)


class Held:
    """A source of tensors and of stored matrices."""

    file = "held"

    def __init__(self, **tensors: Tensor | Quantized) -> None:
        self._tensors = tensors

    def names(self) -> Collection[str]:
        return self._tensors.keys()

    def shape(self, name: str) -> tuple[int, ...]:
        raise AssertionError("shapes were compared before")

    def check(self, name: str) -> None:
        pass

    def tensor(self, name: str) -> Tensor:
        found = self._tensors[name]
        assert isinstance(found, Tensor)
        return found

    def get_quantized(self, name: str) -> Quantized | None:
        found = self._tensors[name]
        return None if isinstance(found, Tensor) else found

    def release(self, name: str) -> None:
        pass


def packed(source: Held, targets: dict[str, Target], rows: int, columns: int) -> PackedStack:
    with torch.device("meta"):
        model = nn.ModuleDict({"part": nn.ModuleDict({"up": DenseStack(E, rows, columns)})})
    assert pack_stacks(model, source, targets) == targets.keys()
    found = model.get_submodule("part.up")
    assert isinstance(found, PackedStack) and isinstance(found, Stack)
    assert found.num_matrices == E and found.num_bytes > 0
    return found


def dense(stack: PackedStack) -> Tensor:
    return torch.stack([stack.matrix(index, torch.float32) for index in range(E)])


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def blocks(rows: int, columns: int, seed: int) -> BlockMatrix:
    """Q4_0 with scales near 0.1."""
    generator = torch.Generator().manual_seed(seed)
    count = rows * columns // 32
    scales = (torch.rand(count, 1, generator=generator) * 0.2 - 0.1).half().view(torch.uint8)
    nibbles = torch.randint(0, 256, (count, 16), generator=generator, dtype=torch.uint8)
    data = torch.cat((scales, nibbles), dim=1).numpy().tobytes()
    return BlockMatrix("Q4_0", (rows, columns), memoryview(data))


def matrix_of(stored: BlockMatrix) -> Tensor:
    found = stored.pack(None)
    assert found is not None
    return found.dense()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_tensor_per_expert_and_half_becomes_one_stack(dtype: torch.dtype) -> None:
    numbers = random(E, 42, 50).to(dtype)
    targets, tensors = {}, {}
    for expert in range(E):
        for name, rows in (("gate", slice(0, 21)), ("up", slice(21, 42))):
            targets[f"{name}{expert}"] = Target("part.up.weight", (21, 50), part=(expert, rows))
            tensors[f"{name}{expert}"] = numbers[expert, rows]
    stack = packed(Held(**tensors), targets, 42, 50)
    assert torch.equal(dense(stack), numbers.float())
    assert (
        stack.stack.kind.name
        == {4: "F32", 2: "F16" if dtype == torch.float16 else "BF16"}[dtype.itemsize]
    )


def test_whole_stacks_stay_or_are_turned() -> None:
    numbers = random(E, 20, 33)
    stack = packed(Held(a=numbers), {"a": Target("part.up.weight", (E, 20, 33))}, 20, 33)
    assert torch.equal(dense(stack), numbers)
    across = {"a": Target("part.up.weight", (E, 33, 20), is_transposed=True)}
    stack = packed(Held(a=numbers.transpose(1, 2).contiguous()), across, 20, 33)
    assert torch.equal(dense(stack), numbers)


@pytest.mark.parametrize("inner", [32, 24])
@pytest.mark.parametrize("is_interleaved", [False, True])
def test_stacks_of_blocks_keep_their_integers(inner: int, is_interleaved: bool) -> None:
    gate, up = blocks(E * inner, 64, 1), blocks(E * inner, 64, 2)
    first = slice(0, None, 2) if is_interleaved else slice(0, inner)
    second = slice(1, None, 2) if is_interleaved else slice(inner, 2 * inner)
    targets = {
        "gate": Target("part.up.weight", (E, inner, 64), part=(EVERY, first)),
        "up": Target("part.up.weight", (E, inner, 64), part=(EVERY, second)),
    }
    stack = packed(Held(gate=gate, up=up), targets, 2 * inner, 64)
    assert stack.stack.kind is native.Kind.Q4
    wanted = torch.empty(E, 2 * inner, 64)
    wanted[:, first] = matrix_of(gate).view(E, inner, 64)
    wanted[:, second] = matrix_of(up).view(E, inner, 64)
    assert torch.equal(dense(stack), wanted)


def test_parts_of_two_kinds_meet_in_eight_bits() -> None:
    gate, up = blocks(E * 32, 64, 1), random(E, 32, 64)
    targets = {
        "gate": Target("part.up.weight", (E, 32, 64), part=(EVERY, slice(0, 32))),
        "up": Target("part.up.weight", (E, 32, 64), part=(EVERY, slice(32, 64))),
    }
    stack = packed(Held(gate=gate, up=up), targets, 64, 64)
    assert stack.stack.kind is native.Kind.Q8
    wanted = torch.cat((matrix_of(gate).view(E, 32, 64), up), dim=1)
    torch.testing.assert_close(dense(stack), wanted, rtol=0, atol=0.02)


def test_mxfp4_keeps_its_numbers() -> None:
    generator = torch.Generator().manual_seed(0)
    codes = torch.randint(0, 256, (E * 40, 2, 16), generator=generator, dtype=torch.uint8)
    scales = torch.randint(110, 140, (E * 40, 2), generator=generator, dtype=torch.uint8)
    targets = {"a": Target("part.up.weight", (E, 64, 40), is_transposed=True)}
    stack = packed(Held(a=Mxfp4Matrix(codes, scales)), targets, 40, 64)
    wanted = unpack_mxfp4(codes, scales, torch.float32)
    assert torch.equal(dense(stack).flatten(0, 1), wanted)
    assert stack.stack.kind is native.Kind.Q8
    order = torch.randperm(E * 40, generator=generator)
    turned = Mxfp4Matrix(codes, scales).pack(order)
    assert turned is not None and torch.equal(turned.dense(), wanted[order])
