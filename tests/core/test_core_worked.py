"""Figures that are often told loosely, worked out from shapes: what they are, and of what."""

from __future__ import annotations

import pytest

from cutaway.core.devices import DEVICES
from cutaway.core.estimate import Estimate, estimate
from cutaway.core.weight_types import weights_in
from cutaway.models.parts.reading import shape_of
from published_shapes import LLAMA_3_8B

LLAMA_2_7B = {
    **LLAMA_3_8B, "intermediate_size": 11008, "num_key_value_heads": 32, "vocab_size": 32000,
}  # fmt: skip
LLAMA_3_70B = {
    **LLAMA_3_8B, "hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80,
    "num_attention_heads": 64,
}  # fmt: skip
LLAMA_31_405B = {  # arXiv 2407.21783, table 3
    **LLAMA_3_8B, "hidden_size": 16384, "intermediate_size": 53248, "num_hidden_layers": 126,
    "num_attention_heads": 128,
}  # fmt: skip


def made(config: dict[str, object], *, context: int = 1, quant: str = "bfloat16") -> Estimate:
    shape = shape_of(config)
    return estimate(shape, weights_in(shape, quant), context=context)


def test_e1_a_table_of_100_000_rows_of_4096_numbers():
    without, table = (made({**LLAMA_3_8B, "vocab_size": size}) for size in (1, 100_001))
    assert table.parameters_total - without.parameters_total == 2 * 100_000 * 4096
    assert table.weight_bytes - without.weight_bytes == 2 * 819_200_000  # of each of two tables


def test_e11_twice_the_width_is_four_times_the_layers():
    wide = {**LLAMA_3_8B, "hidden_size": 8192, "intermediate_size": 28672, "head_dim": 256}
    here, there = made({**LLAMA_3_8B, "vocab_size": 1}), made({**wide, "vocab_size": 1})
    assert there.flops_decode / here.flops_decode == pytest.approx(4, rel=0.001)
    assert there.kv_bytes_per_token == 2 * here.kv_bytes_per_token


@pytest.mark.parametrize(
    ("context", "gibibytes"), [(2048, 0.25), (4096, 0.5), (131_072, 16), (1_048_576, 128)]
)
def test_f9_keys_and_values_of_a_full_context_of_llama_3_8b(context, gibibytes):
    assert made(LLAMA_3_8B, context=context).kv_bytes_at_context == gibibytes * 2**30


def test_h17_scores_and_sums_equal_the_matrices_at_28_628_tokens():
    """Below that a token's multiplications are mostly those of weights, in Llama-3-8B."""

    def shares(context: int) -> tuple[int, int]:
        seen = 4 * 4096 * context * 32
        return seen, made(LLAMA_3_8B, context=context).flops_decode - seen

    assert all(seen < matrices for seen, matrices in map(shares, (1024, 8192, 28_627)))
    seen, matrices = shares(28_628)
    assert seen == matrices


def test_i1_32_heads_of_their_own_keep_512_kib_a_token():
    assert made(LLAMA_3_8B).kv_bytes_per_token == 128 * 1024
    own = made({**LLAMA_3_8B, "num_key_value_heads": 32})
    assert own.kv_bytes_per_token == 512 * 1024


def test_j4_three_matrices_of_two_thirds_have_the_size_of_two():
    """8/3 x 4,096 = 10,922.7; the next multiple of 256 is 11,008, that of Llama 2 7B."""
    inner = -(-8 * 4096 // (3 * 256)) * 256
    assert inner == LLAMA_2_7B["intermediate_size"] and inner / 4096 == 2.6875
    less = {**LLAMA_2_7B, "intermediate_size": 1}
    gated = made(LLAMA_2_7B).parameters_total - made(less).parameters_total
    assert gated == 32 * 3 * 4096 * (inner - 1)
    assert 3 * 4096 * inner == 135_266_304 and 2 * 4096 * 4 * 4096 == 134_217_728


def test_j5_four_fifths_of_the_layers_of_llama_3_8b_are_feed_forward():
    whole = made({**LLAMA_3_8B, "vocab_size": 1}).parameters_total
    rest = made({**LLAMA_3_8B, "vocab_size": 1, "intermediate_size": 1}).parameters_total
    assert (whole - rest) / whole == pytest.approx(0.81, abs=0.005)


@pytest.mark.parametrize(
    ("quant", "gigabytes"), [("bfloat16", 141.1), ("float32", 282.2), ("Q4_0", 39.7)]
)
def test_n10_140_gigabytes_of_70b_are_16_bits(quant, gigabytes):
    assert round(made(LLAMA_3_70B, quant=quant).weight_bytes / 1e9, 1) == gigabytes


def test_q4_llama_31_405b_takes_67_days_of_16_384_units_at_400_teraflops():
    """6 N D over 15.6 x 10^12 tokens: arXiv 2407.21783, section 3.2; told are 54 days."""
    flops = made(LLAMA_31_405B).flops_training_per_token * 15.6e12
    assert flops == pytest.approx(3.8e25, rel=0.01)
    assert flops / (16_384 * 400e12) / 86_400 == pytest.approx(67, abs=0.5)


def test_g11_an_a100_has_312_teraflops_and_reads_for_most_of_a_step():
    """Llama-3-8B at 8,192 tokens: operations take 0.8 % of the time that bytes take."""
    a100, found = DEVICES["A100"], made(LLAMA_3_8B, context=8192)
    assert a100.peaks["bfloat16"] == 312e12
    share = found.flops_decode / 312e12 / (found.bytes_decode / a100.bandwidth)
    assert share == pytest.approx(0.008, abs=0.0005)
