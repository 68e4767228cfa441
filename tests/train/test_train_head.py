"""Log-probabilities without a table of logits: the values and gradients of torch's own form."""

from __future__ import annotations

import pytest
import torch

from cutaway.blocks.norm import RMSNorm
from cutaway.blocks.unembed import Unembedding
from cutaway.kernels.likelihood import trainable
from cutaway.kernels.likelihood.trainable import log_probs
from cutaway.quantize.dense import DenseWeight
from cutaway.train.losses.likelihood import of_logits


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("rows_at_once", [4, 7, 64])
@pytest.mark.parametrize("is_trained", [True, False])
@pytest.mark.parametrize("room", [0, 10**6], ids=["made again", "kept"])
def test_equals_what_autograd_gives_of_all_logits(
    temperature: float, rows_at_once: int, is_trained: bool, room: int, monkeypatch
) -> None:
    monkeypatch.setattr(trainable, "_room", lambda device: room)
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(21, 16, generator=generator, dtype=torch.float64, requires_grad=True)
    table = torch.randn(50, 16, generator=generator, dtype=torch.float64, requires_grad=is_trained)
    targets = torch.randint(0, 50, (21,), generator=generator)
    pulls = torch.randn(2, 21, generator=generator, dtype=torch.float64)

    def gradients(found: torch.Tensor, sums: torch.Tensor) -> list[torch.Tensor]:
        total = (found * pulls[0]).sum() + (sums * pulls[1]).sum()
        return list(torch.autograd.grad(total, [rows, table] if is_trained else [rows]))

    ours = log_probs(
        *(rows, table, targets),
        temperature=temperature,
        rows_at_once=rows_at_once,
        dtype=None,
    )
    theirs = of_logits(rows @ table.T, targets, temperature=temperature)
    for found, wanted in zip(
        (*ours, *gradients(*ours)), (*theirs, *gradients(*theirs)), strict=True
    ):
        torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)


def test_no_gradient_is_asked_where_there_is_none() -> None:
    rows, table = torch.randn(3, 4), torch.randn(8, 4)
    found, _ = log_probs(
        *(rows, table, torch.tensor([0, 7, 3])),
        temperature=1.0,
        rows_at_once=2,
        dtype=torch.bfloat16,
    )
    assert found.dtype == torch.float32 and not found.requires_grad


def test_a_multiplier_of_logits_counts_in_the_loss() -> None:
    """As in Command R, whose logits are a sixteenth of the products."""
    table = DenseWeight(50, 16)
    torch.nn.init.normal_(table.weight)
    head = Unembedding(RMSNorm(16, 1e-6), table, multiplier=0.25)
    hidden, targets = torch.randn(7, 16), torch.randint(0, 50, (7,))
    found = head.log_probs(hidden, targets, temperature=0.7, rows_at_once=4)
    assert found is not None
    wanted = of_logits(head.read(hidden), targets, temperature=0.7)
    for ours, truth in zip(found, wanted, strict=True):
        torch.testing.assert_close(ours, truth, rtol=1e-5, atol=1e-5)
