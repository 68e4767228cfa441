// Rows of logits to tokens: the cuts and the draw of sampling/, bit for bit, and what is reported.
//
// Weights are whole numbers, so every sum is exact in any order. A row is worked on by one thread;
// where threads would stand idle behind few rows, by all of them.
#pragma once

#include "exponential.h"
#include "largest.h"
#include "share.h"

namespace {

constexpr float kSumScale = 17179869184.0f;    // 2^34, as SUM_SCALE of sampling/integer_weights.py
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

// Sum of e^(logit - peak) in units of 2^-34; NaN when a logit is. Two sums, since additions of one
// wait for each other.
inline double total_of(const float* logits, int64_t size, float peak) {
  F64 totals[2] = {double_zeros(), double_zeros()};
  auto terms_at = [&](int64_t i) {
    F32 terms = exponential(sub(load_logits(logits + i, size - i), broadcast(peak)));
    return round_even(mul(terms, broadcast(kSumScale)));
  };
  int64_t i = 0;
  for (; i + 2 * kLanes <= size; i += 2 * kLanes)
    for (int j = 0; j < 2; j++) totals[j] = double_add(totals[j], terms_at(i + j * kLanes));
  for (; i < size; i += kLanes) {
    int count = static_cast<int>(least(kLanes, size - i));
    totals[0] = double_add(totals[0], keep_first(terms_at(i), count, zeros()));
  }
  return double_sum_lanes(totals[0]) + double_sum_lanes(totals[1]);
}

// Sum of each logit's bits times an odd number that is the place's own, modulo 2^64.
inline uint64_t checksum_of(const float* logits, Range part) {
  uint64_t sum = 0;
  for (int64_t i = part.begin; i < part.end; i++) {
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

// Scratch for a row: its logits after temperature, its weights, and what is left of it.
struct Desk {
  float* logits;
  float* weights;
  Largest largest;

  Desk(Arena& arena, int64_t vocab_size) {
    int64_t padded = ceil_div(vocab_size, kChunk) * kChunk;
    logits = arena.take<float>(padded);
    weights = arena.take<float>(padded);
    largest.maxima = arena.take<float>(padded / kChunk);
    largest.order = arena.take<Entry>(padded / kChunk);
    largest.entries = arena.take<Entry>(padded);
  }
};

// Logits of some chunks after temperature and their weights after min_p, padded with what is never
// drawn.
inline void weigh(const float* logits, int64_t size, Range chunks, float peak, const cw_choice& c,
                  Desk& desk) {
  bool turns = c.temperature != 1.0f;
  F32 most = broadcast(peak), temperature = broadcast(c.temperature), floor = broadcast(c.floor);
  for (int64_t i = chunks.begin * kChunk; i < chunks.end * kChunk; i += kLanes) {
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

// The token of a row that lies weighed on the desk; count entries are left of it, or all (-1).
inline int64_t token_at(int64_t target, int64_t padded, int64_t count, Desk& desk) {
  Entry* entries = desk.largest.entries;
  int64_t running = 0;
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

// What a token weighs among what the cuts have left.
inline int64_t weight_of(int64_t token, int64_t count, const Desk& desk) {
  if (count < 0) return static_cast<int64_t>(desk.weights[token]);
  const Entry* entries = desk.largest.entries;
  for (int64_t i = 0; i < count; i++)
    if (entries[i].id == token) return static_cast<int64_t>(entries[i].value);
  return 0;
}

// Cuts and draw of a row that lies weighed on the desk.
inline void draw(int64_t size, const cw_choice& c, Desk& desk, cw_drawn& drawn) {
  int64_t padded = ceil_div(size, kChunk) * kChunk, count = -1;
  Entry* entries = desk.largest.entries;
  auto sum = [&] { return count < 0 ? sum_of(desk.weights, padded) : sum_of(entries, count); };
  if (c.top_k > 0 && c.top_k < size) count = cut_to_k(size, c.top_k, desk);
  drawn.weights = sum();
  if (c.rest >= 0) {
    count = cut_to_mass(size, count, drawn.weights - scaled(drawn.weights, c.rest), desk);
    drawn.weights = sum();
  }
  drawn.token_id = token_at(scaled(drawn.weights, c.u), padded, count, desk);
  drawn.weight = weight_of(c.watched < 0 ? drawn.token_id : c.watched, count, desk);
}

// What is seen in a part of a row, or in all of it.
struct Seen {
  uint64_t checksum;
  float peak;  // of the raw logits
  float left;  // of the edited ones
};

struct alignas(64) Part {
  Seen seen;
  double total;
};

struct RowToSample {
  const float* raw;
  const float* edited;
  int64_t size;
  const cw_choice* choice;

  RowToSample(const cw_sample& a, int64_t row)
      : raw(a.raw[row]), edited(a.edited[row]), size(a.vocab_size), choice(a.choices + row) {}

  int64_t num_chunks() const { return ceil_div(size, kChunk); }
  Range places(Range chunks) const {
    return {least(chunks.begin * kChunk, size), least(chunks.end * kChunk, size)};
  }
  bool is_greedy() const { return choice->temperature == 0.0f; }

  // Three passes: each needs what the one before found in all parts.
  Seen look(Range chunks) const {
    Range at = places(chunks);
    int64_t count = at.end - at.begin;
    float peak = peak_of(raw + at.begin, count);
    return {checksum_of(raw, at), peak,
            edited == raw ? peak : peak_of(edited + at.begin, count)};
  }

  double weigh_part(Range chunks, const Seen& whole, Desk& desk) const {
    if (!is_greedy() && __builtin_isfinite(whole.left))
      weigh(edited, size, chunks, whole.left, *choice, desk);
    Range at = places(chunks);
    return total_of(raw + at.begin, at.end - at.begin, whole.peak);
  }

  cw_drawn finish(const Seen& whole, double total, Desk& desk) const {
    cw_drawn drawn{};
    drawn.checksum = whole.checksum;
    drawn.total = total;
    drawn.peak = total == total ? whole.peak : __builtin_nanf("");
    drawn.left = edited == raw ? drawn.peak : whole.left;
    if (!__builtin_isfinite(drawn.peak) || !__builtin_isfinite(drawn.left)) return drawn;
    if (is_greedy())
      drawn.token_id = first_of(edited, size, drawn.left);
    else
      draw(size, *choice, desk, drawn);
    drawn.logit = raw[drawn.token_id];
    return drawn;
  }
};

inline cw_drawn sample_alone(const RowToSample& row, Desk& desk) {
  Range all{0, row.num_chunks()};
  Seen seen = row.look(all);
  double total = row.weigh_part(all, seen, desk);
  return row.finish(seen, total, desk);
}

constexpr int64_t kMostParts = 16;  // into which a row is divided
constexpr int64_t kMostDivided = kMostParts / 2;

// What all parts of a row show together. A NaN among peaks may be lost: the total is NaN then.
inline Seen together(const Part* parts, int64_t count) {
  Seen whole = parts[0].seen;
  for (int64_t i = 1; i < count; i++) {
    const Seen& seen = parts[i].seen;
    whole.checksum += seen.checksum;
    if (seen.peak > whole.peak) whole.peak = seen.peak;
    if (seen.left > whole.left) whole.left = seen.left;
  }
  return whole;
}

// Every row in parts, one for each thread; the last steps of a row by one.
inline bool sample_together(const cw_sample& a, int64_t num_rows, cutaway::Worker& worker,
                            Arena& shared) {
  int64_t num_parts = least(worker.count, kMostParts), num_chunks = ceil_div(a.vocab_size, kChunk);
  Part* parts = shared.take<Part>(num_rows * kMostParts);
  auto desk_of = [&](int64_t row) {
    Arena desks = shared;
    for (int64_t r = 0; r < row; r++) Desk(desks, a.vocab_size);
    return Desk(desks, a.vocab_size);
  };
  auto each_part = [&](const auto& body) {
    return each(worker, num_rows * num_parts, [&](Range range) {
      for (int64_t i = range.begin; i < range.end; i++) {
        int64_t part = i / num_rows, row = i % num_rows;
        Range chunks{num_chunks * part / num_parts, num_chunks * (part + 1) / num_parts};
        body(row, chunks, parts + row * kMostParts, part);
      }
    });
  };
  bool goes_on = each_part([&](int64_t row, Range chunks, Part* its, int64_t part) {
    its[part].seen = RowToSample(a, row).look(chunks);
  });
  goes_on = goes_on && each_part([&](int64_t row, Range chunks, Part* its, int64_t part) {
    Desk desk = desk_of(row);
    its[part].total =
        RowToSample(a, row).weigh_part(chunks, together(its, num_parts), desk);
  });
  return goes_on && each(worker, num_rows, [&](Range rows) {
    for (int64_t r = rows.begin; r < rows.end; r++) {
      const Part* its = parts + r * kMostParts;
      double total = 0.0;
      for (int64_t i = 0; i < num_parts; i++) total += its[i].total;
      Desk desk = desk_of(r);
      a.drawn[r] = RowToSample(a, r).finish(together(its, num_parts), total, desk);
    }
  });
}

bool run_sample(const void* arguments, const cw_step& step, cutaway::Worker& worker) {
  const cw_sample& a = *static_cast<const cw_sample*>(arguments);
  Arena local(worker.local), shared(worker.shared);
  int64_t num_rows = rows_of(a.rows, step);
  // Else a quarter of the threads' time or more would go by unused.
  bool is_uneven = 3 * ceil_div(num_rows, worker.count) * worker.count >= 4 * num_rows;
  if (num_rows <= kMostDivided && is_uneven)
    return sample_together(a, num_rows, worker, shared);
  Desk desk(local, a.vocab_size);
  return each(worker, num_rows, [&](Range rows) {
    for (int64_t r = rows.begin; r < rows.end; r++)
      a.drawn[r] = sample_alone(RowToSample(a, r), desk);
  });
}

cutaway::Scratch sample_scratch(const void* arguments, const cw_step& step) {
  const cw_sample& a = *static_cast<const cw_sample*>(arguments);
  Arena local(nullptr), shared(nullptr);
  Desk(local, a.vocab_size);
  int64_t num_rows = rows_of(a.rows, step);
  if (num_rows <= kMostDivided) {
    shared.take<Part>(num_rows * kMostParts);
    for (int64_t r = 0; r < num_rows; r++) Desk(shared, a.vocab_size);
  }
  return {local.size(), shared.size()};
}

}  // namespace
