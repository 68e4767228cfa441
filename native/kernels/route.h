// Which experts a token goes to, and how much each counts.
//
// What a token gets depends on its own scores alone: exponentials lane by lane, their sum over
// lanes, the sum of weights in the order of the choice.
#pragma once

#include "../runtime/top.h"
#include "exponential.h"
#include "share.h"

namespace {

using cutaway::Scored;

struct RouteMemory {
  float* values;   // [E] what weights are made of
  float* choice;   // [E] what decides
  Scored* scored;  // [E]
  float* worth;    // [groups]
  bool* allowed;   // [groups]

  RouteMemory(Arena& local, const cw_route& a) {
    values = local.take<float>(a.num_experts + kLanes);
    choice = local.take<float>(a.num_experts + kLanes);
    scored = local.take<Scored>(a.num_experts);
    worth = local.take<float>(a.num_groups);
    allowed = local.take<bool>(a.num_groups);
  }
};

// e^(x - largest) / their sum. Shapes: [width], with room for whole registers.
inline void softmax_row(float* x, int64_t width) {
  float lowest = -__builtin_inff(), largest = lowest;
  for (int64_t i = 0; i < width; i++) largest = x[i] > largest || x[i] != x[i] ? x[i] : largest;
  F32 peak = broadcast(largest), sums = zeros();
  for (int64_t i = 0; i < width; i += kLanes) {
    int count = static_cast<int>(least(kLanes, width - i));
    F32 power = fused_exponential(sub(load_first(x + i, count), peak));
    power = keep_first(power, count, zeros());
    store_first(x + i, power, count);
    sums = add(sums, power);
  }
  F32 inverse = broadcast(1.0f / sum_lanes(sums));
  for (int64_t i = 0; i < width; i += kLanes) {
    int count = static_cast<int>(least(kLanes, width - i));
    store_first(x + i, mul(load_first(x + i, count), inverse), count);
  }
}

inline void sigmoid_row(float* x, int64_t width) {
  F32 one = broadcast(1.0f);
  for (int64_t i = 0; i < width; i += kLanes) {
    int count = static_cast<int>(least(kLanes, width - i));
    F32 decay = fused_exponential(sub(zeros(), load_first(x + i, count)));
    store_first(x + i, div(one, add(one, decay)), count);
  }
}

inline void bring_best(const float* scores, int64_t total, int64_t count, Scored* scored) {
  for (int64_t i = 0; i < total; i++) scored[i] = {scores[i], i};
  cutaway::bring_largest(scored, total, count);
}

// Experts of other groups than the best lose their chance: filler stands for theirs.
inline void keep_groups(const cw_route& a, float filler, const RouteMemory& m) {
  int64_t size = a.num_experts / a.num_groups;
  for (int64_t g = 0; g < a.num_groups; g++) {
    bring_best(m.choice + g * size, size, a.num_counted, m.scored);
    m.worth[g] = 0.0f;
    for (int64_t i = 0; i < a.num_counted; i++) m.worth[g] += m.scored[i].score;
    m.allowed[g] = false;
  }
  bring_best(m.worth, a.num_groups, a.num_chosen_groups, m.scored);
  for (int64_t i = 0; i < a.num_chosen_groups; i++) m.allowed[m.scored[i].id] = true;
  for (int64_t e = 0; e < a.num_experts; e++)
    if (!m.allowed[e / size]) m.choice[e] = filler;
}

inline void route_row(const cw_route& a, const float* scores, const RouteMemory& m, int64_t* ids,
                      float* weights) {
  int64_t num_experts = a.num_experts, num_chosen = a.num_chosen;
  size_t bytes = static_cast<size_t>(num_experts) * sizeof(float);
  float multiplier = static_cast<float>(a.score_multiplier);
  for (int64_t e = 0; e < num_experts; e++) m.choice[e] = scores[e] * multiplier;
  __builtin_memcpy(m.values, m.choice, bytes);
  if (a.rule == CW_SOFTMAX_THEN_TOP) softmax_row(m.values, num_experts);
  if (a.rule == CW_SIGMOID_THEN_TOP) sigmoid_row(m.values, num_experts);
  // A softmax keeps the order of scores, and tells far ones less well apart: scores decide, unless
  // probabilities are added up or to.
  if (a.rule == CW_SIGMOID_THEN_TOP || a.num_groups > 1 || a.correction)
    __builtin_memcpy(m.choice, m.values, bytes);
  if (a.correction)
    for (int64_t e = 0; e < num_experts; e++) m.choice[e] += a.correction[e];
  if (a.num_groups > 1)
    keep_groups(a, a.rule == CW_SOFTMAX_THEN_TOP ? 0.0f : -__builtin_inff(), m);
  bool is_masked = a.num_groups > 1 && a.rule == CW_SOFTMAX_THEN_TOP;
  bring_best(m.choice, num_experts, num_chosen, m.scored);
  for (int64_t k = 0; k < num_chosen; k++) {
    ids[k] = m.scored[k].id;
    bool is_out = is_masked && !m.allowed[ids[k] / (num_experts / a.num_groups)];
    weights[k] = is_out ? 0.0f : m.values[ids[k]];
  }
  if (a.rule == CW_TOP_THEN_SOFTMAX) softmax_row(weights, num_chosen);
  float divisor = 1.0f;
  if (a.is_renormalized) {
    float sum = 0.0f;
    for (int64_t k = 0; k < num_chosen; k++) sum += weights[k];
    divisor = sum + static_cast<float>(a.least_sum);
  }
  float factor = static_cast<float>(a.multiplier);
  for (int64_t k = 0; k < num_chosen; k++) {
    if (a.is_renormalized) weights[k] /= divisor;
    weights[k] *= factor;
    if (a.factors) weights[k] *= a.factors[ids[k]];
  }
}

bool run_route(const void* arguments, const cw_step& step, cutaway::Worker& worker) {
  const cw_route& a = *static_cast<const cw_route*>(arguments);
  Arena local(worker.local);
  RouteMemory memory(local, a);
  return each(worker, rows_of(a.rows, step), [&](Range rows) {
    for (int64_t r = rows.begin; r < rows.end; r++)
      route_row(a, a.scores + r * a.num_experts, memory, a.ids + r * a.num_chosen,
                a.weights + r * a.num_chosen);
  });
}

cutaway::Scratch route_scratch(const void* arguments, const cw_step&) {
  Arena local(nullptr);
  RouteMemory memory(local, *static_cast<const cw_route*>(arguments));
  return {local.size(), 0};
}

}  // namespace
