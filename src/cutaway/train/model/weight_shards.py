"""Trained matrices divided among processes by rows: weights, gradients and moments (FSDP2).

A process keeps its rows of every matrix. A block's matrices come together for its forward and
again for its backward, those around the blocks for the whole pass; gradients are added up and each
process is given those of its rows. What is small (norms, biases, rows of scores) is whole in every
process. torch's fully_shard does the work (arXiv:2304.11277).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from cutaway.core.errors import ConfigError
from cutaway.train import ranks
from cutaway.train.model.model_folder import TrainedModel

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


def check(model: TrainedModel, *, optimizer: str) -> None:
    """Raise ConfigError unless a model can be divided and trained so.

    optimizer: of those in optimizers.py.
    """
    own = {target.parameter for target in model.architecture.targets("hf").values()}
    trained = {n for n, each in model.transformer.named_parameters() if each.requires_grad}
    if not trained or trained - own:
        raise ConfigError(
            "shard is true, and this run trains something small beside the model's own weights, "
            "which stay as they are. Leave shard out."
        )
    if optimizer == "muon":
        raise ConfigError(
            "shard is true and optimizer is muon, which turns whole matrices; a process would "
            "have some rows. Take adamw, or leave shard out."
        )


def divide(model: TrainedModel, module: nn.Module) -> None:
    """Divide a model's trained matrices among all processes; all call it, with equal weights.

    module: what is trained, the model's transformer or what holds it.
    """
    from torch.distributed import fsdp
    from torch.distributed.device_mesh import init_device_mesh

    transformer = model.transformer
    small = {each for each in module.parameters() if each.ndim < 2 or not each.requires_grad}
    device = next(transformer.parameters()).device.type
    told: dict[str, Any] = {
        "mesh": init_device_mesh(device, (ranks.size(),)),
        "ignored_params": small,
    }
    for block in transformer.blocks:
        fsdp.fully_shard(block, **told)
    fsdp.fully_shard(transformer, reshard_after_forward=False, **told)
    fsdp.register_fsdp_forward_method(transformer, "hidden")
    for each in transformer.modules():
        if isinstance(each, fsdp.FSDPModule):
            each.set_gradient_divide_factor(1.0)  # losses are divided by the whole update's count
            each.set_force_sum_reduction_for_comms(True)  # gloo has no other


def num_bytes(module: nn.Module) -> tuple[int, int]:
    """Bytes of a module's parameters that are here, and of all."""
    parameters = list(module.parameters())
    return sum(own_rows(each).nbytes for each in parameters), sum(p.nbytes for p in parameters)


def is_divided(module: nn.Module) -> bool:
    """Whether processes have rows of a module's matrices each."""
    return any(_is_part(each) for each in module.parameters())


def own_rows(parameter: Tensor) -> Tensor:
    """What this process has of a parameter, and itself where that is all. The storage is shared."""
    return cast("DTensor", parameter).to_local().detach() if _is_part(parameter) else parameter


def cut_like(value: Tensor, parameter: Tensor) -> Tensor:
    """The rows of a whole tensor that this process has of a parameter of its shape."""
    if not _is_part(parameter):
        return value
    from torch.distributed.tensor import distribute_tensor

    part = cast("DTensor", parameter)
    # Every process read the same file: nothing has to be sent.
    mesh, placements = part.device_mesh, part.placements
    return distribute_tensor(value, mesh, placements, src_data_rank=None).to_local()


def whole(rows: Tensor, parameter: Tensor) -> Tensor:
    """All rows of a tensor of which each process has those that it has of a parameter.

    All processes call it, in one order.
    """
    if not _is_part(parameter):
        return rows
    from torch.distributed.tensor import DTensor

    part = cast("DTensor", parameter)
    made = DTensor.from_local(
        *(rows, part.device_mesh, part.placements), shape=part.shape, stride=part.stride()
    )
    return made.full_tensor()


def gather_whole(model: TrainedModel) -> TrainedModel:
    """The same model with whole weights, on the CPU; itself where nothing is divided.

    All processes call it; those beside the first are given the model as they have it.
    """
    transformer = model.transformer
    _part_again(transformer)
    if not is_divided(transformer):
        return model
    is_first = ranks.rank() == 0
    found: dict[str, Tensor] = {}
    for name, parameter in transformer.named_parameters(remove_duplicate=False):
        every = whole(own_rows(parameter), parameter)
        if is_first:
            found[name] = every.detach().cpu()
    if not is_first:
        return model
    with torch.device("meta"):
        twin = model.architecture.build()
    twin.load_state_dict(cast("Mapping[str, Any]", found), assign=True)
    return replace(model, transformer=twin)


def _part_again(transformer: nn.Module) -> None:
    """Let go of rows of others that a forward without a backward left here."""
    if hasattr(transformer, "reshard"):
        cast(Any, transformer).reshard()


def _is_part(parameter: Tensor) -> bool:
    return hasattr(parameter, "to_local")
