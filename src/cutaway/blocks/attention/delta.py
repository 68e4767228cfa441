"""A gated delta layer: in place of keys and values a state of fixed size, which tokens rewrite.

Each page of its cache group holds the state after the page's last token so far. To go on a layer
reads the page of the token before; a full page's state is the snapshot for prefix hits.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from cutaway.blocks.linear import Linear
from cutaway.blocks.norm import RMSNorm
from cutaway.blocks.parts import Cosines
from cutaway.blocks.positions import Frequencies
from cutaway.core.layout import CacheSpec
from cutaway.core.shapes import DeltaShape
from cutaway.core.step import ShapePlan, Step
from cutaway.kernels.delta import delta_rule, short_convolution, unit_rows
from cutaway.kernels.elementwise import sigmoid, softplus
from cutaway.kernels.gate import silu_gate
from cutaway.kernels.recording import operation


class Read(NamedTuple):
    """What a layer reads of its tokens.

    Shapes: inputs of the convolution [T, channels]; gate [T, H, V]; rate and speed [T, H].
    """

    inputs: Tensor
    gate: Tensor
    rate: Tensor
    speed: Tensor


class Reader(Protocol):
    """The matrices before the convolution, in the order that files have. Shapes: hidden [T, D]."""

    def __call__(self, hidden: Tensor) -> Read: ...


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

    def forward(self, hidden: Tensor) -> Read:
        """Read the tokens, and sort what was read by kind. Shapes: hidden [T, D]."""
        sizes = self.sizes
        value = sizes.shared * sizes.value_size
        heads = self.joined(hidden).view(len(hidden), sizes.num_key_heads, -1)
        parts = heads.split((sizes.key_size, sizes.key_size, value, value), dim=-1)
        inputs = torch.cat([part.flatten(1) for part in parts[:3]], dim=-1)
        rates = self.rates(hidden).view(len(hidden), sizes.num_key_heads, -1)
        rate, speed = (part.flatten(1) for part in rates.chunk(2, dim=-1))
        return Read(inputs, _gates(parts[3], sizes), rate, speed)


class ByKind(nn.Module):
    """All queries come first, then all keys, values and gates. Source: Qwen3.5."""

    def __init__(self, width: int, sizes: DeltaShape) -> None:
        super().__init__()
        self.sizes = sizes
        values = sizes.num_value_heads * sizes.value_size
        self.joined = Linear(width, (sizes.channels, values))
        self.rates = Linear(width, [sizes.num_value_heads] * 2)

    def forward(self, hidden: Tensor) -> Read:
        """Read the tokens. Shapes: hidden [T, D]."""
        inputs, gate = self.joined(hidden).tensor_split([self.sizes.channels], dim=-1)
        rate, speed = self.rates(hidden).chunk(2, dim=-1)
        return Read(inputs, _gates(gate, self.sizes), rate, speed)


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

    @property
    def cache_spec(self) -> CacheSpec:
        """What the layer keeps of each sequence: a state, whatever its length."""
        return self.sizes.state_spec

    def forward(self, hidden: Tensor, rotation: Cosines | None, step: Step, layer: int) -> Tensor:
        """Run each sequence's tokens through its state, one after the other.

        Shapes: hidden [T, D] -> [T, D].
        """
        inputs, gate, *rates = self.reader(hidden)
        rate, decay = self._rates(*rates)
        mixed = run_sequences(inputs, decay, rate, self, step, layer)
        mixed = step.tap("blocks.attention.mixed", mixed.to(hidden.dtype), layer)  # [T, H, V]
        return self.output(silu_gate(gate, self.norm(mixed)).flatten(1))

    def _rates(self, rate: Tensor, speed: Tensor) -> tuple[Tensor, Tensor]:
        """How much a token corrects, and what share of the state stays. Shapes: [T, H] each."""
        wide = torch.promote_types(rate.dtype, torch.float32)
        speed = softplus(speed.to(wide) + self.decay_bias.to(wide))
        return sigmoid(rate.to(wide)), (-self.decay_log.to(wide).exp() * speed).exp()

    def run(
        self, row: int, inputs: Tensor, decay: Tensor, rate: Tensor, step: Step, layer: int
    ) -> Tensor:
        """One sequence's new tokens, from the state before them.

        Shapes: inputs [T, channels], decay, rate [T, H] -> [T, H, V].
        """
        sizes, count = self.sizes, len(inputs)
        start = step.plan.context_lengths[row] - count
        state, earlier = self._before(row, start, decay, step, layer)
        seen = torch.cat((earlier.to(decay.dtype), inputs.to(decay.dtype)))
        mixed = short_convolution(seen, self.convolution[:, 0].to(decay.dtype))
        keys = sizes.num_key_heads * sizes.key_size
        query = self._heads(mixed[:, :keys]) * sizes.key_size**-0.5
        key = self._heads(mixed[:, keys : 2 * keys])
        value = mixed[:, 2 * keys :].reshape(count, sizes.num_value_heads, sizes.value_size)
        results: list[Tensor] = []
        done = 0
        for stop in self._stops(start, count, step, layer):
            now = slice(done, stop)
            result, state = delta_rule(
                query[now], key[now], value[now], decay[now], rate[now], state
            )
            results.append(result)
            done = stop
            self._keep(row, start + stop, state, seen[stop : stop + sizes.kernel - 1], step, layer)
        return torch.cat(results)

    def _heads(self, x: Tensor) -> Tensor:
        """Unit rows of the key heads, one for each value head. Shapes: -> [T, H, K]."""
        heads = unit_rows(x.reshape(len(x), self.sizes.num_key_heads, self.sizes.key_size))
        return heads.repeat_interleave(self.sizes.shared, dim=1)

    def _before(
        self, row: int, start: int, like: Tensor, step: Step, layer: int
    ) -> tuple[Tensor, Tensor]:
        """State and last inputs before a position; zeros where nothing came before."""
        if start == 0 or not step.caches:
            spec = self.cache_spec.fields
            state, inputs = (like.new_zeros(field.shape) for field in spec)
            return state, inputs
        cache = step.caches[layer]
        page = step.groups[cache.group].page_table[row, (start - 1) // cache.page_size]
        return cache.fields["state"][page].to(like.dtype), cache.fields["inputs"][page]

    def _stops(self, start: int, count: int, step: Step, layer: int) -> list[int]:
        """Where a page ends within the new tokens, and their own end."""
        if not step.caches:
            return [count]
        size = step.caches[layer].page_size
        ends = range((start // size + 1) * size, start + count, size)
        return [*(end - start for end in ends), count]

    def _keep(
        self, row: int, end: int, state: Tensor, inputs: Tensor, step: Step, layer: int
    ) -> None:
        if not step.caches:
            return
        cache = step.caches[layer]
        page = step.groups[cache.group].page_table[row, (end - 1) // cache.page_size]
        cache.fields["state"][page] = state.to(cache.fields["state"].dtype)
        cache.fields["inputs"][page] = inputs.to(cache.fields["inputs"].dtype)


def _mixed(inputs: Tensor, decay: Tensor, rate: Tensor, layer: DeltaLayer, *_: object) -> Tensor:
    del rate
    sizes = layer.sizes
    return decay.new_empty((len(inputs), sizes.num_value_heads, sizes.value_size))


@operation(shape_of=_mixed, has_effect=True)
def run_sequences(
    inputs: Tensor, decay: Tensor, rate: Tensor, module: DeltaLayer, step: Step, layer: int
) -> Tensor:
    """Run each sequence's tokens through its state, one after the other.

    Shapes: inputs [T, channels], decay, rate [T, H] -> [T, H, V].
    """
    return torch.cat(
        [
            module.run(row, inputs[now], decay[now], rate[now], step, layer)
            for row, now in enumerate(_spans(step.plan))
        ]
    )


def _gates(rows: Tensor, sizes: DeltaShape) -> Tensor:
    return rows.reshape(len(rows), sizes.num_value_heads, sizes.value_size)


def _spans(plan: ShapePlan) -> Iterator[slice]:
    """Where each sequence's new tokens are."""
    start = 0
    for length in plan.query_lengths:
        yield slice(start, start + length)
        start += length
