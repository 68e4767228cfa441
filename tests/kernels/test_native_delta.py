"""Native delta layers against the plain form, over pages, chunks, mates and instruction sets."""

from __future__ import annotations

import itertools

import pytest
import torch
from native_cases import ISAS, needs_native, random, random_step, running
from torch import Tensor
from torch.nn import functional

from cutaway.core.step import Step
from cutaway.kernels import native
from cutaway.kernels.delta import delta_rule, short_convolution, unit_rows
from cutaway.kernels.native import library

pytestmark = needs_native

NUM_PAGES, PAGE = 40, 8


class Layer:
    """A delta layer with random weights, its pages, and the inputs of a sequence."""

    def __init__(
        self, count: int, *, heads: int = 2, shared: int = 2, key: int = 16, value: int = 20
    ) -> None:
        self.heads, self.shared, self.key, self.value = heads, shared, key, value
        self.channels = heads * (2 * key + shared * value)
        self.weights = native.NativeDeltaWeights(
            random(self.channels, 4, seed=1),
            random(heads * shared, seed=2),
            random(heads * shared, seed=3) - 2,
        )
        # By key head: a query, a key, values, and what else the joined matrix makes.
        self.joined = random(count, heads, 2 * key + shared * value + 3, seed=4)
        self.rates = random(count, heads, 2 * shared, seed=5)
        self.clear()

    def clear(self) -> None:
        """Pages that hold what must not be read."""
        states = (NUM_PAGES, self.heads * self.shared, self.key, self.value)
        self.pages = native.StatePages(
            torch.full(states, 100.0), torch.full((NUM_PAGES, 3, self.channels), 100.0), 0, PAGE
        )

    def inputs(self, rows: Tensor) -> native.DeltaInputs:
        joined, rates, key = self.joined[rows], self.rates[rows], self.key
        values = self.shared * self.value
        return native.DeltaInputs(
            joined[:, :, :key],
            joined[:, :, key : 2 * key],
            joined[:, :, 2 * key : 2 * key + values],
            rates[:, :, : self.shared],
            rates[:, :, self.shared :],
        )

    def run(self, step: Step, rows: Tensor) -> Tensor:
        out = torch.full((len(rows), self.heads * self.shared, self.value), torch.nan)
        operation = native.delta(self.inputs(rows), self.weights, self.pages, out=out)
        native.run(operation, native.NativeStep.of(step))
        return out

    def expected(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Results of a whole sequence and its last state, in float64."""
        parts = [each.double() for each in self.inputs(rows).tensors]
        query, key, value, rate, speed = parts
        count = len(rows)
        seen = torch.cat([each.flatten(1) for each in (query, key, value)], dim=1)
        seen = torch.cat((torch.zeros(3, self.channels), seen))
        mixed = short_convolution(seen, self.weights.convolution.double())
        keys = self.heads * self.key

        def heads(x: Tensor) -> Tensor:
            unit = unit_rows(x.view(count, self.heads, self.key))
            return unit.repeat_interleave(self.shared, dim=1)

        speed = functional.softplus(speed.flatten(1) + self.weights.decay_bias)
        decay = (-self.weights.decay_log.double().exp() * speed).exp()
        return delta_rule(
            heads(mixed[:, :keys]) * self.key**-0.5,
            heads(mixed[:, keys : 2 * keys]),
            mixed[:, 2 * keys :].view(count, self.heads * self.shared, self.value),
            decay,
            rate.flatten(1).sigmoid(),
            torch.zeros(self.heads * self.shared, self.key, self.value).double(),
        )


def chunk(first: int, last: int, table: Tensor) -> Step:
    """Tokens first to last of the sequence whose pages are those of a table."""
    step = random_step([last - first], [last], page_size=PAGE, num_pages=NUM_PAGES)
    step.groups[0].page_table[0, :] = table[: step.groups[0].page_table.shape[1]]
    return step


TABLE = torch.randperm(NUM_PAGES, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("key", "value", "shared"), [(16, 20, 2), (64, 64, 1), (5, 33, 3)])
def test_a_layer_is_that_of_the_plain_form(isa: str, key: int, value: int, shared: int) -> None:
    layer = Layer(50, key=key, value=value, shared=shared)
    rows = torch.arange(50)
    with running(isa, threads=2):
        found = layer.run(chunk(0, 50, TABLE), rows)
    wanted, state = layer.expected(rows)
    torch.testing.assert_close(found.double(), wanted, rtol=1e-4, atol=1e-5)
    last = layer.pages.states[TABLE[49 // PAGE]]
    torch.testing.assert_close(last.double(), state, rtol=1e-4, atol=1e-5)


def test_chunks_and_mates_change_no_bit_and_full_pages_keep_their_states() -> None:
    layer = Layer(50)
    with running("portable"):
        wanted = layer.run(chunk(0, 50, TABLE), torch.arange(50))
    states = layer.pages.states.clone(), layer.pages.inputs.clone()
    for isa in library.isas():
        for cuts in ((0, 1, 2, 3, 7, 8, 9, 24, 50), (0, 17, 49, 50)):
            layer.clear()
            with running(isa, threads=2):
                for first, last in itertools.pairwise(cuts):
                    found = layer.run(chunk(first, last, TABLE), torch.arange(first, last))
                    assert torch.equal(found, wanted[first:last]), (isa, first, last)
            used = TABLE[: -(-50 // PAGE)]
            assert torch.equal(layer.pages.states[used], states[0][used])
            assert torch.equal(layer.pages.inputs[used], states[1][used])
    # Two sequences in one step: the second goes on from a page of the first run.
    layer.clear()
    layer.run(chunk(0, 16, TABLE), torch.arange(16))
    step = random_step([5, 30], [21, 30], page_size=PAGE, num_pages=NUM_PAGES)
    width = step.groups[0].page_table.shape[1]
    step.groups[0].page_table[0] = TABLE[:width]
    step.groups[0].page_table[1] = TABLE[20 : 20 + width]
    with running(threads=2):
        found = layer.run(step, torch.cat((torch.arange(16, 21), torch.arange(30))))
    assert torch.equal(found, torch.cat((wanted[16:21], wanted[:30])))


def test_pages_of_others_are_left_alone() -> None:
    layer = Layer(20)
    layer.run(chunk(0, 20, TABLE), torch.arange(20))
    others = TABLE[3:]
    assert (layer.pages.states[others] == 100).all() and (layer.pages.inputs[others] == 100).all()


def test_a_layer_of_other_shapes_is_refused() -> None:
    layer = Layer(4)
    layer.weights = native.NativeDeltaWeights(
        layer.weights.convolution[1:].clone(), layer.weights.decay_bias, layer.weights.decay_log
    )
    with pytest.raises(AssertionError, match="channel"):
        layer.run(chunk(0, 4, TABLE), torch.arange(4))
