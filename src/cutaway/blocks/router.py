"""Which experts a token goes to, and how much each counts: one class per rule.

A rule sees the router's scores alone. All compute in float32 or wider: a choice between two close
scores must not hang on the dtype of activations.
Where two scores are equal torch.topk decides, for a given row always alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from cutaway.blocks.slots import Norm
from cutaway.kernels.elementwise import row_sum, sigmoid
from cutaway.kernels.experts import (
    GroupChoice,
    Routing,
    RoutingRule,
    Rule,
    choose_experts,
    score_experts,
    score_trainable_experts,
)
from cutaway.quantize.dense import DenseWeight
from cutaway.quantize.scheme import Weight

_LEAST_SUM = 1e-12  # of corrected probabilities, as the reference


class Router(nn.Module):
    """A score per expert from a linear map, and a rule that chooses by them.

    norm: of what the map reads, where the router has one of its own.

    Shapes: hidden [T, D] -> expert ids [T, K] int64, weights [T, K] in the dtype of hidden.
    """

    def __init__(
        self,
        width: int,
        num_experts: int,
        rule: Rule,
        *,
        has_bias: bool = False,
        norm: Norm | None = None,
    ) -> None:
        super().__init__()
        self.norm = norm
        self.num_experts, self.width = num_experts, width
        self.scores = DenseWeight(num_experts, width)
        self.bias = nn.Parameter(torch.zeros(num_experts)) if has_bias else None
        self.rule = rule

    def forward(self, hidden: Tensor, *, trains: bool = False) -> tuple[Tensor, Tensor]:
        """Score the experts in float32 or wider, and choose by the rule.

        trains: whether scores take the quick differentiable form.
        Shapes: hidden [T, D] -> expert ids [T, K] int64, weights [T, K].
        """
        matrix = cast(Weight, self.scores).dense()
        read = hidden if self.norm is None else self.norm(hidden)
        score = score_trainable_experts if trains else score_experts
        scores = score(read, matrix, self.bias)
        return choose_experts(scores, self.rule, dtype=hidden.dtype)


@dataclass(frozen=True)
class SoftmaxThenTop:
    """Probabilities over all experts, the highest of them; renormalized they add up to 1.

    Source: Jiang et al. 2024, arXiv 2401.04088 (Mixtral, renormalized); Qwen3 (either way);
    DeepSeek-AI 2024, arXiv 2405.04434 (not renormalized, times multiplier).
    """

    num_chosen: int
    is_renormalized: bool
    multiplier: float = 1.0

    @property
    def routing(self) -> Routing:
        """The rule in numbers."""
        return Routing(
            RoutingRule.SOFTMAX_THEN_TOP,
            self.num_chosen,
            multiplier=self.multiplier,
            is_renormalized=self.is_renormalized,
        )

    def __call__(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        weights, expert_ids = scores.softmax(dim=-1).topk(self.num_chosen, dim=-1)
        if self.is_renormalized:
            weights = weights / row_sum(weights)
        return expert_ids, weights * self.multiplier


class WeighedSoftmax(nn.Module):
    """Probabilities over all experts, the highest of them adding up to 1, each times a factor.

    multiplier: of the scores. factors: learned, one per expert; they take no part in the choice.

    Source: transformers' Gemma4TextRouter.
    """

    def __init__(self, num_experts: int, *, num_chosen: int, multiplier: float) -> None:
        super().__init__()
        self.factors = nn.Parameter(torch.ones(num_experts))
        self.num_chosen, self.multiplier = num_chosen, multiplier

    @property
    def routing(self) -> Routing:
        """The rule in numbers."""
        return Routing(
            RoutingRule.SOFTMAX_THEN_TOP,
            self.num_chosen,
            factors=self.factors.detach(),
            score_multiplier=self.multiplier,
            is_renormalized=True,
        )

    def forward(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """The likeliest experts, each with its own factor.

        Shapes: scores [T, E] -> expert ids [T, K], weights [T, K].
        """
        probabilities = (scores * self.multiplier).softmax(dim=-1)
        weights, expert_ids = probabilities.topk(self.num_chosen, dim=-1)
        weights = weights / row_sum(weights)
        return expert_ids, weights * self.factors.to(weights.dtype)[expert_ids]


@dataclass(frozen=True)
class TopThenSoftmax:
    """The highest scores, and probabilities among them. Source: OpenAI gpt-oss."""

    num_chosen: int

    @property
    def routing(self) -> Routing:
        """The rule in numbers."""
        return Routing(RoutingRule.TOP_THEN_SOFTMAX, self.num_chosen)

    def __call__(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        highest, expert_ids = scores.topk(self.num_chosen, dim=-1)
        return expert_ids, highest.softmax(dim=-1)


@dataclass(frozen=True)
class ExpertGroups:
    """Experts in groups of neighbours, of which a token may use the experts of some."""

    num_groups: int
    num_chosen: int
    num_counted: int  # a group is worth the sum of so many of its best scores

    @property
    def choice(self) -> GroupChoice:
        """The same in numbers."""
        return GroupChoice(self.num_groups, self.num_chosen, self.num_counted)

    def allow(self, scores: Tensor) -> Tensor:
        """Whether an expert is in a chosen group. Shapes: [T, E] -> [T, E] bool."""
        grouped = scores.view(len(scores), self.num_groups, -1)  # [T, groups, E / groups]
        worth = row_sum(grouped.topk(self.num_counted, dim=-1).values)[..., 0]
        chosen = worth.topk(self.num_chosen, dim=-1).indices
        is_chosen = torch.zeros_like(worth, dtype=torch.bool).scatter(-1, chosen, True)
        return is_chosen[..., None].expand_as(grouped).reshape(scores.shape)


@dataclass(frozen=True)
class GroupedSoftmaxThenTop:
    """Probabilities over all experts, the highest of those in the best groups.

    Source: DeepSeek-AI 2024, arXiv 2405.04434, section 2.2.2 (device-limited routing).
    """

    num_chosen: int
    groups: ExpertGroups
    multiplier: float = 1.0

    @property
    def routing(self) -> Routing:
        """The rule in numbers."""
        return Routing(
            RoutingRule.SOFTMAX_THEN_TOP,
            self.num_chosen,
            groups=self.groups.choice,
            multiplier=self.multiplier,
        )

    def __call__(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        probabilities = scores.softmax(dim=-1)
        candidates = probabilities.masked_fill(~self.groups.allow(probabilities), 0.0)
        weights, expert_ids = candidates.topk(self.num_chosen, dim=-1)
        return expert_ids, weights * self.multiplier


class CorrectedSigmoid(nn.Module):
    """Each expert's own sigmoid; a learned correction takes part in the choice, not in weights.

    Source: DeepSeek-AI 2024, arXiv 2412.19437, section 2.1.2 (auxiliary-loss-free balancing).
    """

    def __init__(
        self,
        num_experts: int,
        *,
        num_chosen: int,
        groups: ExpertGroups,
        is_renormalized: bool,
        multiplier: float,
    ) -> None:
        super().__init__()
        self.correction = nn.Parameter(torch.zeros(num_experts))
        self.num_chosen, self.groups = num_chosen, groups
        self.is_renormalized, self.multiplier = is_renormalized, multiplier

    @property
    def routing(self) -> Routing:
        """The rule in numbers."""
        return Routing(
            RoutingRule.SIGMOID_THEN_TOP,
            self.num_chosen,
            groups=self.groups.choice,
            correction=self.correction.detach(),
            multiplier=self.multiplier,
            is_renormalized=self.is_renormalized,
            least_sum=1e-20,
        )

    def forward(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """The experts with the highest corrected scores, weighed by their own.

        Shapes: scores [T, E] -> expert ids [T, K], weights [T, K].
        """
        own = sigmoid(scores)
        corrected = own + self.correction.to(own.dtype)
        candidates = corrected.masked_fill(~self.groups.allow(corrected), -torch.inf)
        expert_ids = candidates.topk(self.num_chosen, dim=-1).indices
        weights = own.gather(-1, expert_ids)
        if self.is_renormalized:
            weights = weights / (row_sum(weights) + 1e-20)  # as the reference
        return expert_ids, weights * self.multiplier


class CorrectedSoftmax(nn.Module):
    """Probabilities over all experts; a learned correction takes part in the choice alone.

    Source: transformers' Ernie4_5_MoeTopKRouter.
    """

    def __init__(self, num_experts: int, *, num_chosen: int) -> None:
        super().__init__()
        self.correction = nn.Parameter(torch.zeros(1, num_experts))
        self.num_chosen = num_chosen

    @property
    def routing(self) -> Routing:
        """The rule in numbers."""
        return Routing(
            RoutingRule.SOFTMAX_THEN_TOP,
            self.num_chosen,
            correction=self.correction.detach()[0],
            is_renormalized=True,
            least_sum=_LEAST_SUM,
        )

    def forward(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """The experts with the highest corrected probabilities, weighed by their own.

        Shapes: scores [T, E] -> expert ids [T, K], weights [T, K].
        """
        own = scores.softmax(dim=-1)
        expert_ids = (own + self.correction.to(own.dtype)).topk(self.num_chosen, dim=-1).indices
        weights = own.gather(-1, expert_ids)
        return expert_ids, weights / (row_sum(weights) + _LEAST_SUM)
