"""Each sequence's tokens through the state of a gated delta layer, in plain PyTorch.

Each page of the layer's cache group holds the state after the page's last token so far. To go on
the page of the token before is read; a full page's state is the snapshot for prefix hits.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from cutaway.core.step import ShapePlan, Step
from cutaway.kernels.delta.plain import delta_rule, short_convolution, unit_rows
from cutaway.kernels.elementwise import sigmoid, softplus


@dataclass(frozen=True)
class DeltaWeights:
    """What a delta layer has learned beside its matrices.

    Shapes: convolution [channels, width], queries' channels first, then keys', then values';
            decay_bias and decay_log [H].
    """

    convolution: Tensor
    decay_bias: Tensor
    decay_log: Tensor


def run_sequences(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    rate: Tensor,
    speed: Tensor,
    *,
    weights: DeltaWeights,
    step: Step,
    layer: int,
) -> Tensor:
    """Run each sequence's tokens through its state, one after the other.

    Shapes: query, key [T, G, K]; value [T, G, S * V]; rate, speed [T, G, S], with H = G * S
            -> [T, H, V].
    """
    inputs = torch.cat([part.flatten(1) for part in (query, key, value)], dim=-1)
    sizes = _Sizes(query.shape[1], query.shape[2], rate.shape[2], value.shape[2] // rate.shape[2])
    run = _DeltaLayer(weights, sizes, step, layer)
    rate, decay = run.rates(rate.flatten(1), speed.flatten(1))
    return torch.cat(
        [
            run.sequence(row, inputs[now], decay[now], rate[now])
            for row, now in enumerate(_spans(step.plan))
        ]
    )


@dataclass(frozen=True)
class _Sizes:
    num_key_heads: int
    key_size: int
    shared: int  # value heads of a key head
    value_size: int

    @property
    def num_value_heads(self) -> int:
        return self.num_key_heads * self.shared


@dataclass(frozen=True)
class _DeltaLayer:
    weights: DeltaWeights
    sizes: _Sizes
    step: Step
    layer: int

    def rates(self, rate: Tensor, speed: Tensor) -> tuple[Tensor, Tensor]:
        """How much a token corrects, and what share of the state stays. Shapes: [T, H] each."""
        weights, wide = self.weights, torch.promote_types(rate.dtype, torch.float32)
        speed = softplus(speed.to(wide) + weights.decay_bias.to(wide))
        return sigmoid(rate.to(wide)), (-weights.decay_log.to(wide).exp() * speed).exp()

    def sequence(self, row: int, inputs: Tensor, decay: Tensor, rate: Tensor) -> Tensor:
        """One sequence's new tokens, from the state before them.

        Shapes: inputs [T, channels], decay, rate [T, H] -> [T, H, V].
        """
        sizes, count = self.sizes, len(inputs)
        convolution = self.weights.convolution.to(decay.dtype)
        start = self.step.plan.context_lengths[row] - count
        state, earlier = self._before(row, start, decay)
        seen = torch.cat((earlier.to(decay.dtype), inputs.to(decay.dtype)))
        mixed = short_convolution(seen, convolution)
        keys = sizes.num_key_heads * sizes.key_size
        query = self._heads(mixed[:, :keys]) * sizes.key_size**-0.5
        key = self._heads(mixed[:, keys : 2 * keys])
        value = mixed[:, 2 * keys :].reshape(count, sizes.num_value_heads, sizes.value_size)
        results: list[Tensor] = []
        done = 0
        for stop in self._stops(start, count):
            now = slice(done, stop)
            result, state = delta_rule(
                query[now], key[now], value[now], decay[now], rate[now], state
            )
            results.append(result)
            done = stop
            self._keep(row, start + stop, state, seen[stop : stop + convolution.shape[1] - 1])
        return torch.cat(results)

    def _heads(self, x: Tensor) -> Tensor:
        """Unit rows of the key heads, one for each value head. Shapes: -> [T, H, K]."""
        heads = unit_rows(x.reshape(len(x), self.sizes.num_key_heads, self.sizes.key_size))
        return heads.repeat_interleave(self.sizes.shared, dim=1)

    def _before(self, row: int, start: int, like: Tensor) -> tuple[Tensor, Tensor]:
        """State and last inputs before a position; zeros where nothing came before."""
        step, sizes = self.step, self.sizes
        if start == 0 or not step.caches:
            channels, width = self.weights.convolution.shape
            state = like.new_zeros(sizes.num_value_heads, sizes.key_size, sizes.value_size)
            return state, like.new_zeros(width - 1, channels)
        cache = step.caches[self.layer]
        page = step.groups[cache.group].page_table[row, (start - 1) // cache.page_size]
        return cache.fields["state"][page].to(like.dtype), cache.fields["inputs"][page]

    def _stops(self, start: int, count: int) -> list[int]:
        """Where a page ends within the new tokens, and their own end."""
        if not self.step.caches:
            return [count]
        size = self.step.caches[self.layer].page_size
        ends = range((start // size + 1) * size, start + count, size)
        return [*(end - start for end in ends), count]

    def _keep(self, row: int, end: int, state: Tensor, inputs: Tensor) -> None:
        step = self.step
        if not step.caches:
            return
        cache = step.caches[self.layer]
        page = step.groups[cache.group].page_table[row, (end - 1) // cache.page_size]
        cache.fields["state"][page] = state.to(cache.fields["state"].dtype)
        cache.fields["inputs"][page] = inputs.to(cache.fields["inputs"].dtype)


def _spans(plan: ShapePlan) -> Iterator[slice]:
    """Where each sequence's new tokens are."""
    start = 0
    for length in plan.query_lengths:
        yield slice(start, start + length)
        start += length
