"""A model's matrices kept in fewer bits, straight from their stored form: packed, or for torch.

It knows neither architectures nor what a matrix is for: targets say where it goes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from cutaway.core.weight_targets import Target
from cutaway.host.pulse import PULSE
from cutaway.kernels.native import Shelf
from cutaway.quantize.dense import DenseWeight
from cutaway.quantize.packed import Packed
from cutaway.weights.load import check_equal
from cutaway.weights.pack_stacks import pack_stacks
from cutaway.weights.source import WeightSource


def pack_weights(
    module: nn.Module, source: WeightSource, targets: Mapping[str, Target]
) -> frozenset[str]:
    """Put matrices and stacks in the native kernels' layouts in the places that targets name.

    Tells which names went. The rest (norms, biases) is left to load_weights. Names and shapes
    were compared before.
    """
    shelf = Shelf()

    def pack(source: WeightSource, name: str, target: Target) -> Packed:
        weight = _pack(source, name, target).packed
        return Packed(replace(weight, data=shelf.put(weight.data)))

    return _replace(module, source, targets, pack) | pack_stacks(module, source, targets)


def keep_weights(
    module: nn.Module,
    source: WeightSource,
    targets: Mapping[str, Target],
    *,
    device: torch.device | str,
) -> frozenset[str]:
    """The same for torch: matrices that multiply as they are stored; the rest is load_weights'."""

    def keep(source: WeightSource, name: str, target: Target) -> nn.Module | None:
        stored = None if target.is_transposed else source.get_quantized(name)
        kept = None if stored is None else stored.keep(_rows(target))
        return None if kept is None else kept.to(device)

    return _replace(module, source, targets, keep)


def _replace(
    module: nn.Module,
    source: WeightSource,
    targets: Mapping[str, Target],
    make: Callable[[WeightSource, str, Target], nn.Module | None],
) -> frozenset[str]:
    """Every matrix of which make gives a new form; the names that it took.

    A norm that has weights for each head is of the same shape, and is none.
    """
    places = _places(module)
    replaced: dict[str, str] = {}  # parameter: the name that filled it
    taken: set[str] = set()
    names = [name for name, t in targets.items() if _can_pack(t) and name in source.names()]
    for name in names:
        target = targets[name]
        if target.parameter in replaced:  # tied, and stored all the same
            first = source.tensor(replaced[target.parameter])
            check_equal(source, name, source.tensor(name), first)
            taken.add(name)
            continue
        old = module.get_submodule(target.parameter.removesuffix(".weight"))
        new = make(source, name, target) if isinstance(old, DenseWeight) else None
        if new is None:
            continue
        source.release(name)
        PULSE.beat()
        for parent, attribute in places[id(old)]:  # a tied table is in two
            setattr(parent, attribute, new)
        replaced[target.parameter] = name
        taken.add(name)
    return frozenset(taken)


def _can_pack(target: Target) -> bool:
    """A part of a stack stays numbers, as do stacked biases."""
    is_matrix = len(target.final_shape) == 2 and target.parameter.endswith(".weight")
    return is_matrix and not target.part


def _pack(source: WeightSource, name: str, target: Target) -> Packed:
    whole = _pack_whole(source, name, target)
    return whole if target.kept is None else whole.take(_indices(target.kept))


def _pack_whole(source: WeightSource, name: str, target: Target) -> Packed:
    order = _row_order(target)
    stored = source.get_quantized(name)
    packed = None if stored is None or target.is_transposed else stored.pack(order)
    if packed is not None:
        return packed
    matrix = source.tensor(name)
    if target.is_transposed:
        matrix = matrix.T.contiguous()
    if target.is_row:
        matrix = matrix[None]
    # What no layout holds by its integers widens to 8 bits; floats stay what they are.
    return Packed.of(matrix, row_order=order, widens=stored is not None)


def _row_order(target: Target) -> Tensor | None:
    if target.pairs is None:
        return None
    return torch.tensor(target.pairs.order(target.shape[0]))


def _rows(target: Target) -> Tensor | None:
    """Which stored rows this rank keeps, in the model's order; None for all as they are."""
    order = _row_order(target)
    if target.kept is None:
        return order
    kept = _indices(target.kept)
    return kept if order is None else order[kept]


def _indices(kept: Sequence[range]) -> Tensor:
    return torch.cat([torch.arange(rows.start, rows.stop) for rows in kept])


def _places(module: nn.Module) -> dict[int, list[tuple[nn.Module, str]]]:
    """Every module and attribute that holds a module, by the identity of the one held."""
    places: dict[int, list[tuple[nn.Module, str]]] = {}
    for parent in module.modules():
        for attribute, child in parent.named_children():
            places.setdefault(id(child), []).append((parent, attribute))
    return places
