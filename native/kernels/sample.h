// Rows of logits to tokens: the cuts and the draw of sampling/, bit for bit, and what is reported.
//
// Weights are whole numbers, so every sum is exact in any order. A row is worked on by one thread.
#pragma once

#include "exponential.h"
#include "largest.h"
#include "share.h"

namespace {

constexpr float kSumScale = 17179869184.0f;    // 2^34, as SUM_SCALE of sampling/weights.py
constexpr float kWeightScale = 1073741824.0f;  // 2^30, as WEIGHT_SCALE
constexpr int64_t kFirstTry = 128;             // tokens among which top_p mostly ends
constexpr int64_t kMostEntries = 1024;         // more are not sorted

inline F32 load_logits(const float* p, int64_t left) {
  if (left >= kLanes) return load(p);
  int count = static_cast<int>(left);
  return keep_first(load_first(p, count), count, broadcast(-__builtin_inff()));
}

inline float peak_of(const float* logits, int64_t size) {
  F32 peak = broadcast(-__builtin_inff());
  for (int64_t i = 0; i < size; i += kLanes) peak = max_of(peak, load_logits(logits + i, size - i));
  return max_lanes(peak);
}

inline int64_t first_of(const float* logits, int64_t size, float peak) {
  for (int64_t i = 0; i < size; i += kLanes) {
    if (!any_equal(load_logits(logits + i, size - i), broadcast(peak))) continue;
    for (int64_t j = i; j < least(i + kLanes, size); j++)
      if (logits[j] == peak) return j;
  }
  return 0;
}

// Sum of e^(logit - peak) in units of 2^-34; NaN when a logit is.
inline double total_of(const float* logits, int64_t size, float peak) {
  F64 total = double_zeros();
  for (int64_t i = 0; i < size; i += kLanes) {
    int count = static_cast<int>(least(kLanes, size - i));
    F32 terms = exponential(sub(load_logits(logits + i, count), broadcast(peak)));
    terms = round_even(mul(terms, broadcast(kSumScale)));
    total = double_add(total, keep_first(terms, count, zeros()));
  }
  return double_sum_lanes(total);
}

// Sum of each logit's bits times an odd number that is the place's own, modulo 2^64.
inline uint64_t checksum_of(const float* logits, int64_t size) {
  uint64_t sum = 0;
  for (int64_t i = 0; i < size; i++) {
    uint32_t bits;
    __builtin_memcpy(&bits, logits + i, sizeof bits);
    sum += static_cast<uint64_t>(bits) * (static_cast<uint32_t>(i) * UINT32_C(0x9E3779B1) | 1u);
  }
  return sum;
}

// floor(total * fraction / 2^32).
inline int64_t scaled(int64_t total, int64_t fraction) {
  __extension__ typedef unsigned __int128 Wide;
  return static_cast<int64_t>((static_cast<Wide>(total) * static_cast<Wide>(fraction)) >> 32);
}

// Scratch of a thread: a row after temperature, its weights, and what is left of it.
struct Desk {
  float* logits;
  float* weights;
  Largest largest;

  Desk(char* base, int64_t vocab_size, size_t* size) : Desk(Arena(base), vocab_size, size) {}

 private:
  Desk(Arena arena, int64_t vocab_size, size_t* size) {
    int64_t padded = ceil_div(vocab_size, kChunk) * kChunk;
    logits = arena.take<float>(padded);
    weights = arena.take<float>(padded);
    largest.maxima = arena.take<float>(padded / kChunk);
    largest.order = arena.take<Entry>(padded / kChunk);
    largest.entries = arena.take<Entry>(padded);
    if (size) *size = arena.size();
  }
};

// Logits after temperature and their weights after min_p, padded with what is never drawn.
inline void weigh(const float* logits, int64_t size, float peak, const cw_choice& c, Desk& desk) {
  bool turns = c.temperature != 1.0f;
  F32 most = broadcast(peak), temperature = broadcast(c.temperature), floor = broadcast(c.floor);
  for (int64_t i = 0; i < ceil_div(size, kChunk) * kChunk; i += kLanes) {
    F32 x = i < size ? load_logits(logits + i, size - i) : broadcast(-__builtin_inff());
    F32 below = sub(x, most);
    if (turns) x = below = div(below, temperature);
    F32 weight = round_even(mul(exponential(below), broadcast(kWeightScale)));
    // 1 where weight >= floor, else 0: both are whole numbers.
    F32 kept = add(sub(weight, floor), broadcast(1.0f));
    kept = min_of(broadcast(1.0f), max_of(zeros(), kept));
    store(desk.logits + i, x);
    store(desk.weights + i, mul(kept, weight));
  }
}

inline int64_t sum_of(const float* weights, int64_t size) {
  F64 total = double_zeros();
  for (int64_t i = 0; i < size; i += kLanes) total = double_add(total, load(weights + i));
  return static_cast<int64_t>(double_sum_lanes(total));
}

inline int64_t sum_of(const Entry* entries, int64_t count) {
  int64_t total = 0;
  for (int64_t i = 0; i < count; i++) total += static_cast<int64_t>(entries[i].value);
  return total;
}

// How many of the entries, heaviest first, are needed until their sum reaches bound; at least one.
// -1 when all together do not reach it.
inline int64_t needed(const Entry* entries, int64_t count, int64_t bound) {
  int64_t sum = 0;
  for (int64_t i = 0; i < count; i++) {
    sum += static_cast<int64_t>(entries[i].value);
    if (sum >= bound) return i + 1;
  }
  return -1;
}

// Nothing is left of the tokens that come after the last one, in the order of keys.
inline void drop_after(const Entry& last, const float* keys, int64_t size, float* weights) {
  for (int64_t i = 0; i < size; i++)
    if (is_heavier(last, {keys[i], static_cast<int32_t>(i)})) weights[i] = 0.0f;
}

// What top_k leaves: as entries where they are few (their count is returned), else as weights (-1).
inline int64_t cut_to_k(int64_t size, int64_t k, Desk& desk) {
  Entry* entries = desk.largest.entries;
  int64_t count = desk.largest.find(desk.logits, size, k);
  if (count > kMostEntries) {
    Entry last = entries[0];
    for (int64_t i = 1; i < count; i++)
      if (is_heavier(last, entries[i])) last = entries[i];
    drop_after(last, desk.logits, size, desk.weights);
    return -1;
  }
  for (int64_t i = 0; i < count; i++) entries[i].value = desk.weights[entries[i].id];
  return count;
}

// What top_p leaves, in the same way. Weights are tried first: the likeliest mostly suffice.
inline int64_t cut_to_mass(int64_t size, int64_t count, int64_t bound, Desk& desk) {
  Entry* entries = desk.largest.entries;
  int64_t tried = count >= 0 ? count : desk.largest.find(desk.weights, size, least(kFirstTry, size));
  sort(entries, tried, is_heavier);
  int64_t kept = needed(entries, tried, bound);
  if (kept >= 0) return kept;
  int64_t all = 0;
  for (int64_t i = 0; i < size; i++) {
    entries[all] = {desk.weights[i], static_cast<int32_t>(i)};
    all += desk.weights[i] > 0.0f;
  }
  drop_after(reaching(entries, all, most(bound, 1)), desk.weights, size, desk.weights);
  return -1;
}

// The token of a row with finite peak.
inline int64_t draw(const float* logits, int64_t size, float peak, const cw_choice& c, Desk& desk) {
  weigh(logits, size, peak, c, desk);
  int64_t padded = ceil_div(size, kChunk) * kChunk, count = -1;
  Entry* entries = desk.largest.entries;
  auto sum = [&] { return count < 0 ? sum_of(desk.weights, padded) : sum_of(entries, count); };
  if (c.top_k > 0 && c.top_k < size) count = cut_to_k(size, c.top_k, desk);
  int64_t total = sum();
  if (c.rest >= 0) {
    count = cut_to_mass(size, count, total - scaled(total, c.rest), desk);
    total = sum();
  }
  int64_t target = scaled(total, c.u), running = 0;
  if (count >= 0) {
    sort(entries, count, is_earlier);
    for (int64_t i = 0; i < count; i++)
      if ((running += static_cast<int64_t>(entries[i].value)) > target) return entries[i].id;
  }
  for (int64_t chunk = 0; chunk < padded; chunk += kChunk) {
    int64_t inside = sum_of(desk.weights + chunk, kChunk);
    if (running + inside <= target) {
      running += inside;
      continue;
    }
    for (int64_t i = chunk; i < chunk + kChunk; i++)
      if ((running += static_cast<int64_t>(desk.weights[i])) > target) return i;
  }
  return 0;  // not reached: the sum exceeds every target
}

inline cw_drawn sample_row(const float* raw, const float* edited, int64_t size, const cw_choice& c,
                           Desk& desk) {
  cw_drawn drawn{};
  drawn.checksum = checksum_of(raw, size);
  drawn.peak = peak_of(raw, size);
  drawn.total = total_of(raw, size, drawn.peak);
  if (drawn.total != drawn.total) drawn.peak = __builtin_nanf("");
  drawn.left = edited == raw ? drawn.peak : peak_of(edited, size);
  if (!__builtin_isfinite(drawn.peak) || !__builtin_isfinite(drawn.left)) return drawn;
  bool is_greedy = c.temperature == 0.0f;
  drawn.token_id = is_greedy ? first_of(edited, size, drawn.left)
                             : draw(edited, size, drawn.left, c, desk);
  drawn.logit = raw[drawn.token_id];
  return drawn;
}

void run_sample(const void* arguments, const cw_step& step, const cutaway::Worker& worker) {
  const cw_sample& a = *static_cast<const cw_sample*>(arguments);
  Desk desk(worker.local, a.vocab_size, nullptr);
  Range rows = share(rows_of(a.rows, step), worker);
  for (int64_t r = rows.begin; r < rows.end; r++)
    a.drawn[r] = sample_row(a.raw[r], a.edited[r], a.vocab_size, a.choices[r], desk);
}

cutaway::Scratch sample_scratch(const void* arguments, const cw_step&) {
  const cw_sample& a = *static_cast<const cw_sample*>(arguments);
  size_t size = 0;
  Desk desk(nullptr, a.vocab_size, &size);
  return {size, 0};
}

}  // namespace
