"""A model's stacks of matrices in the native kernels' layouts, whatever tensors make up one.

It knows neither architectures nor what a stack is for: targets say which rows come from where.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor, nn

from cutaway.core.weight_targets import Target
from cutaway.host.pulse import PULSE
from cutaway.kernels.native import Kind, PackedWeight, WeightStack
from cutaway.quantize.dense_stack import DenseStack
from cutaway.quantize.packed import Packed
from cutaway.quantize.packed_stack import PackedStack
from cutaway.weights.source import WeightSource


def pack_stacks(
    module: nn.Module, source: WeightSource, targets: Mapping[str, Target]
) -> frozenset[str]:
    """Put packed stacks in the places of those that targets name; the names that went."""
    taken: set[str] = set()
    for path, parts in _stacks(module, targets).items():
        packed = {name: _pack_rows(source, name, target) for name, target in parts.items()}
        if len({weight.kind for weight in packed.values()}) > 1:
            packed = {name: _widen(weight) for name, weight in packed.items()}
        parent, _, attribute = path.rpartition(".")
        count, num_rows, num_columns = cast(DenseStack, module.get_submodule(path)).weight.shape
        kind = next(iter(packed.values())).kind
        stack = WeightStack.zeros(count, num_rows, num_columns, kind)
        for name, weight in packed.items():
            for expert, first, rows in _places(parts[name], stack):
                stack.put(expert, weight, first=first, rows=rows)
            source.release(name)
            PULSE.beat()
        setattr(module.get_submodule(parent), attribute, PackedStack(stack))
        taken |= packed.keys()
    return frozenset(taken)


def _stacks(module: nn.Module, targets: Mapping[str, Target]) -> dict[str, dict[str, Target]]:
    """The tensors of each stack, by the path of its module."""
    modules = cast("Iterator[tuple[str, nn.Module]]", module.named_modules())
    stacks = {path for path, part in modules if isinstance(part, DenseStack)}
    found: dict[str, dict[str, Target]] = {}
    for name, target in targets.items():
        path = target.parameter.removesuffix(".weight")
        if path in stacks:
            found.setdefault(path, {})[name] = target
    return found


def _pack_rows(source: WeightSource, name: str, target: Target) -> PackedWeight:
    """All rows of a tensor, those of its matrices one below the other."""
    stored = source.get_quantized(name)
    packed = None if stored is None else stored.pack(None)
    if packed is None:
        numbers = source.tensor(name)
        if target.is_transposed:
            numbers = numbers.transpose(-1, -2)
        packed = Packed.of(numbers.flatten(0, -2), row_order=None, widens=stored is not None)
    if target.kept is not None:
        packed = packed.take(_kept(target))
    return packed.packed


def _kept(target: Target) -> Tensor:
    """Rows that a rank keeps of all a tensor's matrices, one below the other."""
    assert target.kept is not None, "who keeps all rows takes none"
    own = torch.cat([torch.arange(rows.start, rows.stop) for rows in target.kept])
    whole = replace(target, kept=None).final_shape
    if len(whole) == 2:
        return own
    return (torch.arange(whole[0])[:, None] * whole[1] + own).flatten()


def _widen(weight: PackedWeight) -> PackedWeight:
    """The same numbers in 8 bits per group of 32, in which any kind finds its place."""
    kind = Kind.F32 if weight.num_columns % 32 else Kind.Q8
    return weight if weight.kind is kind else PackedWeight.from_matrix(weight.dense(), kind)


def _places(target: Target, stack: WeightStack) -> Iterator[tuple[int, int, slice]]:
    """Which experts a tensor has, where each one's rows begin in it, and which rows they are."""
    experts = target.part[0] if target.part else slice(None)
    rows = target.part[1] if len(target.part) > 1 else slice(None)
    assert isinstance(rows, slice), "a tensor holds rows side by side"
    if isinstance(experts, int):
        yield experts, 0, rows
        return
    count = len(range(stack.num_rows)[rows])
    for index, expert in enumerate(range(stack.num_matrices)[experts]):
        yield expert, index * count, rows
