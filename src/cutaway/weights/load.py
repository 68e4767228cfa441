"""A model filled from stored tensors, after all names and shapes were compared.

It knows neither architectures nor formats: targets say where a tensor goes, a source gives it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence

import torch
from torch import Tensor, nn

from cutaway.core.errors import ModelFormatError, UnsupportedModelError
from cutaway.core.weight_targets import PairedRows, Target
from cutaway.host.pulse import PULSE
from cutaway.weights.source import WeightSource

_MOST_SHOWN = 60  # names, or runs of names, in one message
_LAYER_NUMBER = re.compile(r"^([^0-9]*)([0-9]{1,19})(.*)$", re.DOTALL)

Progress = Callable[[int, int], None]  # done, total


def load_weights(
    module: nn.Module,
    source: WeightSource,
    targets: Mapping[str, Target],
    *,
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
    optional: frozenset[str] = frozenset(),
    progress: Progress | None = None,
) -> None:
    """Give every parameter of module its stored values, in dtype and on device.

    Parameters are replaced, so a module on the meta device never holds memory twice. Names in
    optional may be absent, and are left alone where no target takes them. Two names may share a
    parameter (a tied head that was stored all the same): their values must be equal.

    Raises: ModelFormatError listing all missing and unexpected tensors, or naming one of another
    shape; UnsupportedModelError naming a tensor whose type cannot be read, or whose values dtype
    cannot hold. Names, shapes and types are judged before any tensor is read.
    """
    check_weights(source, targets, optional=optional)
    present = {name: target for name, target in targets.items() if name in source.names()}
    parameters = dict(module.named_parameters(remove_duplicate=False))
    _check_targets(parameters, present)
    places = _places(module)
    filled: dict[int, nn.Parameter] = {}  # by the identity of the parameter it replaces
    for done, (name, target) in enumerate(present.items(), start=1):
        old = parameters[target.parameter]
        value = _converted(source, name, target, dtype).to(device)
        source.release(name)
        if id(old) in filled and not target.part:
            check_equal(source, name, value, filled[id(old)])
        elif id(old) not in filled:
            whole = torch.empty(old.shape, dtype=dtype, device=device) if target.part else value
            filled[id(old)] = nn.Parameter(whole, requires_grad=old.requires_grad)
            for parent, attribute in places[id(old)]:
                setattr(parent, attribute, filled[id(old)])
        if target.part:
            filled[id(old)].detach()[target.part] = value
        PULSE.beat()
        if progress is not None:
            progress(done, len(present))


def check_weights(
    source: WeightSource,
    targets: Mapping[str, Target],
    *,
    optional: frozenset[str] = frozenset(),
) -> None:
    """Judge names, shapes and types before anything is read. Raises as load_weights does."""
    _check_names(source, targets, optional)
    for name, target in targets.items():
        if name in source.names():
            _check_tensor(source, name, target)


def _check_names(
    source: WeightSource, targets: Mapping[str, Target], optional: frozenset[str]
) -> None:
    names = frozenset(source.names())
    missing = [name for name in targets if name not in names | optional]
    unexpected = sorted(names - targets.keys() - optional)
    if not missing and not unexpected:
        return
    parts = [
        f"{len(listed)} {word}: {shown_names(listed)}"
        for word, listed in (("missing", missing), ("unexpected", unexpected))
        if listed
    ]
    raise ModelFormatError(
        f"{'; '.join(parts)}. The file does not fit the architecture that it names; "
        "it is incomplete or of another kind.",
        file=source.file,
        field="tensors",
    )


def _check_tensor(source: WeightSource, name: str, target: Target) -> None:
    shape = source.shape(name)
    if shape != target.shape:
        raise ModelFormatError(
            f"has shape {shape}; the model's configuration asks for {target.shape}.",
            file=source.file,
            field=name,
        )
    source.check(name)


def _check_targets(parameters: Mapping[str, nn.Parameter], targets: Mapping[str, Target]) -> None:
    """Targets and parameters come from the same architecture file: a difference is our fault."""
    reached: dict[int, int] = {}  # numbers, by the parameter's identity
    for name, target in targets.items():
        parameter = parameters.get(target.parameter)
        assert parameter is not None, f"{name} goes to {target.parameter}, which the model lacks"
        found = tuple(parameter[target.part].shape if target.part else parameter.shape)
        expected = target.final_shape
        assert found == expected, f"{target.parameter} is {found}, its target {expected}"
        reached[id(parameter)] = reached.get(id(parameter), 0) + math.prod(expected)
    unset = [path for path, p in parameters.items() if reached.get(id(p), 0) < p.numel()]
    assert not unset, f"no tensor goes to {shown_names(unset)}, or to all of it"


def _places(module: nn.Module) -> dict[int, list[tuple[nn.Module, str]]]:
    """Every module and attribute that holds a parameter, by the parameter's identity."""
    places: dict[int, list[tuple[nn.Module, str]]] = {}
    for parent in module.modules():
        for attribute, parameter in parent.named_parameters(recurse=False):
            places.setdefault(id(parameter), []).append((parent, attribute))
    return places


def _converted(source: WeightSource, name: str, target: Target, dtype: torch.dtype) -> Tensor:
    stored = source.tensor(name)
    if target.shift:  # before the cast: bfloat16 keeps w and not 1 + w
        stored = stored.to(torch.promote_types(stored.dtype, torch.float32)) + target.shift
    value = stored.to(dtype)
    if dtype == torch.float16 and stored.dtype != dtype and value.isinf().any():
        largest = float(stored.abs().max())
        raise UnsupportedModelError(
            f"{source.file}: {name} holds {largest:g}, and float16 ends at 65504. "
            "Load the model as bfloat16 or float32."
        )
    if target.is_transposed:
        value = value.transpose(-1, -2).contiguous()
    if target.is_row:
        value = value[None]
    value = value if target.pairs is None else in_own_order(value, target.pairs)
    return value if target.kept is None else kept_rows(value, target.kept, target.kept_axis)


def kept_rows(whole: Tensor, kept: Sequence[range], axis: int = 0) -> Tensor:
    """Some rows in memory of their own, so that nothing holds the rest.

    axis: along which rows lie.   Shapes: [N, ...] -> [rows kept, ...].
    """
    return torch.cat([whole.narrow(axis, rows.start, len(rows)) for rows in kept], dim=axis)


def in_own_order(stored: Tensor, pairs: PairedRows) -> Tensor:
    """Rows of heads as the model has them, from the order in which a file keeps them."""
    return stored.index_select(pairs.axis, _order(stored, pairs))


def in_stored_order(value: Tensor, pairs: PairedRows) -> Tensor:
    """The way back: rows of heads as a file keeps them."""
    return value.index_select(pairs.axis, _order(value, pairs).argsort())


def _order(rows: Tensor, pairs: PairedRows) -> Tensor:
    return torch.tensor(pairs.order(rows.shape[pairs.axis]), device=rows.device)


def check_equal(source: WeightSource, name: str, value: Tensor, first: Tensor) -> None:
    """Raise ModelFormatError unless two tensors that are tied are equal."""
    if not torch.equal(value, first):
        raise ModelFormatError(
            "differs from the tensor with which the model's configuration ties it; "
            "the two must be equal, or not tied.",
            file=source.file,
            field=name,
        )


def shown_names(names: Collection[str]) -> str:
    """Names in one line, those that differ in their first number alone as one: blk.[0-29].norm."""
    groups: dict[tuple[str, str], list[int]] = {}
    for name in names:
        match = _LAYER_NUMBER.match(name)
        start, number, end = match.groups() if match else (name, "", "")
        groups.setdefault((start, end), []).extend([int(number)] if number else [])
    shown = [f"{start}{_ranges(sorted(numbers))}{end}" for (start, end), numbers in groups.items()]
    more = len(shown) - _MOST_SHOWN
    return ", ".join(shown[:_MOST_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _ranges(numbers: list[int]) -> str:
    if len(numbers) < 2:
        return "".join(map(str, numbers))
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return "[" + ",".join(f"{r[0]}-{r[-1]}" if r[1:] else str(r[0]) for r in runs) + "]"
