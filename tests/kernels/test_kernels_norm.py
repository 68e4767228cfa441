"""Norms: cases J01 and J02."""

from __future__ import annotations

import torch

from cutaway.kernels.norm import layer_norm, offset_rms_norm, rms_norm


def test_j02_squares_are_summed_in_float32() -> None:
    row = torch.linspace(0.01, 1, 4096, dtype=torch.float64)
    row[17] = 3000.0
    half = row.to(torch.bfloat16)
    exact = half.double() / (half.double().square().mean() + 1e-6).sqrt()
    ours = rms_norm(half[None], torch.ones(4096, dtype=torch.bfloat16), 1e-6)[0]
    spacing = torch.finfo(torch.bfloat16).eps * exact.abs()
    assert ((ours.double() - exact).abs() <= spacing).all()


def test_j02_a_zero_row_gives_zeros() -> None:
    zero = torch.zeros(1, 8, dtype=torch.bfloat16)
    assert rms_norm(zero, torch.ones(8, dtype=torch.bfloat16), 1e-6).eq(0).all()


def test_norm_does_not_subtract_the_mean() -> None:
    row = torch.full((1, 4), 2.0, dtype=torch.float64)
    assert torch.allclose(rms_norm(row, torch.ones(4).double(), 0.0), torch.ones(1, 4).double())


def test_j01_the_offset_is_added_in_float32_and_the_result_cast_once() -> None:
    generator = torch.Generator().manual_seed(4)
    half = torch.randn(3, 64, generator=generator).to(torch.bfloat16)
    weight = (torch.randn(64, generator=generator) * 0.01).to(torch.bfloat16)
    wide = half.float() * torch.rsqrt(half.float().square().mean(-1, keepdim=True) + 1e-6)
    ours = offset_rms_norm(half, weight, 1e-6)
    assert torch.equal(ours, (wide * (1 + weight.float())).to(torch.bfloat16))
    rounded = rms_norm(half, 1 + weight, 1e-6)
    assert not torch.equal(ours, rounded), "1 + w in bfloat16 would do as well"


def test_layer_norm_equals_its_formula() -> None:
    generator = torch.Generator().manual_seed(5)
    x, weight, bias = (
        torch.randn(*shape, generator=generator, dtype=torch.float64)
        for shape in ((3, 16), (16,), (16,))
    )
    centred = x - x.mean(-1, keepdim=True)
    deviation = (centred.square().mean(-1, keepdim=True) + 1e-3).sqrt()
    assert torch.allclose(layer_norm(x, weight, bias, 1e-3), centred / deviation * weight + bias)
