"""The numbers of a draw in Triton: exponentials and whole weights, to the bit as in torch.

The exponential is that of sampling/integer_weights.py, each operation rounded alone: launches of
kernels that call it switch fused multiply-add off.
"""

# pyright: basic
# pyright: reportMissingImports=false, reportMissingModuleSource=false
# pyright: reportAttributeAccessIssue=false, reportIndexIssue=false
# A kernel is no Python: its parameters have the types of the language that Triton compiles.

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def whole(x):
    """The nearest whole number of 0 <= x, half to even; from 2^23 up all floats are whole."""
    return tl.where(x < 8388608.0, (x + 8388608.0) - 8388608.0, x)


@triton.jit
def exponential(logits, peak):
    """e^(logits - peak), as sampling/integer_weights.py has it."""
    exponent = tl.maximum((logits - peak) * 1.44269502162933349609375, -64.0)
    # Adding 1.5 * 2^23 leaves no bits below one: half to even, for either sign.
    nearest = (exponent + 12582912.0) - 12582912.0
    rest = exponent - nearest
    result = rest * 0.001326472731307149
    result = (result + 0.009671512991189957) * rest
    result = (result + 0.05550733581185341) * rest
    result = (result + 0.24022242426872253) * rest
    result = (result + 0.6931470036506653) * rest
    result = result + 1.0
    bits = result.to(tl.int32, bitcast=True) + (nearest.to(tl.int32) << 23)
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def apply_temperature(logits, peak, temperature):
    """Logits after the temperature, and the largest of their row, as sampling/filters.py has it."""
    scaled = logits
    top = peak
    if temperature != 1.0:
        scaled = tl.div_rn(logits - peak, temperature + tl.zeros_like(logits))
        top = peak - peak
    return scaled, top


@triton.jit
def whole_weights(logits, peak, temperature, floor):
    """Logits after temperature, and whole weights in [0, 2^30] after min_p too, as float32."""
    scaled, top = apply_temperature(logits, peak, temperature)
    weight = whole(exponential(scaled, top) * 1073741824.0)
    return scaled, tl.where(weight >= floor, weight, 0.0)


@triton.jit
def row_peak(peak_ptr, blocks, BLOCKS: tl.constexpr):
    """The largest logit of a row; NaN if one of them is."""
    block = tl.arange(0, BLOCKS)
    peaks = tl.load(peak_ptr + block, mask=block < blocks, other=-float("inf"))
    peak = tl.max(peaks, 0)
    return tl.where(tl.max((peaks != peaks).to(tl.int32), 0) > 0, float("nan"), peak)


@triton.jit
def multiply_fraction(total, fraction):
    """floor(total * fraction / 2^32), in pieces below 2^53; see sampling/draw.py."""
    high, low = total >> 32, total & 0xFFFFFFFF
    upper, lower = fraction >> 16, fraction & 0xFFFF
    return high * fraction + ((low * upper + ((low * lower) >> 16)) >> 16)
