"""Grouped attention: head norms before rotation (case J06), and keys that are values."""

from __future__ import annotations

import torch
from torch import Tensor

from cutaway.blocks.attention.grouped import GroupedAttention
from cutaway.blocks.norm import RMSNorm, UnitRMSNorm
from cutaway.blocks.positions import Plain, angles
from cutaway.core.step import Step
from cutaway.kernels.rotary import rotate

HEADS, GROUPS, SIZE, WIDTH = 4, 2, 6, 10
FREQUENCIES = Plain(SIZE, 10_000.0)


def seen(attention: GroupedAttention, hidden: Tensor) -> dict[str, Tensor]:
    """What the taps of one step over a single sequence show."""
    taps: dict[str, Tensor] = {}
    step = Step.without_cache(
        [[0] * len(hidden)], sink=lambda name, value, layer: taps.update({name: value})
    )
    cosines = angles(FREQUENCIES, step.positions, step.declared_lengths, hidden.dtype)
    attention(hidden, cosines, step, 0)
    return {name.rpartition(".")[2]: value for name, value in taps.items()} | {
        "cos": cosines[0],
        "sin": cosines[1],
    }


def drawn(attention: GroupedAttention, seed: int) -> GroupedAttention:
    generator = torch.Generator().manual_seed(seed)
    attention.double()
    with torch.no_grad():
        for parameter in attention.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return attention


def sizes() -> dict[str, int]:
    return {"num_heads": HEADS, "num_groups": GROUPS, "head_size": SIZE}


def test_j06_heads_are_normed_each_alone_before_they_turn() -> None:
    norms = (RMSNorm(SIZE, 1e-6), RMSNorm(SIZE, 1e-6))
    attention = GroupedAttention(WIDTH, **sizes(), frequencies=FREQUENCIES, head_norms=norms)
    drawn(attention, 1)
    hidden = torch.randn(7, WIDTH, generator=torch.Generator().manual_seed(2)).double()
    with torch.no_grad():
        taps = seen(attention, hidden)
        rows = attention.qkv(hidden).view(7, -1, SIZE)
        for name, part, norm in zip(
            ("query", "key"), (rows[:, :HEADS], rows[:, HEADS : HEADS + GROUPS]), norms, strict=True
        ):
            mean_square = part.square().mean(-1, keepdim=True)
            normed = part / (mean_square + 1e-6).sqrt() * norm.weight
            assert torch.allclose(taps[name], rotate(normed, taps["cos"], taps["sin"]))
            assert not torch.allclose(
                taps[name][1:], norm(rotate(part, taps["cos"], taps["sin"]))[1:]
            )


def test_keys_that_are_values_are_taken_before_norm_and_rotation() -> None:
    attention = GroupedAttention(
        WIDTH,
        **sizes(),
        frequencies=FREQUENCIES,
        keys_are_values=True,
        head_norms=(RMSNorm(SIZE, 1e-6), RMSNorm(SIZE, 1e-6)),
        value_norm=UnitRMSNorm(1e-6),
    )
    drawn(attention, 3)
    hidden = torch.randn(5, WIDTH, generator=torch.Generator().manual_seed(4)).double()
    with torch.no_grad():
        taps = seen(attention, hidden)
        keys = attention.qkv(hidden).view(5, -1, SIZE)[:, HEADS:]
    assert keys.shape[1] == GROUPS, "no rows beside queries and keys"
    expected = keys / (keys.square().mean(-1, keepdim=True) + 1e-6).sqrt()
    assert torch.allclose(taps["value"], expected)
