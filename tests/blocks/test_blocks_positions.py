"""Rotary frequencies against the worked values of the cases."""

from __future__ import annotations

import math

import pytest
import torch

import tiny
from cutaway.blocks.positions import (
    Dynamic,
    Frequencies,
    Llama3,
    LongRope,
    Plain,
    Yarn,
    angles,
    yarn_attention_factor,
)
from cutaway.core.errors import ModelFormatError
from cutaway.core.step import Step
from cutaway.models.parts import rotary_config
from cutaway.models.parts.config_fields import Fields


def ratios(scaled: object, plain: Plain) -> list[float]:
    lengths = torch.tensor([1])
    return (scaled.inverse(lengths) / plain.inverse(lengths))[0].tolist()  # type: ignore[attr-defined]


def test_d08_llama3_scaling_of_128_entries() -> None:
    got = ratios(Llama3(128, 500000.0, 8.0, 1.0, 4.0, 8192), Plain(128, 500000.0))
    assert all(ratio == pytest.approx(1.0, abs=1e-12) for ratio in got[:29])
    expected = {29: 0.828168, 30: 0.643743, 32: 0.371122, 34: 0.190211}
    assert {i: round(got[i], 6) for i in expected} == expected
    assert all(ratio == pytest.approx(0.125) for ratio in got[35:])


def test_d08_llama3_scaling_of_64_entries() -> None:
    got = ratios(Llama3(64, 500000.0, 32.0, 1.0, 4.0, 8192), Plain(64, 500000.0))
    assert next(i for i, ratio in enumerate(got) if abs(ratio - 1) > 1e-9) == 15
    assert all(ratio == pytest.approx(1 / 32) for ratio in got[18:])


def test_d08_a_gguf_file_carries_the_scaling_as_factors() -> None:
    scaled = Llama3(64, 500000.0, 32.0, 1.0, 4.0, 8192)
    factors = tuple(1 / ratio for ratio in ratios(scaled, Plain(64, 500000.0)))
    metadata = Fields({"rope.freq_base": 500000.0}, file="x.gguf")
    read = rotary_config.from_gguf(
        metadata, head_size=64, max_length=131072, factors={"rope_freqs.weight": factors}
    )
    at, lengths = torch.tensor([1000, 60000]), torch.tensor([1, 1])
    for ours, theirs in zip(
        angles(read, at, lengths, torch.float64),
        angles(scaled, at, lengths, torch.float64),
        strict=True,
    ):
        assert torch.allclose(ours, theirs, atol=1e-9)


@pytest.mark.parametrize("high", [0.5, 1.0])
def test_llama3_factors_that_leave_no_room_between_them_are_refused_by_name(high: float) -> None:
    rope = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": high}
    fields = Fields({"rope_scaling": rope}, file="config.json")
    words = f"high_freq_factor: is {high}; it must be above low_freq_factor, 1.0"
    with pytest.raises(ModelFormatError, match=f"config.json: rope_scaling: {words}"):
        rotary_config.from_hf(fields, head_size=64, max_length=128)
    rope["high_freq_factor"] = math.nextafter(1.0, 2.0)
    read = rotary_config.from_hf(fields, head_size=64, max_length=128)
    assert read is not None and torch.isfinite(read.inverse(torch.tensor([1]))).all()


def test_yarn_over_a_base_that_never_slows_is_refused_by_name() -> None:
    """The ramp divides by the logarithm of the base."""
    rope = {"rope_type": "yarn", "factor": 2.0, "rope_theta": 1.0}
    with pytest.raises(ModelFormatError, match=r"rope_theta: is 1\.0; it must be above 1 for yarn"):
        fields = Fields({"rope_parameters": rope}, file="config.json")
        rotary_config.from_hf(fields, head_size=64, max_length=128)
    scaling = {"rope.freq_base": 1.0, "rope.scaling.type": "yarn", "rope.scaling.factor": 2.0}
    with pytest.raises(ModelFormatError, match=r"rope\.freq_base: is 1\.0; it must be above 1 for"):
        fields = Fields(scaling, file="m.gguf")
        rotary_config.from_gguf(fields, head_size=64, max_length=128, factors={})


def test_d09_yarn_factors_and_ramp() -> None:
    assert yarn_attention_factor(16.0) == pytest.approx(1.277259, abs=1e-6)
    assert yarn_attention_factor(16.0, 1.0, 1.0) == 1.0
    got = ratios(Yarn(128, 1e6, 4.0, 32768), Plain(128, 1e6))
    assert all(ratio == pytest.approx(1.0) for ratio in got[:24])
    assert got[24] == pytest.approx(0.955882, abs=1e-6)
    assert got[39] == pytest.approx(0.294118, abs=1e-6)
    assert all(ratio == pytest.approx(0.25) for ratio in got[40:])


def test_d09_an_explicit_attention_factor_wins() -> None:
    rope = {"rope_type": "yarn", "factor": 16.0, "attention_factor": 1.5}
    config = Fields({"rope_scaling": rope, "rope_theta": 1e6}, file="config.json")
    assert rotary_config.from_hf(config, head_size=64, max_length=4096).attention_factor == 1.5


def test_d10_the_dynamic_base_follows_the_declared_length_and_forgets_it() -> None:
    dynamic = Dynamic(128, 10000.0, 2.0, 2048)
    inverse = dynamic.inverse(torch.tensor([100, 4096, 100]))
    bases = inverse[:, 1] ** (-128 / 2)
    assert bases.tolist() == pytest.approx([10000.0, 30527.74, 10000.0], rel=1e-6)
    assert dynamic.key(100) == dynamic.key(2048) != dynamic.key(4096)


def test_scores_depend_on_relative_distance_only() -> None:
    _, model = tiny.random_model()
    near = Step.without_cache([[1, 2, 3, 4]])
    with torch.no_grad():
        here = model(near)
        moved = model(
            Step(
                token_ids=near.token_ids,
                positions=near.positions + 100,
                declared_lengths=near.declared_lengths,
                query_starts=near.query_starts,
                context_lengths=near.context_lengths,
                logit_rows=near.logit_rows,
                plan=near.plan,
            )
        )
    assert torch.allclose(here, moved, atol=1e-10)


def test_the_first_pair_turns_one_radian_per_position() -> None:
    cos, sin = angles(Plain(12, 1e4), torch.tensor([3]), torch.tensor([4]), torch.float64)
    assert cos[0, 0].item() == pytest.approx(math.cos(3.0))
    assert sin[0, 0].item() == pytest.approx(math.sin(3.0))


def test_positions_are_what_tells_two_orders_apart() -> None:
    _, model = tiny.random_model()
    hidden = torch.randn(3, 48, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    step = Step.without_cache([[0, 0, 0]])
    still = torch.ones(3, 6).double(), torch.zeros(3, 6).double()
    turning = angles(Plain(12, 1e4), step.positions, step.declared_lengths, torch.float64)
    swapped = hidden[[1, 0, 2]]
    block = model.blocks[0]
    with torch.no_grad():
        streams = [(h, block.attention_norm(h)) for h in (hidden, swapped)]
        last = [block(*each, still, step, 0)[0][2] for each in streams]
        assert torch.allclose(*last, atol=1e-12)
        last = [block(*each, turning, step, 0)[0][2] for each in streams]
        assert not torch.allclose(*last, atol=1e-3)


def test_frequencies_that_lengths_do_not_change_are_made_once_on_a_gpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[Frequencies] = []
    for kind in (Plain, Dynamic):
        inverse = kind.inverse
        monkeypatch.setattr(kind, "inverse", lambda f, x, of=inverse: (made.append(f), of(f, x))[1])
    steady = Plain(12, 12345.0)
    moving = Dynamic(12, 1e4, factor=2.0, trained_length=8)
    at, lengths = torch.tensor([3, 9]), torch.tensor([4, 64])
    before = [angles(each, at, lengths, torch.float32) for each in (steady, moving)]
    monkeypatch.setattr("cutaway.blocks.positions.KEEPS_INVERSE", {"cpu"})
    monkeypatch.setattr("cutaway.blocks.positions._kept", {})
    made.clear()
    for _ in range(2):
        after = [angles(each, at, lengths, torch.float32) for each in (steady, moving)]
        for pair, same in zip(before, after, strict=True):
            assert all(map(torch.equal, pair, same))
    assert made == [steady, moving, moving]


def test_divisors_of_pairs_are_copied_to_a_device_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy from pageable memory cannot be captured: phi3's graphs on a GPU were not made."""
    long = LongRope(4, 1e4, (1.0, 1.25), (2.0, 8.0), trained_length=8)
    lengths = torch.tensor([8, 9])
    first = long.inverse(lengths)
    wanted = torch.tensor([[1.0, 0.01 / 1.25], [0.5, 0.01 / 8.0]], dtype=torch.float64)
    torch.testing.assert_close(first, wanted)
    monkeypatch.setattr(torch, "tensor", None)
    monkeypatch.setattr(torch.Tensor, "new_tensor", None)
    assert torch.equal(long.inverse(lengths), first)
