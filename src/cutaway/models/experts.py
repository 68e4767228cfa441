"""Experts as model files describe them: how many, how chosen, and where their matrices go.

No architecture stands here: an architecture file joins the parts that it has.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cutaway.core.errors import ModelFormatError
from cutaway.core.weights import Target
from cutaway.models.fields import Fields
from cutaway.models.names import Targets, matrix
from cutaway.models.sizes import Sizes

# What gate, up and down of one expert are called.
PROJECTIONS = ("gate_proj", "up_proj", "down_proj")
MIXTRAL = ("w1", "w3", "w2")


@dataclass(frozen=True, kw_only=True)
class ExpertSizes:
    """Sizes of the experts of one layer. Letters of the house style in brackets."""

    num_experts: int  # E
    num_chosen: int  # K, experts per token
    inner: int  # F of one expert

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


def shared_targets(stored: str, to: str, sizes: Sizes, *, has_bias: bool) -> Targets:
    """The gated layer for every token. sizes: with its own inner size."""
    rows, back = (sizes.inner, sizes.width), (sizes.width, sizes.inner)
    return {
        **matrix(f"{stored}gate_proj", f"{to}shared.gate_up", 0, rows, has_bias=has_bias),
        **matrix(f"{stored}up_proj", f"{to}shared.gate_up", 1, rows, has_bias=has_bias),
        **matrix(f"{stored}down_proj", f"{to}shared.down", 0, back, has_bias=has_bias),
    }


def has_experts(shapes: Mapping[str, tuple[int, ...]], layer: int) -> bool:
    """Whether a layer of a GGUF file has experts."""
    return f"blk.{layer}.ffn_gate_exps.weight" in shapes
