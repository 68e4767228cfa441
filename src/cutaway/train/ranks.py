"""Several processes that train one model: each has its share of every update.

What an update learns from is a function of its index, so each process knows all of it and takes
every so many-th micro-batch. Gradients are added up, and divided by nothing: the loss was divided
by the count of the whole update. All processes then make the same step, so weights stay equal to
the bit; the first alone writes. Each has all weights, or rows of them (model/weight_shards.py).
torchrun starts them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, distributed

Item = TypeVar("Item")


def join() -> None:
    """Be one of the processes that torchrun started; nothing where it started none.

    Call before a model is opened: each process takes a GPU of its own.
    """
    names = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    is_started = all(name in os.environ for name in names) and distributed.is_available()
    if not is_started or distributed.is_initialized():
        return
    is_gpu = torch.cuda.is_available()
    if is_gpu:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    distributed.init_process_group("nccl" if is_gpu else "gloo")


def leave() -> None:
    """End what join() began, once the others are here too."""
    if size() > 1:
        distributed.barrier()
        distributed.destroy_process_group()


def rank() -> int:
    """This process's number; 0 where it is alone."""
    return distributed.get_rank() if _are_several() else 0


def size() -> int:
    """How many processes train; 1 where none were started."""
    return distributed.get_world_size() if _are_several() else 1


def own(items: Sequence[Item]) -> Sequence[Item]:
    """This process's share of an update's micro-batches."""
    return items[rank() :: size()]


def turns(items: Sequence[Item]) -> int:
    """The most micro-batches of an update that a process has."""
    return -(-len(items) // size())


def wait() -> None:
    """Go on when all processes are here."""
    if size() > 1:
        distributed.barrier()


def add_up_gradients(parameters: Mapping[str, Tensor]) -> None:
    """Give every parameter the sum of all processes' gradients, in one order for all."""
    if size() == 1:
        return
    for parameter in parameters.values():
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        distributed.all_reduce(parameter.grad)


def add_up_marked(values: Tensor, marks: Sequence[bool]) -> Tensor:
    """Values of which some are parts that all processes have of a sum, and others equal in all.

    marks: of each value whether it is a part. Shapes: [N] -> [N].
    """
    is_part = torch.tensor(marks, device=values.device)
    sums = values * is_part
    distributed.all_reduce(sums)
    return torch.where(is_part, sums, values)


def add_up(numbers: Mapping[str, tuple[float, int]]) -> dict[str, tuple[float, int]]:
    """Sums and counts of all processes, by name; some may lack a name."""
    if size() == 1:
        return dict(numbers)
    gathered: list[Any] = [None] * size()
    distributed.all_gather_object(gathered, dict(numbers))
    sums: dict[str, tuple[float, int]] = {}
    for each in cast("list[dict[str, tuple[float, int]]]", gathered):
        for name, (total, count) in each.items():
            before = sums.get(name, (0.0, 0))
            sums[name] = (before[0] + total, before[1] + count)
    return sums


def _are_several() -> bool:
    return distributed.is_available() and distributed.is_initialized()
