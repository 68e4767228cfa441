// e^x in sixteen lanes: a polynomial in two forms, with and without fused multiply-add.
#pragma once

namespace {

// 2^f for f in [-1/2, 1/2], highest power first: to the bit those of
// sampling/integer_weights.py and docs/randomness.md.
constexpr float kPolynomial[5] = {0x1.5bba14p-10f, 0x1.3cea88p-7f, 0x1.c6b752p-5f,
                                  0x1.ebf9bcp-3f, 0x1.62e42ap-1f};
constexpr float kLog2E = 1.44269502162933349609375f;
constexpr float kLeastExponent = -64.0f;
constexpr float kLargestExponent = 126.0f;  // above it the exponent bits would overflow

// x * log2(e), within what exponent bits can hold. NaN stays NaN.
inline F32 clamped_exponent(F32 x) {
  F32 exponent = max_of(broadcast(kLeastExponent), mul(x, broadcast(kLog2E)));
  return min_of(broadcast(kLargestExponent), exponent);
}

// Times 2^whole, exactly: added to the exponent bits.
inline F32 scale_by_power(F32 x, F32 whole) {
  return of_bits(int_add(bits_of(x), shift_to_exponent(to_int(whole))));
}

// Bit for bit what sampling draws with, shared with torch, Triton and TypeScript: no fused
// multiply-add. Below -44 the result is 2^-64, above 87 it is 2^126.
inline F32 exponential(F32 x) {
  F32 exponent = clamped_exponent(x);
  F32 whole = round_even(exponent);
  F32 rest = sub(exponent, whole);
  F32 result = mul(rest, broadcast(kPolynomial[0]));
  for (int i = 1; i < 5; i++) result = mul(add(result, broadcast(kPolynomial[i])), rest);
  return scale_by_power(add(result, broadcast(1.0f)), whole);
}

// For attention and gates: a third of the instructions less.
inline F32 fused_exponential(F32 x) {
  F32 exponent = clamped_exponent(x);
  F32 whole = round_even(exponent);
  F32 rest = sub(exponent, whole);
  F32 result = broadcast(kPolynomial[0]);
  for (int i = 1; i < 5; i++) result = fma(result, rest, broadcast(kPolynomial[i]));
  return scale_by_power(fma(result, rest, broadcast(1.0f)), whole);
}

// tanh(x) of 2 x, to about 1e-7.
inline F32 tangent_of_twice(F32 twice) {
  F32 one = broadcast(1.0f);
  return sub(one, div(broadcast(2.0f), add(fused_exponential(twice), one)));
}

}  // namespace
