"""The loop that every stage shares: read it first. One update, and updates in a row.

An update is: micro-batches forward and backward, each sum divided by the count of the whole update;
one clip of the global norm; one step of the optimizers. What an update learns from is a function of
its index, so nothing has to be remembered between two of them but parameters and moments.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeVar, cast

import torch

from cutaway.core.errors import ConfigError, NumericsError
from cutaway.train import ranks
from cutaway.train.losses.losses import Figure, Loss
from cutaway.train.optimizers import Optimizers
from cutaway.train.schedules import Schedule


class LossBatch(Protocol):
    """A micro-batch: whatever a loss is computed of, and how much of it is scored."""

    @property
    def count(self) -> int:
        """What its loss will have as its count: known before the forward."""
        ...


Batch = TypeVar("Batch", bound=LossBatch)


class Pull(Protocol):
    """Does what pull_back does; see there."""

    def __call__(self, objective: Callable[[Batch], Loss], batch: Batch, count: int) -> Loss: ...


def pull_back(objective: Callable[[Batch], Loss], batch: Batch, count: int) -> Loss:
    """The loss of a micro-batch, of which loss / count has been pulled back to all gradients."""
    loss = objective(batch)
    (loss.total / count).backward()
    return replace(loss, total=loss.total.detach())


@dataclass(frozen=True, kw_only=True)
class Updated:
    """What one update did.

    loss: sum / count of the update, which is what was descended.   count: of the whole update.
    norm: of all gradients before the clip.   rate: of the update.
    norms: of the gradients of each block, where it was asked for.
    weight: one weight's way in this update, see Optimizers.step.
    figures: means of what the losses gave beside, over the update.
    """

    update: int
    loss: float
    count: int
    norm: float
    rate: float
    figures: Mapping[str, float] = field(default_factory=dict[str, float])
    norms: Mapping[str, float] = field(default_factory=dict[str, float])
    weight: Mapping[str, float] = field(default_factory=dict[str, float])


def descend(
    batches: Sequence[Batch],
    objective: Callable[[Batch], Loss],
    optimizers: Optimizers,
    *,
    update: int,
    factor: float,
    pull: Pull = pull_back,
) -> Updated:
    """One update: the gradient of sum / count over all micro-batches, clipped, and a step.

    objective: the loss of one micro-batch under the model, whose count is the batch's own.
    factor: of the peak rate.   pull: gives the gradients of one micro-batch.

    Raises: ConfigError when nothing is scored; NumericsError when loss or gradient is no number,
    before any parameter was moved.
    """
    count = sum(batch.count for batch in batches)
    if not count:
        raise ConfigError(f"update {update} has no scored token; look at the data with --show.")
    optimizers.forget_gradients()
    total = Figure(0.0, count)
    figures: dict[str, Figure] = {}
    # What has nothing scored adds 0 / count: its forward would be for nothing.
    scored = [batch for batch in batches if batch.count]
    own = ranks.own(scored)
    for batch in own:
        loss = pull(objective, batch, count)
        assert loss.count == batch.count, "a loss divides by what its batch said"
        total = total + Figure(loss.total.double(), 0)
        for name, figure in loss.figures.items():
            figures[name] = figures.get(name, Figure(0.0, 0)) + figure
    if optimizers.divided and len(own) < ranks.turns(scored):
        # Others ask for this process's rows once more: it goes through one that counts nothing.
        (0.0 * objective(min(scored, key=lambda batch: batch.count)).total).backward()
    if ranks.size() > 1:
        total, figures = _added_up(total, figures)
        optimizers.join_gradients()
    norms = norms_by_block(optimizers)
    mean = total.mean  # told now: behind the clip a GPU would be waited for once more
    norm = clip(optimizers, math.hypot(*norms.values()))
    if not math.isfinite(mean) or not math.isfinite(norm):
        optimizers.forget_gradients()
        raise NumericsError(
            f"update {update}: the loss is {mean} and the gradient's norm {norm}; nothing "
            "was moved. Take a smaller rate, or look at the data of this update."
        )
    weight = optimizers.step(factor)
    optimizers.forget_gradients()
    return Updated(
        update=update,
        loss=mean,
        count=count,
        norm=norm,
        rate=optimizers.settings.rate * factor,
        figures={name: figure.mean for name, figure in figures.items()},
        norms=norms,
        weight=weight,
    )


def run(
    feed: Callable[[int], Sequence[Batch]],
    objective: Callable[[Batch], Loss],
    optimizers: Optimizers,
    *,
    schedule: Schedule,
    first: int = 0,
    after: Callable[[Updated], None] = lambda updated: None,
    pull: Pull = pull_back,
) -> None:
    """Updates from first to the schedule's end.

    feed: the micro-batches of an update, by its index alone.
    after: told of each update: records, checkpoints, what is shown.   pull: as for descend.

    Raises: as descend.
    """
    for update in range(first, schedule.num_updates):
        factor = schedule.factor(update)
        batches = feed(update)
        after(descend(batches, objective, optimizers, update=update, factor=factor, pull=pull))


def _added_up(total: Figure, figures: Mapping[str, Figure]) -> tuple[Figure, dict[str, Figure]]:
    """The loss and figures of all processes; the count is of the whole update already."""
    own = {name: (float(each.total), each.count) for name, each in figures.items()}
    sums = ranks.add_up({**own, "": (float(total.total), 0)})
    loss, _ = sums.pop("")
    return Figure(loss, total.count), {name: Figure(*each) for name, each in sums.items()}


def clip(optimizers: Optimizers, norm: float) -> float:
    """Scale all gradients so that their global norm, which is given, is at most the limit."""
    most = optimizers.settings.max_norm
    grads = [each.grad for each in optimizers.parameters.values() if each.grad is not None]
    if most and norm > most and math.isfinite(norm):
        torch._foreach_mul_(grads, most / (norm + 1e-6))  # pyright: ignore[reportPrivateUsage]
    return norm


def norms_by_block(optimizers: Optimizers) -> dict[str, float]:
    """The norm of the gradient of each block and of what lies around them, by their names."""
    grads = {name: p.grad for name, p in optimizers.parameters.items() if p.grad is not None}
    if not grads:
        return {}
    # On a GPU a few kernels for all of them.
    found = torch._foreach_norm(list(grads.values()))  # pyright: ignore[reportPrivateUsage]
    each = torch.stack(found).double().square()
    if optimizers.divided:
        each = ranks.add_up_marked(each, [name in optimizers.divided for name in grads])
    squares: dict[str, float] = {}
    for name, square in zip(grads, cast("list[float]", each.tolist()), strict=True):
        parts = name.split(".")
        key = ".".join(parts[: 2 if parts[0] == "blocks" else 1])
        squares[key] = squares.get(key, 0.0) + square
    return {key: math.sqrt(square) for key, square in squares.items()}
