"""Published layouts of quantized checkpoints, packed by loops of their own from plain integers.

Written from the packing code's description, one word and one shift at a time, apart from the
package. Each function gives the tensors of one module, and what the matrix is in float32.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Tensors = dict[str, np.ndarray]
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def _words(values: np.ndarray, bits: int, order: tuple[int, ...] | None = None) -> np.ndarray:
    """Rows of small integers, each 32 / bits of a row in one word."""
    per_word = 32 // bits
    out = np.zeros((values.shape[0], -(-values.shape[1] // per_word)), np.uint32)
    for row in range(values.shape[0]):
        for column in range(values.shape[1]):
            place = column % per_word
            place = place if order is None else order.index(place)
            out[row, column // per_word] |= np.uint32(values[row, column]) << np.uint32(
                bits * place
            )
    return out.view(np.int32)


def _numbers(rows: int, columns: int, groups: int, bits: int, seed: int) -> Any:
    draw = np.random.default_rng(seed)
    quants = draw.integers(0, 2**bits, (rows, columns))
    zeros = draw.integers(1, 2**bits, (rows, groups))
    scales = draw.normal(0, 0.02, (rows, groups)).astype(np.float16)
    return draw, quants, zeros, scales


def _matrix(quants: Any, zeros: Any, scales: Any, group_of_column: Any) -> np.ndarray:
    difference = (quants - zeros[:, group_of_column]).astype(np.float32)
    return difference * scales[:, group_of_column].astype(np.float32)


def gptq(
    rows: int,
    columns: int,
    *,
    bits: int = 4,
    group_size: int = 32,
    version: int = 1,
    act_order: bool = False,
    symmetric: bool = False,
    seed: int = 0,
) -> tuple[Tensors, np.ndarray]:
    size = columns if group_size == -1 else group_size
    groups = -(-columns // size)
    draw, quants, zeros, scales = _numbers(rows, columns, groups, bits, seed)
    if symmetric:
        zeros[:] = 2 ** (bits - 1)
    group_of_column = np.arange(columns) // size
    if act_order:
        group_of_column = draw.permutation(group_of_column)
    stored_zeros = zeros - 1 if version == 1 else zeros
    tensors = {
        "qweight": np.ascontiguousarray(_words(quants, bits).T),
        "qzeros": _words(np.ascontiguousarray(stored_zeros.T), bits),
        "scales": np.ascontiguousarray(scales.T),
        "g_idx": group_of_column.astype(np.int32),
    }
    return tensors, _matrix(quants, zeros, scales, group_of_column)


def awq(
    rows: int, columns: int, *, group_size: int = 32, seed: int = 0
) -> tuple[Tensors, np.ndarray]:
    groups = columns // group_size
    _, quants, zeros, scales = _numbers(rows, columns, groups, 4, seed)
    tensors = {
        "qweight": _words(np.ascontiguousarray(quants.T), 4, AWQ_ORDER),
        "qzeros": _words(np.ascontiguousarray(zeros.T), 4, AWQ_ORDER),
        "scales": np.ascontiguousarray(scales.T),
    }
    return tensors, _matrix(quants, zeros, scales, np.arange(columns) // group_size)


def e4m3_value(byte: int) -> float:
    """A sign, four bits of exponent (7 means 1), three of fraction; no infinities."""
    sign = -1.0 if byte & 0x80 else 1.0
    exponent, fraction = byte >> 3 & 15, byte & 7
    if exponent == 15 and fraction == 7:
        return float("nan")
    if exponent == 0:
        return sign * fraction * 2.0**-9
    return sign * (1 + fraction / 8) * 2.0 ** (exponent - 7)


def fp8_blocks(rows: int, columns: int, *, block: tuple[int, int], seed: int = 0) -> Any:
    """Bytes of e4m3 and a float32 scale for each block, the last ones cut short."""
    draw = np.random.default_rng(seed)
    codes = draw.integers(0, 256, (rows, columns), dtype=np.uint8)
    codes[(codes & 0x7F) == 0x7F] = 0
    shape = (-(-rows // block[0]), -(-columns // block[1]))
    scales = draw.uniform(0.5, 2.0, shape).astype(np.float32) * np.float32(1e-3)
    matrix = np.empty((rows, columns), np.float32)
    for row in range(rows):
        for column in range(columns):
            scale = scales[row // block[0], column // block[1]]
            matrix[row, column] = np.float32(e4m3_value(int(codes[row, column]))) * scale
    return {"weight": codes, "weight_scale_inv": scales}, matrix
