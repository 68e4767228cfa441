"""Rounding to our own schemes: within half a step, the same numbers kept, packed and unpacked."""

from __future__ import annotations

import pytest
import torch

from cutaway.core.errors import ConfigError
from cutaway.kernels import native
from cutaway.quantize.floats8 import Float8Matrix
from cutaway.quantize.integers import IntegerMatrix
from cutaway.quantize.rounding import round_matrix
from cutaway.quantize.schemes import Scheme, scheme_of

WORDS = ["int8", "int8-asym-g64", "int4", "int4-sym", "int4-g64", "int4-sym-g128", "fp8"]


def matrix(rows: int = 37, columns: int = 256) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    values = torch.randn(rows, columns, generator=generator)
    values[3] += 2  # far from symmetric
    values[5, :128] = 0
    return values


@pytest.mark.parametrize("word", [word for word in WORDS if word != "fp8"])
def test_integers_are_within_half_a_step_of_their_group(word: str) -> None:
    scheme, given = scheme_of(word), matrix()
    found = round_matrix(given, scheme)
    assert isinstance(found, IntegerMatrix)
    assert found.bits == scheme.bits and int(found.quants.max()) < 1 << scheme.bits
    groups = given.view(37, -1, scheme.group_size)
    low, high = groups.amin(-1).clamp(max=0), groups.amax(-1).clamp(min=0)
    width = 2 * torch.maximum(-low, high) if scheme.is_symmetric else high - low
    step = width / (2**scheme.bits - 1)
    error = (found.dense() - given).abs().view(groups.shape).amax(-1)
    # One end of an asymmetric grid may move by half a step, when its zero becomes an integer; the
    # scale itself is rounded to float16.
    assert (error <= step * (0.5 if scheme.is_symmetric else 1.0) + 2.0**-10 * width).all()
    assert (found.dense()[given == 0] == 0).all()


def test_fp8_is_within_half_of_its_last_bit() -> None:
    given = matrix()
    found = round_matrix(given, scheme_of("fp8"))
    assert isinstance(found, Float8Matrix)
    largest = given.abs().amax(1, keepdim=True)
    # e4m3 has 3 bits after the leading one; below 2^-6 of scale its step is 2^-9.
    allowed = torch.maximum(given.abs() * 2.0**-4, largest / 448 * 2.0**-10)
    assert ((found.dense() - given).abs() <= allowed * 1.001).all()
    assert torch.equal(found.dense().abs().amax(1, keepdim=True), largest)


@pytest.mark.parametrize("word", WORDS)
def test_all_forms_hold_the_same_numbers(word: str) -> None:
    found = round_matrix(matrix(), scheme_of(word))
    order = torch.randperm(37, generator=torch.Generator().manual_seed(2))
    kept = found.keep(order)
    assert kept is not None
    assert torch.equal(kept.dense(), found.dense()[order])
    assert kept.num_bytes < 37 * 256 * (0.75 if "int4" in word else 1.2)
    if not native.is_available():
        return
    packed = found.pack(order)
    if word == "fp8":
        assert packed is None
        return
    assert packed is not None
    wanted = found.dense()[order]
    if scheme_of(word).is_symmetric:
        assert torch.equal(packed.dense(), wanted)
    # An offset of up to 15 or 128 steps is rounded to float16's 11 bits.
    assert (packed.dense() - wanted).abs().max() <= 2.0**-11 * 2 * wanted.abs().max()


def test_words_are_read() -> None:
    assert scheme_of("int8") == Scheme("integers", 8, 32, True)
    assert scheme_of("int4") == Scheme("integers", 4, 32, False)
    assert scheme_of("int4-sym-g128") == Scheme("integers", 4, 128, True)
    assert scheme_of("fp8") == Scheme("floats", 8)


@pytest.mark.parametrize("word", ["int3", "int4-g48", "fp8-sym", "int4-g32-sym", "", "int8 "])
def test_other_words_are_refused(word: str) -> None:
    with pytest.raises(ConfigError, match="it must be int8, int4 or fp8"):
        scheme_of(word)
