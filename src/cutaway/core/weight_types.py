"""How many bytes weights take in each type that they are kept in, from a shape or a GGUF file."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from cutaway.core.gguf_types import BLOCK_TYPES, GgufTensor
from cutaway.core.shapes import MatrixShape, ModelShape


@dataclass(frozen=True, kw_only=True)
class WeightType:
    """Matrices in blocks along their rows; norms and biases stay in `vectors`.

    row_bytes:  of a scale per row.
    is_for_all: whether tables and routers take it too; else they stay in `vectors`.
    computes:   the type of the multiplications that it is made for.
    """

    block_values: int = 1
    block_bytes: int
    row_bytes: int = 0
    is_for_all: bool = True
    vectors: str = "bfloat16"
    computes: str = "bfloat16"


_GGUF = ("Q8_0", "Q6_K", "Q5_K", "Q5_1", "Q5_0", "Q4_K", "Q4_1", "Q4_0", "Q3_K", "Q2_K", "IQ4_NL")


def _gguf_types() -> Mapping[str, WeightType]:
    made = {
        kind.name: WeightType(
            block_values=kind.block_values,
            block_bytes=kind.block_bytes,
            vectors="float32",
            computes="int8",  # activations are rounded to 8 bits before each product
        )
        for kind in BLOCK_TYPES.values()
    }
    return {name: made[name] for name in _GGUF}


WEIGHT_TYPES: Mapping[str, WeightType] = {
    "float32": WeightType(block_bytes=4, vectors="float32", computes="float32"),
    "bfloat16": WeightType(block_bytes=2),
    "float16": WeightType(block_bytes=2, vectors="float16", computes="float16"),
    # our own schemes as the engine's --quant has them: a scale and where need be an offset, float16
    "int8": WeightType(block_values=32, block_bytes=34, is_for_all=False, computes="int8"),
    "int4": WeightType(block_values=32, block_bytes=20, is_for_all=False, computes="int8"),
    "int4-sym": WeightType(block_values=32, block_bytes=18, is_for_all=False, computes="int8"),
    # a float32 scale per row
    "fp8": WeightType(block_bytes=1, row_bytes=4, is_for_all=False, computes="fp8"),
    # GPTQ's files in groups of 128: a float16 scale, and a zero of 4 bits counted as a byte
    "gptq-g128": WeightType(block_values=128, block_bytes=67, is_for_all=False),
    # 32 values and an exponent of 8 bits, for experts alone, as gpt-oss is published
    "MXFP4": WeightType(block_values=32, block_bytes=17, is_for_all=False),
    **_gguf_types(),
}
_PLAIN_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True, kw_only=True)
class WeightBytes:
    """Bytes of all weights, and of the parts that not every step reads whole.

    lookup: tables of which a token reads a row; experts: of which a token reads some.
    values: how many numbers they are.
    """

    total: int
    lookup: int
    experts: int
    values: int
    share: tuple[int, int] = (1, 1)  # experts that a token uses, of how many
    computes: str = "bfloat16"

    def read(self, batch: int) -> int:
        """Bytes that a step over a batch reads, if its tokens choose as differently as can be."""
        used, every = self.share
        return (
            self.total
            - self.lookup
            - self.experts
            + (self.experts * min(every, batch * used) // every)
        )


def weights_in(shape: ModelShape, name: str) -> WeightBytes:
    """All weights of a shape in a type of WEIGHT_TYPES.

    A matrix whose rows are no multiple of the block is kept as Q8_0, or else as `vectors`.
    """
    chosen = WEIGHT_TYPES[name]
    vectors = shape.vectors()
    total, lookup, experts = vectors * _PLAIN_BYTES[chosen.vectors], 0, 0
    values, share = vectors, (1, 1)
    for matrix in shape.matrices:
        num_bytes = _bytes_of(matrix, name, chosen)
        total += num_bytes
        values += matrix.values
        lookup += num_bytes if matrix.kind == "lookup" else 0
        if matrix.kind == "expert":
            experts += num_bytes
            share = (matrix.used, matrix.copies)
    return WeightBytes(
        total=total,
        lookup=lookup,
        experts=experts,
        values=values,
        share=share,
        computes=chosen.computes,
    )


def _bytes_of(matrix: MatrixShape, name: str, chosen: WeightType) -> int:
    if not chosen.is_for_all and (
        matrix.kind not in ("layer", "expert") or (name == "MXFP4" and matrix.kind != "expert")
    ):
        return matrix.values * _PLAIN_BYTES[chosen.vectors]
    for kind in (chosen, WEIGHT_TYPES["Q8_0"]):
        if matrix.columns % kind.block_values == 0:
            blocks = matrix.columns // kind.block_values * kind.block_bytes
            return matrix.rows * (blocks + kind.row_bytes) * matrix.copies
    return matrix.values * _PLAIN_BYTES[chosen.vectors]


def weights_of_file(tensors: Mapping[str, GgufTensor], shape: ModelShape) -> WeightBytes:
    """The weights as a GGUF file keeps them; factors of rotary frequencies are no weights."""
    weights = {name: t for name, t in tensors.items() if not name.startswith("rope_")}
    has_head = "output.weight" in weights
    lookups = {"per_layer_token_embd.weight", "position_embd.weight"}
    lookups |= {"token_embd.weight"} if has_head else set()
    experts = [matrix for matrix in shape.matrices if matrix.kind == "expert"]
    return WeightBytes(
        total=sum(tensor.num_bytes for tensor in weights.values()),
        lookup=sum(tensor.num_bytes for name, tensor in weights.items() if name in lookups),
        experts=sum(tensor.num_bytes for name, tensor in weights.items() if "_exps." in name),
        values=sum(math.prod(tensor.shape) for tensor in weights.values()),
        share=(experts[0].used, experts[0].copies) if experts else (1, 1),
        computes="int8",
    )
