// Gated delta layers: a short convolution, then a state that each token decays, corrects and reads.
//
// Order of summation: tokens in turn, so chunk borders do not matter. The convolution adds its
// products oldest first; lengths of rows as norms sum squares; what a state knows of a key and what
// a query reads are summed over the key's entries in turn.
#pragma once

#include <math.h>

#include "exponential.h"
#include "gate.h"
#include "norm.h"
#include "share.h"

namespace {

constexpr float kUnitEpsilon = 1e-6f;  // of the length of queries and keys

struct DeltaShape {
  int64_t keys;      // channels of all keys, and of all queries
  int64_t values;    // of all values
  int64_t channels;  // of the convolution
  int64_t heads;     // of values

  explicit DeltaShape(const cw_delta& a)
      : keys(a.num_heads * a.key_size),
        values(a.num_heads * a.shared * a.value_size),
        channels(2 * keys + values),
        heads(a.num_heads * a.shared) {}
};

// The new tokens of one sequence.
struct Span {
  int64_t first;  // token of the step
  int64_t count;
  int64_t start;  // position of the first
  const int64_t* pages;

  template <class Layer>
  Span(const Layer& a, const cw_step& step, int64_t sequence)
      : first(step.query_starts[sequence]),
        count(step.query_starts[sequence + 1] - first),
        start(step.context_lengths[sequence] - count),
        pages(step.groups[a.group].page_table +
              sequence * step.groups[a.group].pages_per_sequence) {}

  // The page that holds what is known after the token before, and after token number.
  template <class Layer>
  int64_t page_before(const Layer& a) const { return pages[(start - 1) / a.page_size]; }
  template <class Layer>
  int64_t page_after(const Layer& a, int64_t number) const {
    return pages[(start + number) / a.page_size];
  }
  // Whether a state is left after this token: at the end of a page, and of the tokens.
  template <class Layer>
  bool is_left(const Layer& a, int64_t number) const {
    return number + 1 == count || (start + number + 1) % a.page_size == 0;
  }
};

// Some channels that lie side by side: of one head of queries, keys or values.
struct Channels {
  cw_by_head from;
  int64_t head;
  int64_t size;
  int64_t first;  // among all channels
  int64_t kind;   // 0: of a query, 1: of a key, 2: of values
};

inline Channels channels_of(const cw_delta& a, const DeltaShape& shape, int64_t index) {
  int64_t kind = index / a.num_heads, head = index % a.num_heads;
  if (kind == 0) return {a.query, head, a.key_size, head * a.key_size, 0};
  if (kind == 1) return {a.key, head, a.key_size, shape.keys + head * a.key_size, 1};
  int64_t size = a.shared * a.value_size;
  return {a.value, head, size, 2 * shape.keys + head * size, 2};
}

// Input of a channel `back` tokens before token number, which may lie before the step.
struct DeltaInputs {
  const cw_delta& a;
  const Span& span;
  const Channels& c;
  int64_t num_channels;
  const float* earlier;  // [width - 1, channels] before the first token, or null: zeros

  const float* at(int64_t number) const {
    if (number >= 0)
      return c.from.first + (span.first + number) * c.from.stride + c.head * c.from.head_stride;
    return earlier ? earlier + (a.width - 1 + number) * num_channels + c.first : nullptr;
  }
};

inline void unit_row(float* x, int64_t size, float scale) {
  float inverse = 1.0f / __builtin_sqrtf(sum_of_squares(x, size) + kUnitEpsilon);
  for (int64_t i = 0; i < size; i += kLanes) {
    int count = static_cast<int>(least(kLanes, size - i));
    F32 unit = mul(load_first(x + i, count), broadcast(inverse));
    store_first(x + i, mul(unit, broadcast(scale)), count);
  }
}

// The convolution of some channels over all tokens of a sequence; the last inputs stay in pages.
inline void convolve(const cw_delta& a, const DeltaShape& shape, const Span& span,
                     const Channels& c, float* room, float* mixed) {
  int64_t before = a.width - 1, row = before * shape.channels;
  // Copied first: the page that is read may be one that is written.
  float* earlier = room;
  float* turned = room + before * shape.channels;  // [width, size]: a channel's weights side by side
  for (int64_t b = 0; b < before; b++)
    for (int64_t i = 0; i < c.size; i++) {
      int64_t at = b * shape.channels + c.first + i;
      earlier[at] = span.start ? a.inputs[span.page_before(a) * row + at] : 0.0f;
    }
  for (int64_t tap = 0; tap < a.width; tap++)
    for (int64_t i = 0; i < c.size; i++)
      turned[tap * c.size + i] = a.convolution[(c.first + i) * a.width + tap];
  DeltaInputs inputs{a, span, c, shape.channels, earlier};
  for (int64_t n = 0; n < span.count; n++) {
    float* out = mixed + (span.first + n) * shape.channels + c.first;
    for (int64_t i = 0; i < c.size; i += kLanes) {
      int count = static_cast<int>(least(kLanes, c.size - i));
      F32 sum = zeros();
      for (int64_t tap = 0; tap < a.width; tap++) {
        F32 product = mul(load_first(inputs.at(n - before + tap) + i, count),
                          load_first(turned + tap * c.size + i, count));
        sum = tap ? add(sum, product) : product;
      }
      store_first(out + i, silu_times(sum, broadcast(1.0f)), count);
    }
    if (c.kind < 2)
      unit_row(out, c.size,
               c.kind ? 1.0f : 1.0f / __builtin_sqrtf(static_cast<float>(a.key_size)));
    if (!span.is_left(a, n)) continue;
    float* kept = a.inputs + span.page_after(a, n) * row + c.first;
    for (int64_t b = 0; b < before; b++)
      __builtin_memcpy(kept + b * shape.channels, inputs.at(n + 1 - before + b),
                       static_cast<size_t>(c.size) * sizeof(float));
  }
}

// 1 / (1 + e^-x), and the share of a state that stays, in double: few numbers, each once.
inline float rate_of(float x) { return static_cast<float>(1.0 / (1.0 + exp(-static_cast<double>(x)))); }
inline float decay_of(float speed, float bias, float log_rate) {
  double x = static_cast<double>(speed) + static_cast<double>(bias);
  double softplus = x > 30.0 ? x : log1p(exp(x));
  return static_cast<float>(exp(-exp(static_cast<double>(log_rate)) * softplus));
}

// state *= decay; known = key^T state.
inline void decay_state(float* state, const float* key, float decay, int64_t key_size,
                        int64_t size, float* known) {
  for (int64_t v = 0; v < size; v += kLanes) {
    int count = static_cast<int>(least(kLanes, size - v));
    F32 sum = zeros(), share = broadcast(decay);
    for (int64_t k = 0; k < key_size; k++) {
      F32 entry = mul(load_first(state + k * size + v, count), share);
      store_first(state + k * size + v, entry, count);
      sum = fma(broadcast(key[k]), entry, sum);
    }
    store_first(known + v, sum, count);
  }
}

// state += key missing^T; out = query^T state.
inline void correct_state(float* state, const float* key, const float* query, const float* missing,
                          int64_t key_size, int64_t size, float* out) {
  for (int64_t v = 0; v < size; v += kLanes) {
    int count = static_cast<int>(least(kLanes, size - v));
    F32 sum = zeros(), lack = load_first(missing + v, count);
    for (int64_t k = 0; k < key_size; k++) {
      F32 entry = fma(broadcast(key[k]), lack, load_first(state + k * size + v, count));
      store_first(state + k * size + v, entry, count);
      sum = fma(broadcast(query[k]), entry, sum);
    }
    store_first(out + v, sum, count);
  }
}

// One value head of one sequence, its tokens in turn.
inline void run_state(const cw_delta& a, const DeltaShape& shape, const Span& span, int64_t head,
                      const float* mixed, float* state, float* room) {
  int64_t size = a.value_size, key_head = head / a.shared, part = head % a.shared;
  int64_t numbers = a.key_size * size;
  size_t bytes = static_cast<size_t>(numbers) * sizeof(float);
  auto kept_in = [&](int64_t page) { return a.states + (page * shape.heads + head) * numbers; };
  if (span.start)
    __builtin_memcpy(state, kept_in(span.page_before(a)), bytes);
  else
    __builtin_memset(state, 0, bytes);
  for (int64_t n = 0; n < span.count; n++) {
    int64_t token = span.first + n;
    const float* query = mixed + token * shape.channels + key_head * a.key_size;
    const float* key = query + shape.keys;
    const float* value = mixed + token * shape.channels + 2 * shape.keys + head * size;
    auto of = [&](const cw_by_head& x) {
      return x.first[token * x.stride + key_head * x.head_stride + part];
    };
    float rate = rate_of(of(a.rate));
    float decay = decay_of(of(a.speed), a.decay_bias[head], a.decay_log[head]);
    decay_state(state, key, decay, a.key_size, size, room);
    for (int64_t v = 0; v < size; v++) room[v] = (value[v] - room[v]) * rate;
    correct_state(state, key, query, room, a.key_size, size,
                  a.out + (token * shape.heads + head) * size);
    if (span.is_left(a, n)) __builtin_memcpy(kept_in(span.page_after(a, n)), state, bytes);
  }
}

struct DeltaMemory {
  float* mixed;  // [T, channels]
  float* room;
  float* state;  // [K, V]

  DeltaMemory(const cw_delta& a, const cw_step& step, Arena& local, Arena& shared) {
    DeltaShape shape(a);
    mixed = shared.take<float>(rows_of(a.rows, step) * shape.channels);
    room = local.take<float>((2 * a.width - 1) * shape.channels + kLanes);
    state = local.take<float>(a.key_size * a.value_size);
  }
};

bool run_delta(const void* arguments, const cw_step& step, cutaway::Worker& worker) {
  const cw_delta& a = *static_cast<const cw_delta*>(arguments);
  Arena local(worker.local), shared(worker.shared);
  DeltaMemory m(a, step, local, shared);
  DeltaShape shape(a);
  int64_t parts = 3 * a.num_heads;
  if (!each(worker, step.num_sequences * parts, [&](Range range) {
        for (int64_t i = range.begin; i < range.end; i++)
          convolve(a, shape, Span(a, step, i / parts), channels_of(a, shape, i % parts), m.room,
                   m.mixed);
      }))
    return false;
  return each(worker, step.num_sequences * shape.heads, [&](Range range) {
    for (int64_t i = range.begin; i < range.end; i++)
      run_state(a, shape, Span(a, step, i / shape.heads), i % shape.heads, m.mixed, m.state,
                m.room);
  });
}

cutaway::Scratch delta_scratch(const void* arguments, const cw_step& step) {
  Arena local(nullptr), shared(nullptr);
  DeltaMemory memory(*static_cast<const cw_delta*>(arguments), step, local, shared);
  return {local.size(), shared.size()};
}

}  // namespace
