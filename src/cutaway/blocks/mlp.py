"""Feed-forward layers: each token alone through a wider layer and back, gated or not."""

from __future__ import annotations

from torch import Tensor, nn

from cutaway.blocks.activations import Activation, Gate
from cutaway.blocks.linear import Division, Linear
from cutaway.core.shards import cuts, widths
from cutaway.core.step import Step
from cutaway.kernels.gate import silu_gate
from cutaway.kernels.gate.trainable import trainable_activation, trainable_gate
from cutaway.kernels.gather import Gatherer, gather_columns
from cutaway.kernels.norm.late import LateNorm


class GatedMLP(nn.Module):
    """down(activation(gate(x)) * up(x)); gate names the activated product.

    is_joined: one stored matrix holds the rows of gate and up.

    Shapes: hidden [T, D] -> [T, D].
    Source: Shazeer 2020, arXiv 2002.05202.
    """

    takes_norm = True

    def __init__(
        self,
        width: int,
        inner: int,
        *,
        has_bias: bool = False,
        gate: Gate = silu_gate,
        is_joined: bool = False,
    ) -> None:
        super().__init__()
        rows = (2 * inner,) if is_joined else (inner, inner)
        self.gate_up = Linear(width, rows, has_bias=has_bias)
        self.down = Linear(inner, (width,), has_bias=has_bias)
        self.gate = gate
        self.division: Division | None = None  # of the product, among ranks

    def divide(self, group: Gatherer) -> None:
        """Keep a rank's part of gate and up, and of down; products are gathered between them."""
        self.division = divide_inner(self.gate_up, group, units=self.down.in_features)
        self.down.divide(group)

    def forward(self, hidden: Tensor | LateNorm, step: Step, layer: int) -> Tensor:
        """What the feed-forward adds to the stream. Shapes: hidden [T, D] -> [T, D]."""
        if step.trains:
            sides = self.gate_up(hidden, step.adapters, trains=True)
            if step.sink is None and self.division is None:
                update = self.down.behind_gate(sides, self.gate)
                if update is not None:
                    return update
            product = trainable_gate(self.gate, sides)
        else:
            product = self.gate_up.gate_halves(hidden, self.gate, step.adapters)
        product = whole(product, self.division)
        product = step.tap("blocks.mlp.product", product, layer)
        return self.down(product, step.adapters, trains=step.trains)

    def sides(self, hidden: Tensor, adapters: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """What the activation gets, and what it is multiplied with. Shapes: [T, F] each."""
        gate, up = self.gate_up(hidden, adapters).chunk(2, dim=-1)
        return gate, up

    def columns(self) -> Tensor:
        """What each unit adds for a product of 1. Shapes: [F, D]."""
        return self.down.dense().T


class PlainMLP(nn.Module):
    """down(activation(up(x))), without a gate, as the first transformers had it.

    Shapes: hidden [T, D] -> [T, D].
    Source: Vaswani et al. 2017, arXiv 1706.03762.
    """

    def __init__(
        self, width: int, inner: int, *, activation: Activation, has_bias: bool = False
    ) -> None:
        super().__init__()
        self.up = Linear(width, (inner,), has_bias=has_bias)
        self.down = Linear(inner, (width,), has_bias=has_bias)
        self.activation = activation
        self.division: Division | None = None  # of the product, among ranks

    def divide(self, group: Gatherer) -> None:
        """Keep a rank's part of up and of down; products are gathered between them."""
        self.division = divide_inner(self.up, group, units=self.down.in_features)
        self.down.divide(group)

    def forward(self, hidden: Tensor, step: Step, layer: int) -> Tensor:
        """What the feed-forward adds to the stream. Shapes: hidden [T, D] -> [T, D]."""
        inner = self.up(hidden, step.adapters, trains=step.trains)
        if step.trains:
            product = trainable_activation(self.activation, inner)
        else:
            product = self.activation(inner)
        product = whole(product, self.division)
        product = step.tap("blocks.mlp.product", product, layer)
        return self.down(product, step.adapters, trains=step.trains)

    def columns(self) -> Tensor:
        """What each unit adds for a product of 1. Shapes: [F, D]."""
        return self.down.dense().T


def divide_inner(rows: Linear, group: Gatherer, *, units: int) -> Division | None:
    """Keep a rank's units of a layer's first map, of gate and of up where both are one matrix.

    units: of the layer, F. With fewer than ranks all of them are kept, and None is returned.
    """
    if units < group.size:
        return None
    parts = cuts(units, group.size)
    own = parts[group.rank]
    kept: list[tuple[range, ...]] = []
    for count in rows.rows:
        assert count % units == 0, "a segment holds every unit, or gate and up of every unit"
        starts = range(0, count, units)
        kept.append(tuple(range(own.start + start, own.stop + start) for start in starts))
    rows.keep(kept, group)
    return Division(group, (widths(parts),))


def whole(product: Tensor, division: Division | None) -> Tensor:
    """The products of all units, where ranks have parts of them. Shapes: [T, own F] -> [T, F]."""
    return product if division is None else gather_columns(product, *division)
