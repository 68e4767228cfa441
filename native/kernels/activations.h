// Input rows of a linear: normalized if asked, and rounded to int8 in groups of 32.
#pragma once

#include "low_rank.h"
#include "norm.h"
#include "panel.h"
#include "share.h"

namespace {

// One group of one row: x is about scale * quants. The sums serve weights with an offset.
struct QuantizedGroup {
  int8_t quants[kGroupColumns];
  float scale;
  float scaled_sum;      // scale * sum(quants): times a minimum
  int32_t minus_8;       // -8 * sum(quants): what CW_Q4 bytes stand too high
  int32_t minus_full;    // the same for full bytes
  int16_t half_sums[2];  // of quants: for weights with halves
};

// Its integers as 16 * high + low, high from -8 to 8 and low from -8 to 7, for sets that multiply
// full bytes by nibbles.
struct SplitGroup {
  int8_t highs[kGroupColumns];
  int8_t lows[kGroupColumns];
};

constexpr float kLargestFinite = 3.402823466e38f;
constexpr float kSmallestScaled = 1e-30f;  // below it 127 / largest would overflow

// Groups of one row that are rounded together.
constexpr int kBatch = 16;

// The largest magnitude of each of up to four groups. As integers, so that NaN counts as the
// largest; what is missing counts as 1, which needs no care.
inline void largest_of_four(const float* x, int count, float* out) {
  I32 magnitude = int_broadcast(0x7fffffff), most[4];
  int32_t bits[4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; i++) {
    const float* group = x + i * kGroupColumns;
    most[i] = i < count ? int_max(int_and(bits_of(load(group)), magnitude),
                                  int_and(bits_of(load(group + kLanes)), magnitude))
                        : bits_of(broadcast(1.0f));
  }
  int_max_four(most, bits);
  __builtin_memcpy(out, bits, sizeof bits);
}

struct Rounding {
  alignas(64) float scales[kBatch];    // largest / 127
  alignas(64) float inverses[kBatch];  // 127 / largest, or 0 where the group becomes zeros
};

// The scale is that of the row's group alone, so a row never depends on its mates. NaN or infinity
// in a group makes the scale so, and with it every output of the row.
inline void find_scales(const float* largest, Rounding* out) {
  F32 all = load(largest), most = broadcast(127.0f);
  store(out->scales, div(all, most));
  store(out->inverses, div(most, all));
  if (all_between(all, kSmallestScaled, kLargestFinite)) return;
  for (int i = 0; i < kBatch; i++) {
    if (largest[i] >= kSmallestScaled && largest[i] <= kLargestFinite) continue;
    out->inverses[i] = 0.0f;
    if (largest[i] < kSmallestScaled) out->scales[i] = 0.0f;
  }
}

inline void round_group(const float* x, float inverse, int8_t* quants, I32* low, I32* high) {
  *low = int_zeros(), *high = int_zeros();
  if (inverse != 0.0f) {
    *low = to_int(mul(load(x), broadcast(inverse)));
    *high = to_int(mul(load(x + kLanes), broadcast(inverse)));
  }
  store_int8(quants, *low);
  store_int8(quants + kLanes, *high);
}

// Up to four groups, stride records apart.
inline void round_four(const float* x, const Rounding& r, int first, int count, QuantizedGroup* out,
                       int64_t stride) {
  I32 low[4], high[4];
  int32_t firsts[4], seconds[4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; i++) {
    low[i] = high[i] = int_zeros();
    if (i < count)
      round_group(x + i * kGroupColumns, r.inverses[first + i], out[i * stride].quants, low + i,
                  high + i);
  }
  int_sum_four(low, firsts);
  int_sum_four(high, seconds);
  for (int i = 0; i < least(4, count); i++) {
    QuantizedGroup& group = out[i * stride];
    int32_t sum = firsts[i] + seconds[i];
    group.scale = r.scales[first + i];
    group.scaled_sum = group.scale * static_cast<float>(sum);
    group.minus_8 = -8 * sum;
    group.minus_full = -kByteOffset * sum;
    group.half_sums[0] = static_cast<int16_t>(firsts[i]);
    group.half_sums[1] = static_cast<int16_t>(seconds[i]);
  }
}

// One row, its groups stride records apart.
inline void quantize_row(const float* x, int64_t num_groups, QuantizedGroup* out, int64_t stride) {
  Rounding rounding;
  alignas(64) float largest[kBatch];
  for (int64_t g = 0; g < num_groups; g += kBatch) {
    int count = static_cast<int>(least(kBatch, num_groups - g));
    for (int i = 0; i < kBatch; i += 4)
      largest_of_four(x + (g + i) * kGroupColumns, count - i, largest + i);
    find_scales(largest, &rounding);
    for (int i = 0; i < count; i += 4)
      round_four(x + (g + i) * kGroupColumns, rounding, i, count - i, out + (g + i) * stride,
                 stride);
  }
}

inline void split_row(const QuantizedGroup* groups, int64_t num_groups, SplitGroup* out,
                      int64_t stride) {
  for (int64_t g = 0; g < num_groups * stride; g += stride)
    for (int k = 0; k < kGroupColumns; k++) {
      int quant = groups[g].quants[k], high = (quant + 8) >> 4;
      out[g].highs[k] = static_cast<int8_t>(high);
      out[g].lows[k] = static_cast<int8_t>(quant - 16 * high);
    }
}

// Rows of a tile lie together group by group, so that one address register serves them all:
// [rows / kTileRows, groups, kTileRows].
inline int64_t tiled(int64_t row, int64_t group, int64_t num_groups) {
  return (row / kTileRows * num_groups + group) * kTileRows + row % kTileRows;
}


struct Activations {
  const float* rows;             // [rows, K], for float weights
  const QuantizedGroup* groups;  // tiled, for integer weights
  const SplitGroup* splits;      // tiled, for bytes where kSplitsInputs; else null
  int64_t width;
  const float* narrowed = nullptr;  // [rows, LowRank::width()]
};

// What a linear does before it multiplies.
struct Preparation {
  const float* x;
  cw_norming norm;
  int64_t num_rows;
  int64_t width;
  bool needs_floats;
  bool needs_integers;
  bool needs_bytes;  // some of the integers are full bytes
  LowRank low = {};
};

// Up to so many numbers every thread prepares all rows for itself: that takes less than a phase.
// One row cannot be divided, so for it the limit is higher.
inline bool prepares_alone(const Preparation& p) {
  return p.num_rows * p.width <= (p.num_rows == 1 ? 16384 : 4096);
}

// Row from of the input becomes row to; returns it normalized, in floats, which has room for it.
inline const float* prepare_row(const Preparation& p, int64_t from, int64_t to, float* floats,
                        QuantizedGroup* all, SplitGroup* splits) {
  const float* x = p.x + from * p.width;
  if (p.norm.kind) {
    normalize(x, p.norm, p.width, floats);
    x = floats;
  }
  if (p.needs_integers) {
    int64_t num_groups = p.width / kGroupColumns, at = tiled(to, 0, num_groups);
    quantize_row(x, num_groups, all + at, kTileRows);
    if (splits) split_row(all + at, num_groups, splits + at, kTileRows);
  }
  return x;
}

// The prepared rows, and how they are made. Memory is that of one thread or of all, by the size of
// the input.
class Prepared {
 public:
  Prepared(const Preparation& p, Arena& local, Arena& shared)
      : p_(p), is_alone_(prepares_alone(p)), keeps_floats_(p.norm.kind && p.needs_floats) {
    Arena& arena = is_alone_ ? local : shared;
    int64_t groups_per_row = p.needs_integers ? p.width / kGroupColumns : 0;
    int64_t tiled_rows = ceil_div(p.num_rows, kTileRows) * kTileRows;
    floats_ = keeps_floats_ ? arena.take<float>(p.num_rows * p.width) : nullptr;
    one_row_ = local.take<float>(p.norm.kind ? p.width : 0);
    groups_ = arena.take<QuantizedGroup>(tiled_rows * groups_per_row);
    bool is_split = kSplitsInputs && p.needs_bytes;
    splits_ = is_split ? arena.take<SplitGroup>(tiled_rows * groups_per_row) : nullptr;
    narrowed_ = arena.take<float>(p.num_rows * p.low.width());
  }

  // What all threads do together before the phase that multiplies, if anything.
  [[nodiscard]] bool prepare_together(cutaway::Worker& worker) {
    if (is_alone_) return true;
    return each(worker, p_.num_rows, [&](Range rows) { prepare(rows); });
  }

  // In the phase that multiplies, with a part in hand: else the input may be another by now.
  Activations rows() {
    if (is_alone_ && !is_done_) prepare({0, p_.num_rows});
    is_done_ = true;
    return {keeps_floats_ ? floats_ : p_.x, groups_, splits_, p_.width, narrowed_};
  }

 private:
  void prepare(Range rows) {
    for (int64_t r = rows.begin; r < rows.end; r++) {
      float* floats = keeps_floats_ ? floats_ + r * p_.width : one_row_;
      const float* x = prepare_row(p_, r, r, floats, groups_, splits_);
      if (p_.low.pairs) narrow_row(p_.low, r, x, p_.width, narrowed_ + r * p_.low.width());
    }
  }

  const Preparation& p_;
  bool is_alone_;
  bool keeps_floats_;
  bool is_done_ = false;
  float* floats_;
  float* one_row_;
  QuantizedGroup* groups_;
  SplitGroup* splits_;
  float* narrowed_;
};

}  // namespace
