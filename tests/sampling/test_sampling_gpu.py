"""On a GPU: the bits of the CPU, waiting for the device once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from test_sampling_sampler import FAULTS, MIXED_ROWS, random_logits
from torch import Tensor

from cutaway.sampling import sampler as sampler_module
from cutaway.sampling.effects import trace
from cutaway.sampling.largest import first_largest, largest
from cutaway.sampling.logprobs import Sent, prompt_logprobs
from cutaway.sampling.sampler import Sampler, SteadyRows

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("vocab_size", [64, 1000, 50_257, 128_256])
def test_every_row_gives_the_bits_of_the_cpu(vocab_size: int) -> None:
    logits = random_logits(len(MIXED_ROWS), vocab_size)
    sampler = Sampler(vocab_size)
    expected = sampler.sample(logits, MIXED_ROWS)
    assert sampler.sample(logits.cuda(), MIXED_ROWS) == expected
    for i, row in enumerate(MIXED_ROWS):
        assert sampler.sample(logits[i : i + 1].cuda(), [row]) == [expected[i]]


@pytest.mark.parametrize("vocab_size", [1000, 50_257])
def test_scores_of_what_is_drawn_from_are_those_of_the_cpu(vocab_size: int) -> None:
    rows = [replace(row, scores_drawn=True) for row in MIXED_ROWS]
    logits = random_logits(len(rows), vocab_size)
    sampler = Sampler(vocab_size)
    assert sampler.sample(logits.cuda(), rows) == sampler.sample(logits, rows)
    steady = SteadyRows.of([rows[2], rows[3]], logits.cuda())
    assert steady is not None
    position = rows[2].position
    got = steady.begin(logits[2:4].cuda(), [position, position]).read()
    assert got == sampler.sample(logits[2:4], rows[2:4])


def test_ties_come_by_smaller_index() -> None:
    values = (random_logits(3, 50_257) * 2).round().cuda()
    for count in (1, 50, 5000, 50_257):
        assert torch.equal(largest(values, count).cpu(), largest(values.cpu(), count))
    assert torch.equal(first_largest(values).cpu(), first_largest(values.cpu()))


@pytest.mark.parametrize("fault", FAULTS)
def test_a_bad_row_fails_alone(fault: str) -> None:
    clean = random_logits(len(MIXED_ROWS), 5000).cuda()
    sampler = Sampler(5000)
    expected = sampler.sample(clean, MIXED_ROWS)
    where, value = FAULTS[fault]
    for bad in range(len(MIXED_ROWS)):
        logits = clean.clone()
        logits[bad, where] = value.cuda() if isinstance(value, Tensor) else value
        got = sampler.sample(logits, MIXED_ROWS)
        assert got[bad].is_bad
        assert got[:bad] + got[bad + 1 :] == expected[:bad] + expected[bad + 1 :]


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
def test_the_host_waits_once(monkeypatch: pytest.MonkeyPatch) -> None:
    transfers: list[int] = []
    original = sampler_module.Sent

    def send(parts: Sequence[Tensor]) -> Sent:
        transfers.append(len(parts))
        return original(parts)

    monkeypatch.setattr(sampler_module, "Sent", send)
    logits = random_logits(len(MIXED_ROWS), 5000).cuda()
    try:
        torch.cuda.set_sync_debug_mode("error")
        Sampler(5000).sample(logits, MIXED_ROWS)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert len(transfers) == 1


def test_prompt_scores_and_traces_are_those_of_the_cpu() -> None:
    logits = random_logits(40, 3001)
    ids = list(range(40))
    expected = prompt_logprobs(logits, ids, num_logprobs=3)
    assert prompt_logprobs(logits.cuda(), ids, num_logprobs=3) == expected
    for row in MIXED_ROWS:
        assert trace(logits[0].cuda(), row) == trace(logits[0], row)
