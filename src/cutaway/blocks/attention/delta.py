"""A gated delta layer: in place of keys and values a state of fixed size, which tokens rewrite.

Each page of its cache group holds the state after the page's last token so far. To go on a layer
reads the page of the token before; a full page's state is the snapshot for prefix hits.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from cutaway.blocks.attention.head_parts import HeadParts
from cutaway.blocks.linear import Linear
from cutaway.blocks.norm import RMSNorm
from cutaway.blocks.positions import Frequencies
from cutaway.blocks.slots import Cosines
from cutaway.core.layout import CacheSpec
from cutaway.core.shapes import DeltaShape
from cutaway.core.shards import rows_of
from cutaway.core.step import Step
from cutaway.core.weight_targets import KeptRows
from cutaway.kernels.delta import DeltaWeights, run_sequences
from cutaway.kernels.gate import silu_gate
from cutaway.kernels.gather import Gatherer


class Read(NamedTuple):
    """What a layer reads of its tokens, by key head.

    Shapes: query, key [T, G, K]; value and gate [T, G, S * V]; rate and speed [T, G, S], with
            G key heads, each with S value heads.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    gate: Tensor
    rate: Tensor
    speed: Tensor


class Reader(Protocol):
    """The matrices before the convolution, in the order that files have. Shapes: hidden [T, D]."""

    def __call__(self, hidden: Tensor, adapters: Tensor | None) -> Read: ...

    def keep(self, heads: range, group: Gatherer) -> None:
        """Keep some key heads, before weights are set; group has the others."""
        ...

    def divide(self, group: Gatherer) -> None:
        """Keep a rank's part of each matrix's rows; results are gathered."""
        ...


class ByHead(nn.Module):
    """Rows of each key head lie together: its query, its key, its values, their gates.

    Source: Qwen3-Next.
    """

    def __init__(self, width: int, sizes: DeltaShape) -> None:
        super().__init__()
        self.sizes = sizes
        values = sizes.num_value_heads * sizes.value_size
        self.joined = Linear(width, (sizes.channels + values,))  # queries to gates
        self.rates = Linear(width, (2 * sizes.num_value_heads,))

    def keep(self, heads: range, group: Gatherer) -> None:
        """Keep some key heads, before weights are set; group has the others."""
        for rows in (self.joined, self.rates):
            of_head = rows.rows[0] // self.sizes.num_key_heads
            rows.keep([(rows_of(heads, of_head),)], group)
        self.sizes = self.sizes.narrow(len(heads))

    def divide(self, group: Gatherer) -> None:
        """Keep a rank's part of each matrix's rows; results are gathered."""
        self.joined.divide(group)
        self.rates.divide(group)

    def forward(self, hidden: Tensor, adapters: Tensor | None) -> Read:
        """Read the tokens, and sort what was read by kind. Shapes: hidden [T, D]."""
        sizes = self.sizes
        value = sizes.shared * sizes.value_size
        heads = self.joined(hidden, adapters).unflatten(-1, (sizes.num_key_heads, -1))
        sides = (sizes.key_size, sizes.key_size, value, value)
        query, key, values, gate = heads.split(sides, dim=-1)
        rates = self.rates(hidden, adapters).unflatten(-1, (sizes.num_key_heads, -1))
        rate, speed = rates.chunk(2, dim=-1)
        return Read(query, key, values, gate, rate, speed)


class ByKind(nn.Module):
    """All queries come first, then all keys, values and gates. Source: Qwen3.5."""

    def __init__(self, width: int, sizes: DeltaShape) -> None:
        super().__init__()
        self.sizes = sizes
        values = sizes.num_value_heads * sizes.value_size
        self.joined = Linear(width, (sizes.channels, values))
        self.rates = Linear(width, [sizes.num_value_heads] * 2)

    def keep(self, heads: range, group: Gatherer) -> None:
        """Keep some key heads, before weights are set; group has the others."""
        channels = own_channels(self.sizes, heads)
        values = rows_of(heads, self.sizes.shared * self.sizes.value_size)
        self.joined.keep([channels, (values,)], group)
        self.rates.keep([(rows_of(heads, self.sizes.shared),)] * 2, group)
        self.sizes = self.sizes.narrow(len(heads))

    def divide(self, group: Gatherer) -> None:
        """Keep a rank's part of each matrix's rows; results are gathered."""
        self.joined.divide(group)
        self.rates.divide(group)

    def forward(self, hidden: Tensor, adapters: Tensor | None) -> Read:
        """Read the tokens. Shapes: hidden [T, D]."""
        sizes = self.sizes
        keys = sizes.num_key_heads * sizes.key_size
        values = sizes.num_value_heads * sizes.value_size
        rows = self.joined(hidden, adapters).split((keys, keys, values, values), dim=-1)
        rates = self.rates(hidden, adapters).chunk(2, dim=-1)
        return Read(*(each.unflatten(-1, (sizes.num_key_heads, -1)) for each in (*rows, *rates)))


def own_channels(sizes: DeltaShape, heads: range) -> tuple[range, ...]:
    """The channels of some key heads: of their queries, their keys and their values."""
    keys, values = rows_of(heads, sizes.key_size), rows_of(heads, sizes.shared * sizes.value_size)
    kind = sizes.num_key_heads * sizes.key_size
    starts = ((keys, 0), (keys, kind), (values, 2 * kind))
    return tuple(range(rows.start + start, rows.stop + start) for rows, start in starts)


class DeltaLayer(nn.Module):
    """Queries, keys and values through a short convolution, then the gated delta rule.

    reader: makes what the convolution reads, gates and rates.

    Shapes: hidden [T, D] -> [T, D].
    Source: Yang et al. 2024, arXiv 2412.06464; Qwen3-Next.
    """

    frequencies: Frequencies | None = None

    def __init__(self, width: int, sizes: DeltaShape, *, reader: Reader, epsilon: float) -> None:
        super().__init__()
        self.sizes, self.reader = sizes, reader
        values = sizes.num_value_heads * sizes.value_size
        self.convolution = nn.Parameter(torch.zeros(sizes.channels, 1, sizes.kernel))
        self.decay_bias = nn.Parameter(torch.ones(sizes.num_value_heads))
        self.decay_log = nn.Parameter(torch.zeros(sizes.num_value_heads))
        self.norm = RMSNorm(sizes.value_size, epsilon)
        self.output = Linear(values, (width,))
        self.parts: HeadParts | None = None  # of key heads, among ranks

    def divide(self, group: Gatherer) -> Mapping[str, KeptRows]:
        """Keep a rank's key heads, their values, channels and states; results are gathered.

        With fewer key heads than ranks each rank computes all of them, and only maps are divided.
        Returns: by parameter the rows that are kept.
        """
        sizes = self.sizes
        self.parts = HeadParts.of(sizes.num_key_heads, group)
        self.output.divide(group)
        if self.parts is None:
            self.reader.divide(group)
            return {}
        own = self.parts.own
        self.reader.keep(own, group)
        self.sizes = sizes.narrow(len(own))
        self.convolution = nn.Parameter(torch.zeros(self.sizes.channels, 1, sizes.kernel))
        self.decay_bias = nn.Parameter(torch.ones(self.sizes.num_value_heads))
        self.decay_log = nn.Parameter(torch.zeros(self.sizes.num_value_heads))
        heads = KeptRows((rows_of(own, sizes.shared),), total=sizes.num_value_heads)
        return {
            "convolution": KeptRows(own_channels(sizes, own), total=sizes.channels),
            "decay_bias": heads,
            "decay_log": heads,
        }

    @property
    def cache_spec(self) -> CacheSpec:
        """What the layer keeps of each sequence: a state, whatever its length."""
        return self.sizes.state_spec

    def forward(self, hidden: Tensor, rotation: Cosines | None, step: Step, layer: int) -> Tensor:
        """Run each sequence's tokens through its state, one after the other.

        Shapes: hidden [T, D] -> [T, D].
        """
        read = self.reader(hidden, step.adapters)
        weights = DeltaWeights(self.convolution[:, 0], self.decay_bias, self.decay_log)
        mixed = run_sequences(
            *(read.query, read.key, read.value, read.rate, read.speed),
            weights=weights,
            step=step,
            layer=layer,
        )
        mixed = self._tap(step, layer, mixed.to(hidden.dtype))  # [T, H, V]
        gated = silu_gate(read.gate, self.norm(mixed).view(read.gate.shape))  # [T, G, S V]
        gated = gated if self.parts is None else self.parts.gather(gated)
        return self.output(gated.flatten(1), step.adapters)

    def _tap(self, step: Step, layer: int, mixed: Tensor) -> Tensor:
        """What heads give, as a sink sees it: of all ranks. Shapes: [T, own H, V] -> the same."""
        name = "blocks.attention.mixed"
        if self.parts is None or step.sink is None:
            return step.tap(name, mixed, layer)
        by_key = mixed.reshape(len(mixed), self.sizes.num_key_heads, -1)  # [T, own G, S V]
        every = self.parts.gather(by_key).view(len(mixed), -1, mixed.shape[-1])
        seen = step.tap(name, every, layer)
        own = rows_of(self.parts.own, self.sizes.shared)
        return seen[:, own.start : own.stop]
