"""From parameters by shape and role to torch's AdamW and Muon, and their state by name.

The state is a table of tensors by the parameter's name: what a checkpoint holds, and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import cast

import torch
from torch import Tensor, nn

from cutaway.core.errors import ConfigError
from cutaway.core.limits import quote
from cutaway.train import ranks
from cutaway.train.adamw import KeptAdamW
from cutaway.train.model import weight_shards

NAMES = ("adamw", "muon")
_TABLES = frozenset({"embedding", "layer_inputs", "unembedding", "head"})  # a row for each token


@dataclass(frozen=True, kw_only=True)
class OptimizerSettings:
    """What optimizers are told; the defaults are those of docs/train.md.

    rate: the peak, which a schedule multiplies.   decay: on matrices alone.
    max_norm: the global norm above which gradients are scaled down; 0 leaves them.
    """

    name: str = "adamw"
    rate: float
    betas: tuple[float, float] = (0.9, 0.95)
    epsilon: float = 1e-8
    decay: float = 0.1
    max_norm: float = 1.0

    def __post_init__(self) -> None:
        if self.name not in NAMES:
            raise ConfigError(f"optimizer is {quote(self.name)}; it must be {' or '.join(NAMES)}.")


@dataclass(frozen=True)
class Group:
    """Parameters that are treated alike, by name. is_decayed: whether weight decay reaches them."""

    optimizer: str
    names: tuple[str, ...]
    is_decayed: bool


def groups(module: nn.Module, optimizer: str = "adamw") -> tuple[Group, ...]:
    """Every parameter that is trained in one group: a tied one once, under its first name.

    Matrices decay; the embedding, norms, biases and maps to one number do not. Muon takes the
    matrices between embedding and head, routers left out: those two have no sides that mix.
    """
    sorted_in: dict[tuple[str, bool], list[str]] = {}
    for name, parameter in module.named_parameters():
        if parameter.requires_grad:
            is_matrix = parameter.ndim >= 2 and min(parameter.shape[-2:]) > 1
            # A model may stand within something else that is trained: a scorer, a policy.
            parts = name.split(".")
            is_decayed = is_matrix and not _is_lookup(parts)
            is_inner = is_decayed and parameter.ndim == 2 and _TABLES.isdisjoint(parts)
            takes = optimizer == "muon" and is_inner and "router" not in name
            key = ("muon" if takes else "adamw", is_decayed)
            sorted_in.setdefault(key, []).append(name)
    return tuple(Group(kind, tuple(names), decayed) for (kind, decayed), names in sorted_in.items())


def _is_lookup(parts: Sequence[str]) -> bool:
    """Whether its rows are looked up by token. parts: of a parameter's name."""
    if "layer_inputs" not in parts:
        return "embedding" in parts
    return not {"table", "embedding"}.isdisjoint(parts)


def _first(value: Tensor) -> Tensor:
    """A copy of the first number, where the tensor lies. Shapes: [...] to []."""
    return value.detach().flatten()[0].to(torch.float64, copy=True)


class Optimizers:
    """The optimizers of one module, stepped together.

    module: its parameters are what is trained; they stay the same tensors. Of those that processes
        divide this one moves its rows, and `parameters` has these.
    """

    def __init__(self, module: nn.Module, settings: OptimizerSettings) -> None:
        self.settings = settings
        self.groups = groups(module, settings.name)
        by_name = dict(module.named_parameters())
        self._wholes = {name: by_name[name] for group in self.groups for name in group.names}
        own = {name: weight_shards.own_rows(each) for name, each in self._wholes.items()}
        self.parameters = {
            name: self._wholes[name] if each is self._wholes[name] else nn.Parameter(each)
            for name, each in own.items()
        }
        self.divided = frozenset(n for n, p in self.parameters.items() if p is not self._wholes[n])
        assert not (self.divided and settings.name == "muon"), "Muon turns whole matrices"
        self._names = {id(parameter): name for name, parameter in self.parameters.items()}
        self._torchs = [
            made
            for kind in NAMES
            if (own := [group for group in self.groups if group.optimizer == kind])
            for made in (self._made(kind, own),)
        ]

    def _made(self, kind: str, own: Sequence[Group]) -> torch.optim.Optimizer:
        settings = self.settings
        listed = [
            {
                "params": [self.parameters[name] for name in group.names],
                "weight_decay": settings.decay if group.is_decayed else 0.0,
            }
            for group in own
        ]
        if kind == "muon":
            return torch.optim.Muon(
                listed,
                lr=settings.rate,
                momentum=0.95,
                nesterov=True,
                ns_steps=5,
                adjust_lr_fn="match_rms_adamw",
            )
        return KeptAdamW(
            listed, lr=settings.rate, betas=settings.betas, eps=settings.epsilon, fused=True
        )

    @cached_property
    def watched(self) -> str:
        """The parameter whose first number is told update by update; "" where AdamW moves none."""
        names = [name for each in self.groups if each.optimizer == "adamw" for name in each.names]
        inner = [name for name in names if name.startswith("blocks.")]
        matrices = [name for name in inner if self.parameters[name].ndim == 2]
        return next(iter((*matrices, *inner, *names)), "")

    def step(self, factor: float) -> dict[str, float]:
        """Move every parameter along its gradient, at the peak rate times factor.

        Gives one weight's way, as AdamW goes (arXiv:1711.05101, algorithm 2): before, gradient
        (clipped), mean and square (its moments after this gradient), after. Where matrices are
        divided the first process has the weight.
        """
        if not self.watched or not self.parameters[self.watched].numel():
            self._step(factor)
            return {}
        parameter = self.parameters[self.watched]
        gradient = parameter.new_zeros(1) if parameter.grad is None else parameter.grad
        before = [_first(parameter), _first(gradient)]
        self._step(factor)
        state = next(each.state[parameter] for each in self._torchs if parameter in each.state)
        behind = [_first(each) for each in (state["exp_avg"], state["exp_avg_sq"], parameter)]
        # Stacked, they come from a device at one wait instead of five.
        numbers = cast("list[float]", torch.stack([*before, *behind]).tolist())
        return dict(zip(("before", "gradient", "mean", "square", "after"), numbers, strict=True))

    def _step(self, factor: float) -> None:
        for each in self._torchs:
            for group in each.param_groups:
                group["lr"] = self.settings.rate * factor
            each.step()

    def join_gradients(self) -> None:
        """Give every parameter all processes' gradients added up, or its rows of the sum."""
        ranks.add_up_gradients({n: p for n, p in self.parameters.items() if n not in self.divided})
        for name in self.divided:
            own, gradient = self.parameters[name], self._wholes[name].grad
            own.grad = (
                torch.zeros_like(own) if gradient is None else weight_shards.own_rows(gradient)
            )

    def forget_gradients(self) -> None:
        """Let go of all gradients."""
        for parameter in (*self.parameters.values(), *self._wholes.values()):
            parameter.grad = None

    def state(self) -> dict[str, Tensor]:
        """What the optimizers keep, on the CPU, by the name of the parameter and of the number.

        All processes call it; the first is given whole tensors.
        """
        kept: dict[str, Tensor] = {}
        for name, value in self._entries():
            if ranks.rank() == 0:
                kept[name] = value.cpu()
        return kept

    def _entries(self) -> Iterator[tuple[str, Tensor]]:
        for each in self._torchs:
            for parameter, kept in each.state.items():
                name = self._names[id(parameter)]
                for key, value in kept.items():
                    number = torch.as_tensor(value)
                    is_like = number.shape == parameter.shape
                    yield (
                        f"{name}:{key}",
                        weight_shards.whole(number, self._wholes[name]) if is_like else number,
                    )

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Take up what state() gave of the same parameters, bit for bit.

        Raises: ConfigError naming parameters that have none, or that are not there.
        """
        by_parameter: dict[str, dict[str, Tensor]] = {}
        for name, value in state.items():
            parameter, _, key = name.rpartition(":")
            by_parameter.setdefault(parameter, {})[key] = value
        wrong = sorted(by_parameter.keys() ^ self.parameters.keys())
        if wrong:
            raise ConfigError(
                f"the optimizer's state does not fit the model: {', '.join(wrong[:5])} "
                f"{'is' if len(wrong) == 1 else 'are'} in one of them only ({len(wrong)} in all)."
            )
        for each in self._torchs:
            if isinstance(each, KeptAdamW):
                each.forget_lists()
            for group in each.param_groups:
                for parameter in group["params"]:
                    name = self._names[id(parameter)]
                    each.state[parameter] = {
                        key: self._own(value, name).to(parameter.device, copy=True)
                        for key, value in by_parameter[name].items()
                    }

    def _own(self, value: Tensor, name: str) -> Tensor:
        """A number of a parameter's state as this process has it; those of no shape are for all."""
        parameter = self._wholes[name]
        return weight_shards.cut_like(value, parameter) if value.shape == parameter.shape else value
