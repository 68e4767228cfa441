"""The counter hash: published vectors, equal twins, and no visible pattern."""

from __future__ import annotations

import json
import subprocess
import sys

import torch
from hypothesis import given
from hypothesis import strategies as st
from plain_sampler import GOLDEN

from cutaway.core.request import SamplingParams
from cutaway.sampling.seed import resolve_seed
from cutaway.sampling.uniform import Purpose, threefry, uniform

# From the file kat_vectors of the authors' library: key, counter, result.
PUBLISHED = (
    ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
    ((0xFFFFFFFF,) * 2, (0xFFFFFFFF,) * 2, (0x1CB996FC, 0xBB002BE7)),
    ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), (0xC4923A9C, 0x483DF7A0)),
)

seeds = st.integers(-(2**63), 2**63 - 1)
words = st.integers(0, 2**32 - 1)
choices = st.integers(0, 127)
purposes = st.sampled_from(Purpose)


def tensor(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int64)


def test_threefry_gives_the_published_vectors() -> None:
    for key, counter, result in PUBLISHED:
        assert threefry(key, counter) == result
        got = threefry((tensor(key[0]), tensor(key[1])), (tensor(counter[0]), tensor(counter[1])))
        assert (got[0].item(), got[1].item()) == result


def test_uniform_gives_the_golden_vectors() -> None:
    for case in json.loads(GOLDEN.read_text())["uniform"]:
        purpose = Purpose(case["purpose"])
        u = uniform(
            int(case["seed"]), choice=case["choice"], position=case["position"], purpose=purpose
        )
        assert u == case["u"]


@given(seeds, choices, words, purposes)
def test_arrays_and_tensors_give_the_numbers_of_integers(
    seed: int, choice: int, position: int, purpose: Purpose
) -> None:
    plain = uniform(seed, choice=choice, position=position, purpose=purpose)
    columns = [tensor(value) for value in (seed, choice, position)]
    as_tensor = uniform(columns[0], choice=columns[1], position=columns[2], purpose=purpose)
    assert as_tensor.dtype == torch.int64
    assert as_tensor.tolist() == [plain]
    arrays = [column.numpy() for column in columns]
    as_array = uniform(arrays[0], choice=arrays[1], position=arrays[2], purpose=purpose)
    assert as_array.tolist() == [plain]


def test_tensors_broadcast() -> None:
    grid = uniform(tensor(1, 2)[:, None], choice=tensor(0), position=torch.arange(3))
    assert grid.shape == (2, 3)
    assert grid[1, 2].item() == uniform(2, choice=0, position=2)


def chi_square(values: torch.Tensor, num_bins: int) -> float:
    """Distance from the uniform distribution, in standard deviations of the statistic."""
    counts = torch.bincount((values * num_bins) >> 32, minlength=num_bins).double()
    expected = values.numel() / num_bins
    statistic = ((counts - expected) ** 2 / expected).sum().item()
    freedom = num_bins - 1
    return (statistic - freedom) / (2 * freedom) ** 0.5


NUM_DRAWS = 1 << 17


def test_draws_are_equidistributed_over_positions_seeds_and_choices() -> None:
    counter, zero = torch.arange(NUM_DRAWS), tensor(0)
    streams = (
        uniform(tensor(7), choice=zero, position=counter),
        uniform(counter, choice=zero, position=tensor(100)),
        uniform(counter << 40, choice=zero, position=tensor(100)),
        uniform(tensor(7), choice=counter, position=tensor(100)),
        uniform(tensor(7), choice=zero, position=counter, purpose=Purpose.RESIDUAL),
    )
    for u in streams:
        # The inputs are fixed, so this cannot fail by chance; 4 deviations is 1 in 15,000.
        assert abs(chi_square(u, 1024)) < 4
        low_bits = (u & 0xFFFF) << 16
        assert abs(chi_square(low_bits, 1024)) < 4


def test_neighbouring_positions_are_independent() -> None:
    u = uniform(tensor(7), choice=tensor(0), position=torch.arange(NUM_DRAWS + 1))
    pairs = (u[:-1] >> 27 << 5 | u[1:] >> 27) << 22  # 32 x 32 cells
    assert abs(chi_square(pairs, 1024)) < 4


def test_any_input_bit_flips_half_of_the_output_bits() -> None:
    seed, position = torch.arange(2048) * 0x9E3779B97F4A7, torch.arange(2048) * 31
    before = uniform(seed, choice=tensor(0), position=position)
    for bit in range(64):
        after = uniform(seed ^ (1 << bit), choice=tensor(0), position=position)
        assert_half_flips(before ^ after)
    for bit in range(32):
        after = uniform(seed, choice=tensor(0), position=position ^ (1 << bit))
        assert_half_flips(before ^ after)
    for bit in range(7):
        after = uniform(seed, choice=tensor(1 << bit), position=position)
        assert_half_flips(before ^ after)


def assert_half_flips(flips: torch.Tensor) -> None:
    for bit in range(32):
        share = (flips >> bit & 1).double().mean().item()
        assert abs(share - 0.5) < 0.06  # 5 standard deviations of 2048 coin tosses


def test_purposes_draw_apart() -> None:
    drawn = {uniform(7, choice=1, position=5, purpose=purpose) for purpose in Purpose}
    assert len(drawn) == len(Purpose)


def test_c11_choices_draw_apart_and_do_not_depend_on_n() -> None:
    streams = [[uniform(7, choice=c, position=p) for p in range(16)] for c in range(4)]
    assert len({tuple(stream) for stream in streams}) == 4
    # n is not an input of the hash: a request with n=1 and one with n=128 share choice 0.
    one, many = SamplingParams(seed=7), SamplingParams(seed=7, n=128)
    assert resolve_seed(one) == resolve_seed(many) == 7


def test_c12_without_a_seed_two_requests_differ() -> None:
    params = SamplingParams()
    assert resolve_seed(params) != resolve_seed(params)
    assert -(2**63) <= resolve_seed(params) < 2**63
    assert resolve_seed(params, entropy=lambda size: b"\xff" * size) == -1
    assert resolve_seed(SamplingParams(seed=0)) == 0


def test_c12_global_random_states_are_left_alone() -> None:
    # In its own process: here the modules are loaded already.
    program = """
import random, numpy, torch
random.seed(1); numpy.random.seed(1); torch.manual_seed(1)
before = random.getstate(), numpy.random.get_state()[1].tobytes(), torch.get_rng_state().tolist()
from cutaway.core.request import SamplingParams
from cutaway.sampling.sampler import SamplerRow, Sampler
from cutaway.sampling.seed import resolve_seed
row = SamplerRow(params=SamplingParams(top_p=0.9), seed=resolve_seed(SamplingParams()), position=3)
Sampler(9).sample(torch.zeros(1, 9), [row])
after = random.getstate(), numpy.random.get_state()[1].tobytes(), torch.get_rng_state().tolist()
assert before == after
"""
    subprocess.run([sys.executable, "-c", program], check=True)
