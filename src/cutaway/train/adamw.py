"""torch's fused AdamW that asks parameters for their state once instead of at every step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor


class _Lists(NamedTuple):
    """A group's parameters and their state, in order."""

    parameters: list[Tensor]
    means: list[Tensor]
    squares: list[Tensor]
    steps: list[Tensor]


class KeptAdamW(torch.optim.AdamW):
    """AdamW by torch's fused kernels, whose lists are kept between steps.

    The host walks through some hundred parameters while a GPU has nothing to do: it waits for the
    norm of all gradients before. The kernels are torch's, and so are the bits.
    """

    _kept: list[_Lists] | None = None

    def forget_lists(self) -> None:
        """To be called where state was put in another's place."""
        self._kept = None

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # pyright: ignore
        """One step; see torch.optim.AdamW, which makes the first."""
        assert closure is None, "gradients are there already"
        grads = [[each.grad for each in group["params"]] for group in self.param_groups]
        if self._kept is None or any(each is None for own in grads for each in own):
            super().step()
            self._kept = self._lists()
            return
        for group, own, kept in zip(self.param_groups, grads, self._kept, strict=True):
            _move(group, kept, cast("list[Tensor]", own))

    def _lists(self) -> list[_Lists] | None:
        """Of all groups; None while a parameter has no state, or not all are alike."""
        found: list[_Lists] = []
        for group in self.param_groups:
            parameters = cast("list[Tensor]", group["params"])
            states = [cast("dict[str, Tensor]", self.state.get(each)) for each in parameters]
            if not all(states) or len({(each.device, each.dtype) for each in parameters}) > 1:
                return None
            names = ("exp_avg", "exp_avg_sq", "step")
            found.append(_Lists(parameters, *([each[name] for each in states] for name in names)))
        return found


def _move(group: dict[str, Any], kept: _Lists, grads: list[Tensor]) -> None:
    """What torch's step does with the lists of a group."""
    own = cast(Any, torch)
    own._foreach_add_(kept.steps, 1)
    beta1, beta2 = group["betas"]
    own._fused_adamw_(
        *(kept.parameters, grads, kept.means, kept.squares, [], kept.steps),
        amsgrad=False,
        lr=group["lr"],
        beta1=beta1,
        beta2=beta2,
        weight_decay=group["weight_decay"],
        eps=group["eps"],
        maximize=False,
        grad_scale=None,
        found_inf=None,
    )
