"""Numbers of 8 bits widened by their bits in Triton, in pairs of neighbours of 16 bits each.

The matrix units get pairs as they get short floats: no byte is moved alone. The card's own
conversion of 8 bits takes longer than reading 16 would.
"""

# pyright: basic
# pyright: reportMissingImports=false, reportMissingModuleSource=false
# pyright: reportAttributeAccessIssue=false, reportIndexIssue=false
# A kernel is no Python: its parameters have the types of the language that Triton compiles.

from __future__ import annotations

import triton
import triton.language as tl

E4M3_AS_BFLOAT, E4M3_AS_HALF, INT8_AS_BFLOAT, INT8_AS_HALF = range(4)


@triton.jit
def even_bits(pair, KIND: tl.constexpr, ASM: tl.constexpr):
    """The bits of short floats that the lower bytes stand for; see odd_bits for their size."""
    if ASM:
        if KIND == 0:
            return tl.inline_asm_elementwise(
                """{
                .reg .b32 a, b;
                shl.b32 a, $1, 4;
                and.b32 a, a, 0x07f007f0;
                shl.b32 b, $1, 8;
                and.b32 b, b, 0x80008000;
                or.b32 $0, a, b;
                }""",
                "=r,r",
                [pair],
                dtype=tl.int16,
                is_pure=True,
                pack=2,
            )
        elif KIND == 1:
            return tl.inline_asm_elementwise(
                """{
                .reg .b32 a, b;
                shl.b32 a, $1, 7;
                and.b32 a, a, 0x3f803f80;
                shl.b32 b, $1, 8;
                and.b32 b, b, 0x80008000;
                or.b32 $0, a, b;
                }""",
                "=r,r",
                [pair],
                dtype=tl.int16,
                is_pure=True,
                pack=2,
            )
        elif KIND == 2:
            return tl.inline_asm_elementwise(
                """{
                .reg .b32 a, b;
                and.b32 a, $1, 0x007f007f;
                or.b32 a, a, 0x43004300;
                and.b32 b, $1, 0x00800080;
                or.b32 b, b, 0x43004300;
                sub.rn.bf16x2 $0, a, b;
                }""",
                "=r,r",
                [pair],
                dtype=tl.int16,
                is_pure=True,
                pack=2,
            )
    bits = pair.to(tl.uint16, bitcast=True)
    return odd_bits((bits << 8).to(tl.int16, bitcast=True), KIND, False)


@triton.jit
def odd_bits(pair, KIND: tl.constexpr, ASM: tl.constexpr):
    """The bits of short floats that the upper bytes stand for.

    An e4m3 is a short float whose exponent counts from elsewhere: as bfloat16 it is 2^-120 times
    its value, as float16 2^-8 times. An integer is made of the float with its bits, less 128.
    """
    if ASM:
        if KIND == 0:
            return tl.inline_asm_elementwise(
                """{
                .reg .b32 a, b;
                shr.b32 a, $1, 4;
                and.b32 a, a, 0x07f007f0;
                and.b32 b, $1, 0x80008000;
                or.b32 $0, a, b;
                }""",
                "=r,r",
                [pair],
                dtype=tl.int16,
                is_pure=True,
                pack=2,
            )
        elif KIND == 1:
            return tl.inline_asm_elementwise(
                """{
                .reg .b32 a, b;
                shr.b32 a, $1, 1;
                and.b32 a, a, 0x3f803f80;
                and.b32 b, $1, 0x80008000;
                or.b32 $0, a, b;
                }""",
                "=r,r",
                [pair],
                dtype=tl.int16,
                is_pure=True,
                pack=2,
            )
        elif KIND == 2:
            return tl.inline_asm_elementwise(
                """{
                .reg .b32 a, b;
                shr.b32 b, $1, 8;
                and.b32 a, b, 0x007f007f;
                or.b32 a, a, 0x43004300;
                and.b32 b, b, 0x00800080;
                or.b32 b, b, 0x43004300;
                sub.rn.bf16x2 $0, a, b;
                }""",
                "=r,r",
                [pair],
                dtype=tl.int16,
                is_pure=True,
                pack=2,
            )
    bits = pair.to(tl.uint16, bitcast=True)
    if KIND == 0:
        return ((bits & 0x8000) | ((bits >> 4) & 0x07F0)).to(tl.int16, bitcast=True)
    elif KIND == 1:
        return ((bits & 0x8000) | ((bits >> 1) & 0x3F80)).to(tl.int16, bitcast=True)
    elif KIND == 2:
        near = (((bits >> 8) & 0x7F) | 0x4300).to(tl.bfloat16, bitcast=True)
        base = (((bits >> 8) & 0x80) | 0x4300).to(tl.bfloat16, bitcast=True)
        return (near - base).to(tl.int16, bitcast=True)
    else:
        near = (((bits >> 8) ^ 0x80) | 0x6400).to(tl.float16, bitcast=True)
        return (near - 1152.0).to(tl.float16).to(tl.int16, bitcast=True)
