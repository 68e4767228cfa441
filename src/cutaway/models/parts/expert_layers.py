"""Experts as model files describe them: how many, how chosen, and where their matrices go.

No architecture stands here: an architecture file joins the parts that it has.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from cutaway.core.errors import ModelFormatError
from cutaway.core.shapes import Mlp
from cutaway.core.weight_targets import Target
from cutaway.models.parts.architecture import Layout
from cutaway.models.parts.config_fields import Fields
from cutaway.models.parts.tensor_names import Targets, matrix

if TYPE_CHECKING:
    from cutaway.blocks.slots import FeedForward

# What gate, up and down of one expert are called.
PROJECTIONS = ("gate_proj", "up_proj", "down_proj")


@dataclass(frozen=True, kw_only=True)
class ExpertSizes:
    """Sizes of the experts of one layer. Letters of the house style in brackets."""

    num_experts: int  # E
    num_chosen: int  # K, experts per token
    inner: int  # F of one expert

    @property
    def shape(self) -> Mlp:
        """The sizes as estimates take them."""
        return Mlp(
            expert_inner=self.inner, num_experts=self.num_experts, num_active=self.num_chosen
        )

    @staticmethod
    def read(
        config: Fields, count: str, chosen: str, inner: int, *, default: int | None = None
    ) -> ExpertSizes:
        """By the names of the fields; default: of an absent count of chosen ones.

        Raises: ModelFormatError when a token would go to more experts than there are.
        """
        num_experts, num_chosen = config.integer(count), config.integer(chosen, default)
        if num_chosen > num_experts:
            raise ModelFormatError(
                f"is {num_chosen}; it must be at most the number of experts, {num_experts}.",
                file=config.file,
                field=chosen,
            )
        return ExpertSizes(num_experts=num_experts, num_chosen=num_chosen, inner=inner)


@dataclass(frozen=True)
class SoftmaxExperts:
    """Experts chosen by softmax over all scores, as Mixtral's and Qwen3's are.

    gate:        the activation's name in blocks/activations.py.
    module:      what a layer's stored names of router and experts begin with.
    projections: what gate, up and down of one expert are called.
    """

    sizes: ExpertSizes
    gate: str
    is_renormalized: bool
    module: str = "mlp."
    projections: tuple[str, str, str] = PROJECTIONS

    @property
    def shape(self) -> Mlp:
        """The feed-forward's shape, for estimates."""
        return self.sizes.shape

    def targets(self, layout: Layout, at: str, to: str, width: int) -> Targets:
        """Where the tensors of the router and the experts go.

        at: start of stored names; to: start of the names in the model; width: D.
        """
        if layout == "gguf":
            return stacked_targets(at, to, self.sizes, width)
        stored = f"{at}{self.module}"
        return {
            **router_targets(f"{stored}gate", to, self.sizes, width),
            **separate_targets(
                f"{stored}experts.{{}}", to, self.sizes, width, names=self.projections
            ),
        }

    def build(self, width: int) -> FeedForward:
        """The router and its experts with unset weights; width is D."""
        from cutaway.blocks.activations import GATES
        from cutaway.blocks.moe import Experts, MixtureOfExperts
        from cutaway.blocks.router import Router, SoftmaxThenTop

        sizes = self.sizes
        rule = SoftmaxThenTop(sizes.num_chosen, is_renormalized=self.is_renormalized)
        return MixtureOfExperts(
            Router(width, sizes.num_experts, rule),
            Experts(sizes.num_experts, width, sizes.inner, gate=GATES[self.gate]),
        )


@dataclass(frozen=True)
class SharedExperts:
    """Experts beside a gated layer that every token goes through, scaled by a gate of its own.

    inner: of the shared layer.   has_stacks: files keep the experts of a layer in one tensor per
    matrix.   has_gate_row: GGUF files keep the shared layer's gate as a matrix of one row, and not
    as a vector.
    """

    sizes: ExpertSizes
    gate: str
    is_renormalized: bool
    inner: int
    has_stacks: bool = False
    has_gate_row: bool = True

    @property
    def shape(self) -> Mlp:
        """The feed-forward's shape, for estimates."""
        return replace(self.sizes.shape, inner=self.inner, has_shared_gate=True)

    def targets(self, layout: Layout, at: str, to: str, width: int) -> Targets:
        """Where a layer's tensors go, as SoftmaxExperts has it."""
        if layout == "gguf":
            gate = matrix(f"{at}ffn_gate_inp_shexp", f"{to}shared_gate", 0, (1, width))
            if not self.has_gate_row:
                gate = {name: replace(t, shape=(width,), is_row=True) for name, t in gate.items()}
            return {
                **stacked_targets(at, to, self.sizes, width),
                **stacked_shared_targets(at, to, width, self.inner),
                **gate,
            }
        at, count, inner = f"{at}mlp.", self.sizes.num_experts, self.sizes.inner
        stacks = {
            f"{at}experts.gate_up_proj": Target(
                f"{to}experts.gate_up.weight", (count, 2 * inner, width)
            ),
            f"{at}experts.down_proj": Target(f"{to}experts.down.weight", (count, width, inner)),
        }
        separate = separate_targets(f"{at}experts.{{}}", to, self.sizes, width, names=PROJECTIONS)
        return {
            **router_targets(f"{at}gate", to, self.sizes, width),
            **(stacks if self.has_stacks else separate),
            **shared_targets(f"{at}shared_expert.", to, width, self.inner, has_bias=False),
            **matrix(f"{at}shared_expert_gate", f"{to}shared_gate", 0, (1, width)),
        }

    def build(self, width: int) -> FeedForward:
        """The router and its experts with unset weights; width is D."""
        from cutaway.blocks.activations import GATES
        from cutaway.blocks.linear import Linear
        from cutaway.blocks.mlp import GatedMLP
        from cutaway.blocks.moe import Experts, MixtureOfExperts
        from cutaway.blocks.router import Router, SoftmaxThenTop

        sizes, gate = self.sizes, GATES[self.gate]
        rule = SoftmaxThenTop(sizes.num_chosen, is_renormalized=self.is_renormalized)
        return MixtureOfExperts(
            Router(width, sizes.num_experts, rule),
            Experts(sizes.num_experts, width, sizes.inner, gate=gate),
            GatedMLP(width, self.inner, gate=gate),
            shared_gate=Linear(width, (1,)),
        )


def sparse_layers(config: Fields, num_layers: int) -> frozenset[int]:
    """The layers with experts, by mlp_only_layers and decoder_sparse_step."""
    dense, every = config.integers("mlp_only_layers"), config.integer("decoder_sparse_step", 1)
    return frozenset(
        layer for layer in range(num_layers) if layer not in dense and (layer + 1) % every == 0
    )


def router_targets(stored: str, to: str, experts: ExpertSizes, width: int) -> Targets:
    """The router's map. stored: without .weight."""
    shape = (experts.num_experts, width)
    return {f"{stored}.weight": Target(f"{to}router.scores.weight", shape)}


def separate_targets(
    stored: str, to: str, experts: ExpertSizes, width: int, *, names: tuple[str, str, str]
) -> Targets:
    """A tensor per expert and matrix, as Hugging Face keeps them. stored: with a {} for each."""
    gate, up, down = names
    inner, targets = experts.inner, Targets()
    joined, back = f"{to}experts.gate_up.weight", f"{to}experts.down.weight"
    for expert in range(experts.num_experts):
        at = stored.format(expert)
        rows, values = slice(0, inner), slice(inner, 2 * inner)
        targets[f"{at}.{gate}.weight"] = Target(joined, (inner, width), part=(expert, rows))
        targets[f"{at}.{up}.weight"] = Target(joined, (inner, width), part=(expert, values))
        targets[f"{at}.{down}.weight"] = Target(back, (width, inner), part=(expert,))
    return targets


def stacked_targets(at: str, to: str, experts: ExpertSizes, width: int) -> Targets:
    """A tensor per matrix for all experts together, and the router, as GGUF keeps them."""
    count, inner = experts.num_experts, experts.inner
    joined, every = f"{to}experts.gate_up.weight", slice(None)
    rows, values = (every, slice(0, inner)), (every, slice(inner, 2 * inner))
    return {
        **router_targets(f"{at}ffn_gate_inp", to, experts, width),
        f"{at}ffn_gate_exps.weight": Target(joined, (count, inner, width), part=rows),
        f"{at}ffn_up_exps.weight": Target(joined, (count, inner, width), part=values),
        f"{at}ffn_down_exps.weight": Target(f"{to}experts.down.weight", (count, width, inner)),
    }


def shared_targets(stored: str, to: str, width: int, inner: int, *, has_bias: bool) -> Targets:
    """The gated layer for every token, F = inner."""
    rows, back = (inner, width), (width, inner)
    return {
        **matrix(f"{stored}gate_proj", f"{to}shared.gate_up", 0, rows, has_bias=has_bias),
        **matrix(f"{stored}up_proj", f"{to}shared.gate_up", 1, rows, has_bias=has_bias),
        **matrix(f"{stored}down_proj", f"{to}shared.down", 0, back, has_bias=has_bias),
    }


def stacked_shared_targets(at: str, to: str, width: int, inner: int) -> Targets:
    """The same as GGUF keeps it."""
    return {
        **matrix(f"{at}ffn_gate_shexp", f"{to}shared.gate_up", 0, (inner, width)),
        **matrix(f"{at}ffn_up_shexp", f"{to}shared.gate_up", 1, (inner, width)),
        **matrix(f"{at}ffn_down_shexp", f"{to}shared.down", 0, (width, inner)),
    }


def has_experts(shapes: Mapping[str, tuple[int, ...]], layer: int) -> bool:
    """Whether a layer of a GGUF file has experts."""
    return f"blk.{layer}.ffn_gate_exps.weight" in shapes
