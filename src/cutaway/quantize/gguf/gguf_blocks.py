"""How each block type of the GGUF format packs its values: small integers, scales and offsets.

One function per type, from raw blocks to their parts; gguf_tensors.py puts the parts together.
Letters: n blocks, v values per block, g groups of values that share a scale.
Source: the structs and dequantize_row functions of ggml (ggml-common.h, ggml-quants.c).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Integers: TypeAlias = "NDArray[np.integer]"  # uint8 or int8; numpy's types do not say which
Floats: TypeAlias = "NDArray[np.float32]"


@dataclass(frozen=True)
class BlockParts:
    """What a block's values are made of: quants * quant_scale + offset.

    Shapes: quants [n, g, v / g] integers, quant_scale and offset [n, g, 1] float32.
    """

    quants: Integers
    quant_scale: Floats
    offset: Floats | None = None


def _halves(raw: Integers) -> Floats:
    """Float16 numbers as float32. Shapes: [n, 2 * k] bytes -> [n, k, 1]."""
    return raw.copy().view(np.float16).astype(np.float32)[:, :, None]


def _nibbles(raw: Integers) -> Integers:
    """Low nibbles of each run of bytes, then its high ones. Shapes: [n, k, b] -> [n, k, 2 * b]."""
    return np.concatenate((raw & 15, raw >> 4), axis=-1)


def _bit_fields(raw: Integers, bits: int) -> Integers:
    """The lowest field of each byte of a run, then the next ones.

    Shapes: [n, k, b] -> [n, k, 8 / bits, b].
    """
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    return (raw[:, :, None, :] >> shifts) & ((1 << bits) - 1)


def _fifth_bits(raw: Integers) -> Integers:
    """One bit per value, moved to the place above a nibble. Shapes: [n, 4] -> [n, 1, 32]."""
    return np.unpackbits(raw.view(np.uint8), axis=-1, bitorder="little")[:, None] << 4


def _signed(quants: Integers, middle: int) -> Integers:
    """Quants that count from -middle."""
    return quants.view(np.int8) - np.int8(middle)


def _q4_0(raw: Integers) -> BlockParts:
    return BlockParts(_signed(_nibbles(raw[:, None, 2:]), 8), _halves(raw[:, :2]))


def _q4_1(raw: Integers) -> BlockParts:
    return BlockParts(_nibbles(raw[:, None, 4:]), _halves(raw[:, :2]), _halves(raw[:, 2:4]))


def _q5_0(raw: Integers) -> BlockParts:
    quants = _nibbles(raw[:, None, 6:]) | _fifth_bits(raw[:, 2:6])
    return BlockParts(_signed(quants, 16), _halves(raw[:, :2]))


def _q5_1(raw: Integers) -> BlockParts:
    quants = _nibbles(raw[:, None, 8:]) | _fifth_bits(raw[:, 4:8])
    return BlockParts(quants, _halves(raw[:, :2]), _halves(raw[:, 2:4]))


def _q8_0(raw: Integers) -> BlockParts:
    return BlockParts(raw[:, None, 2:].view(np.int8), _halves(raw[:, :2]))


def _q2_k(raw: Integers) -> BlockParts:
    scales = raw[:, :16, None]
    quants = _bit_fields(raw[:, 16:80].reshape(-1, 2, 32), 2).reshape(-1, 16, 16)
    lows = _halves(raw[:, 82:84]) * (scales >> 4)
    return BlockParts(quants, _halves(raw[:, 80:82]) * (scales & 15), -lows)


def _q3_k(raw: Integers) -> BlockParts:
    low_bits = _bit_fields(raw[:, 32:96].reshape(-1, 2, 32), 2).reshape(-1, 16, 16)
    high_bit = _bit_fields(raw[:, None, :32], 1).reshape(-1, 16, 16)
    low_scales = _nibbles(raw[:, None, 96:104]).reshape(-1, 16, 1)
    high_scales = _bit_fields(raw[:, None, 104:108], 2).reshape(-1, 16, 1)
    scales = _signed(low_scales | high_scales << 4, 32)
    return BlockParts(_signed(low_bits | high_bit << 2, 4), _halves(raw[:, 108:110]) * scales)


def _six_bit_scales(raw: Integers) -> tuple[Integers, Integers]:
    """Scales and lows of Q4_K and Q5_K. Shapes: [n, 12] -> twice [n, 8, 1]."""
    first, second, third = raw[:, :4], raw[:, 4:8], raw[:, 8:]
    scales = np.concatenate((first & 63, (third & 15) | (first >> 6 << 4)), axis=-1)
    lows = np.concatenate((second & 63, (third >> 4) | (second >> 6 << 4)), axis=-1)
    return scales[:, :, None], lows[:, :, None]


def _q4_k(raw: Integers) -> BlockParts:
    scales, lows = _six_bit_scales(raw[:, 4:16])
    quants = _nibbles(raw[:, 16:].reshape(-1, 4, 32)).reshape(-1, 8, 32)
    return BlockParts(quants, _halves(raw[:, :2]) * scales, -(_halves(raw[:, 2:4]) * lows))


def _q5_k(raw: Integers) -> BlockParts:
    scales, lows = _six_bit_scales(raw[:, 4:16])
    low_bits = _nibbles(raw[:, 48:].reshape(-1, 4, 32)).reshape(-1, 8, 32)
    quants = low_bits | _bit_fields(raw[:, None, 16:48], 1)[:, 0] << 4
    return BlockParts(quants, _halves(raw[:, :2]) * scales, -(_halves(raw[:, 2:4]) * lows))


def _q6_k(raw: Integers) -> BlockParts:
    low_bits = _nibbles(raw[:, :128].reshape(-1, 2, 64)).reshape(-1, 16, 16)
    high_bits = _bit_fields(raw[:, 128:192].reshape(-1, 2, 32), 2).reshape(-1, 16, 16)
    scales = raw[:, 192:208, None].view(np.int8)
    return BlockParts(_signed(low_bits | high_bits << 4, 32), _halves(raw[:, 208:210]) * scales)


# The sixteen values that 4-bit codes stand for; those of MXFP4 are twice the numbers of e2m1.
_IQ4_VALUES = np.array(
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int8
)
_E2M1_DOUBLED = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.int8)


def _iq4_nl(raw: Integers) -> BlockParts:
    return BlockParts(_IQ4_VALUES[_nibbles(raw[:, None, 2:])], _halves(raw[:, :2]))


def _iq4_xs(raw: Integers) -> BlockParts:
    low_scales = np.stack((raw[:, 4:8] & 15, raw[:, 4:8] >> 4), axis=-1).reshape(-1, 8)
    both = raw[:, 2:4].copy().view(np.uint16)
    high_scales = (both >> np.arange(0, 16, 2, dtype=np.uint16)).astype(np.uint8) & 3
    scales = _signed(low_scales | high_scales << 4, 32)[:, :, None]
    quants = _IQ4_VALUES[_nibbles(raw[:, 8:].reshape(-1, 8, 16))]
    return BlockParts(quants, _halves(raw[:, :2]) * scales)


def _mxfp4(raw: Integers) -> BlockParts:
    exponents = raw[:, :1, None].astype(np.int32)
    # Half of 2^(e - 127), since the values are doubled.
    scales = np.ldexp(np.float32(1), exponents - 128)
    return BlockParts(_E2M1_DOUBLED[_nibbles(raw[:, None, 1:])], scales)


# By the type's name in core/gguf_types.py, which knows the sizes.
BLOCKS: Mapping[str, Callable[[Integers], BlockParts]] = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q2_K": _q2_k,
    "Q3_K": _q3_k,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
    "IQ4_NL": _iq4_nl,
    "IQ4_XS": _iq4_xs,
    "MXFP4": _mxfp4,
}
