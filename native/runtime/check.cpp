#include "check.h"

#include "../kernels/panel.h"

namespace cutaway {

namespace {

constexpr int64_t kMost = INT64_C(1) << 31;  // no size is larger: products fit 64 bits
constexpr int64_t kMostHeadSize = 512;
constexpr int64_t kMostRank = 4096;
constexpr int64_t kMostExperts = 65536;
constexpr int64_t kMostAdapters = 65536;
constexpr int64_t kMostFraction = INT64_C(1) << 32;

bool is_size(int64_t size) { return size > 0 && size <= kMost; }
void at_most(int64_t& limit, int64_t value) {
  if (value < limit) limit = value;
}

bool fits_kind(int64_t kind) { return kind >= CW_F32 && kind <= CW_Q4_HALVES; }

bool check_norming(const cw_norming& n) {
  if (n.kind == CW_NO_NORM) return !n.weight && !n.bias;
  return n.kind == CW_RMS_NORM || n.kind == CW_LAYER_NORM;
}

bool check_rotation(const cw_rotation& r, int64_t head_size, int64_t capacity, Limits& limits) {
  if (!is_size(r.num_rows) || r.half < 0 || 2 * r.half > head_size) return false;
  if (r.half == 0) return true;
  if (!r.cos || !r.sin) return false;
  if (r.by_token) return r.num_rows >= capacity;
  limits.needs_positions = true;
  at_most(limits.num_positions, r.num_rows);
  return true;
}

// Notes which pages of a cache group a step must keep within; false where programs disagree.
bool limit_group(int64_t index, int64_t num_pages, int64_t page_size, bool reads, bool writes,
                 Limits& limits) {
  if (index < 0 || index >= CW_MAX_GROUPS || !is_size(num_pages) || !is_size(page_size))
    return false;
  Limits::Group& group = limits.groups[index];
  if (group.page_size && group.page_size != page_size) return false;
  group.page_size = page_size;
  at_most(group.num_pages, num_pages);
  group.needs_table |= reads;
  group.needs_slots |= writes;
  return true;
}

bool fits_pages(int64_t kind) { return (kind >= CW_F32 && kind <= CW_Q8) || kind == CW_E4M3; }
bool has_scales(int64_t kind) { return kind == CW_Q8 || kind == CW_E4M3; }

bool check_pages(const cw_pages& p, bool reads, bool writes, Limits& limits) {
  if (!p.keys || !p.values || !fits_pages(p.kind)) return false;
  bool is_scaled = has_scales(p.kind);
  if (!p.key_scales == is_scaled || !p.value_scales == is_scaled) return false;
  if (!is_size(p.num_groups) || p.head_size < 1 || p.head_size > kMostHeadSize) return false;
  return limit_group(p.group, p.num_pages, p.page_size, reads, writes, limits);
}

bool check_latent(const cw_latent_pages& p, bool reads, bool writes, Limits& limits) {
  if (!p.latent || !p.rotary || !fits_pages(p.kind)) return false;
  bool is_scaled = has_scales(p.kind);
  if (!p.latent_scales == is_scaled || !p.rotary_scales == is_scaled) return false;
  if (p.rank < 1 || p.rank > kMostRank || p.rotary_size < 1 || p.rotary_size > kMostRank)
    return false;
  return limit_group(p.group, p.num_pages, p.page_size, reads, writes, limits);
}

bool check_by_head(const cw_by_head& x, int64_t num_heads, int64_t width) {
  return x.first && x.head_stride >= width && x.head_stride <= kMost / num_heads &&
         x.stride >= (num_heads - 1) * x.head_stride + width;
}

bool check_scoring(const cw_scoring& s) {
  return s.cap >= 0.0 && s.cap <= 1e9 && s.window >= 0 && s.window <= kMost && s.num_first >= 0 &&
         s.num_first <= kMost && (s.window || !s.num_first);
}

bool check_heads(int64_t num_heads, const cw_pages& p) {
  return is_size(num_heads) && num_heads % p.num_groups == 0 && num_heads <= 4096;
}

bool check(const cw_gather& a, Limits& limits) {
  limits.needs_tokens = true;
  if (!is_sound(a.table) || !a.out || a.rows != CW_TOKENS) return false;
  at_most(limits.vocab_size, a.table.num_rows);
  return true;
}

bool check(const cw_take& a, Limits& limits) {
  limits.needs_logit_rows = true;
  at_most(limits.most_rows[CW_TOKENS], a.most_tokens);
  return a.rows == CW_LOGITS && a.x && a.out && is_size(a.width) && is_size(a.most_tokens);
}

bool check(const cw_norm& a, Limits&) {
  return a.x && a.out && is_size(a.width) && a.x_stride >= a.width && !a.add == !a.sum && check_norming(a.norm) &&
         a.norm.kind != CW_NO_NORM && (!a.residual || a.residual != a.out);
}

// weights: of the linear, whose outputs a pair adds to.
bool check_pairs(const cw_pairs& p, int64_t rows, const cw_weight* const* weights, int64_t count,
                 Limits& limits) {
  if (!p.pairs) return true;
  if (rows != CW_TOKENS || p.num_adapters < 1 || p.num_adapters > kMostAdapters) return false;
  if (p.most_rank < 1 || p.most_rank > kMostRank) return false;
  for (int64_t i = 0; i < p.num_adapters * count; i++) {
    const cw_pair& pair = p.pairs[i];
    if (!pair.rank) continue;
    if (pair.rank < 0 || pair.rank > p.most_rank || !pair.down || !is_sound(pair.up)) return false;
    if (is_integer(pair.up.kind) || pair.up.num_columns != pair.rank) return false;
    if (pair.up.num_rows != weights[i % count]->num_rows) return false;
  }
  at_most(limits.num_adapters, p.num_adapters);
  return true;
}

bool check(const cw_linear& a, Limits& limits) {
  if (!a.x || !a.out || a.x == a.out || !check_norming(a.norm)) return false;
  if (a.num_segments < 1 || a.num_segments > CW_MAX_SEGMENTS) return false;
  for (int64_t s = 0; s < a.num_segments; s++)
    if (!is_sound(a.segments[s]) || a.segments[s].num_columns != a.segments[0].num_columns)
      return false;
  const cw_weight* weights[CW_MAX_SEGMENTS];
  for (int64_t s = 0; s < a.num_segments; s++) weights[s] = &a.segments[s];
  return check_pairs(a.pairs, a.rows, weights, a.num_segments, limits);
}

bool is_activation(int64_t activation) { return activation >= CW_SILU && activation <= CW_RELU; }

bool check(const cw_gated& a, Limits& limits) {
  const cw_weight* weights[] = {&a.gate, &a.up};
  return is_activation(a.activation) && a.x && a.out && a.x != a.out && check_norming(a.norm) &&
         is_sound(a.gate) && is_sound(a.up) &&
         a.gate.num_rows == a.up.num_rows && a.gate.num_columns == a.up.num_columns &&
         is_integer(a.gate.kind) == is_integer(a.up.kind) &&
         check_pairs(a.pairs, a.rows, weights, 2, limits);
}

bool check(const cw_gate& a, Limits&) {
  if (!a.gate || !a.out || !is_size(a.width) || !is_size(a.num_heads)) return false;
  if (a.num_heads > kMost / a.width) return false;
  int64_t gate_width = a.is_scalar ? 1 : a.width, last = a.num_heads - 1;
  if (a.gate_head_stride < gate_width) return false;
  if (a.gate_stride < last * a.gate_head_stride + gate_width) return false;
  if (a.up && a.up_head_stride < a.width) return false;
  if (a.up && a.up_stride < last * a.up_head_stride + a.width) return false;
  if (a.activation == CW_CAPPED) return a.cap > 0.0 && a.cap <= 1e9;
  return is_activation(a.activation) || a.activation == CW_SIGMOID || a.activation == CW_IDENTITY;
}

bool check(const cw_rotate& a, Limits& limits) {
  if (a.rows != CW_TOKENS || !a.x || !a.out || !is_size(a.num_heads)) return false;
  if (a.head_size < 1 || a.head_size > kMostHeadSize) return false;
  if (!check_norming(a.norm) || a.x_head_stride < a.head_size) return false;
  if (a.num_heads > kMost / a.x_head_stride) return false;
  return a.x_stride >= (a.num_heads - 1) * a.x_head_stride + a.head_size &&
         a.out_head_stride >= a.head_size && a.num_heads <= kMost / a.out_head_stride &&
         a.out_stride >= (a.num_heads - 1) * a.out_head_stride + a.head_size &&
         check_rotation(a.rotation, a.head_size, a.capacity, limits);
}

bool check(const cw_store& a, Limits& limits) {
  if (a.rows != CW_TOKENS || !a.key || !a.value) return false;
  if (!check_pages(a.pages, false, true, limits)) return false;
  int64_t width = a.pages.num_groups * a.pages.head_size;
  return a.key_stride >= width && a.value_stride >= width;
}

bool check(const cw_attend& a, Limits& limits) {
  return a.rows == CW_TOKENS && a.query && a.out && check_pages(a.pages, true, false, limits) &&
         check_scoring(a.scoring) && check_heads(a.num_heads, a.pages) &&
         a.query_stride >= a.num_heads * a.pages.head_size;
}

bool check(const cw_attention& a, Limits& limits) {
  return a.rows == CW_TOKENS && a.qkv && a.out && a.qkv != a.out &&
         check_norming(a.query_norm) && check_norming(a.key_norm) && check_norming(a.value_norm) &&
         check_pages(a.pages, true, true, limits) && check_scoring(a.scoring) &&
         check_heads(a.num_heads, a.pages) &&
         check_rotation(a.rotation, a.pages.head_size, a.capacity, limits);
}

bool check(const cw_sample& a, Limits&) {
  if (!a.raw || !a.edited || !a.choices || !a.drawn || !is_size(a.vocab_size)) return false;
  for (int64_t r = 0; r < a.capacity; r++) {
    const cw_choice& c = a.choices[r];
    if (!a.raw[r] || !a.edited[r] || !(c.temperature >= 0.0f)) return false;
    if (c.rest > kMostFraction || c.u < 0 || c.u >= kMostFraction) return false;
    if (c.watched >= a.vocab_size) return false;
  }
  return true;
}

bool check(const cw_route& a, Limits&) {
  if (!a.scores || !a.ids || !a.weights || a.num_experts < 1 || a.num_experts > kMostExperts)
    return false;
  if (a.num_chosen < 1 || a.num_chosen > a.num_experts) return false;
  if (a.rule < CW_SOFTMAX_THEN_TOP || a.rule > CW_SIGMOID_THEN_TOP) return false;
  if (a.num_groups < 1 || a.num_experts % a.num_groups) return false;
  if (a.num_groups == 1) return true;
  int64_t size = a.num_experts / a.num_groups;
  return a.rule != CW_TOP_THEN_SOFTMAX && a.num_chosen_groups >= 1 &&
         a.num_chosen_groups <= a.num_groups && a.num_counted >= 1 && a.num_counted <= size;
}

// A stack is as sound as its first matrix; the others lie behind it.
bool is_sound_stack(const cw_stack& s) {
  return s.num_matrices >= 1 && s.num_matrices <= kMostExperts &&
         is_sound({s.data, s.num_rows, s.num_columns, s.kind});
}

bool check(const cw_experts& a, Limits&) {
  if (a.rows != CW_TOKENS || !a.x || !a.ids || !a.weights || !a.out || a.x == a.out) return false;
  if (!is_sound_stack(a.gate_up) || !is_sound_stack(a.down)) return false;
  if (!is_activation(a.activation) && a.activation != CW_CLAMPED) return false;
  if (!check_norming(a.norm) || (a.activation == CW_CLAMPED && !(a.limit >= 0.0))) return false;
  return a.gate_up.num_matrices == a.down.num_matrices && a.num_chosen >= 1 &&
         a.num_chosen <= a.down.num_matrices && a.gate_up.num_columns == a.down.num_rows &&
         a.gate_up.num_rows == 2 * a.down.num_columns;
}

bool check(const cw_expert_units& a, Limits&) {
  if (a.rows != CW_TOKENS || !a.x || !a.ids || !a.out || a.x == a.out) return false;
  if (!is_sound_stack(a.gate_up) || a.gate_up.num_rows % 2) return false;
  if (!is_activation(a.activation) && a.activation != CW_CLAMPED) return false;
  if (!check_norming(a.norm) || (a.activation == CW_CLAMPED && !(a.limit >= 0.0))) return false;
  return a.num_chosen >= 1 && a.num_chosen <= a.gate_up.num_matrices;
}

bool check(const cw_expert_sums& a, Limits&) {
  if (a.rows != CW_TOKENS || !a.x || !a.ids || !a.weights || !a.out || a.x == a.out) return false;
  return is_sound_stack(a.down) && a.num_chosen >= 1 && a.num_chosen <= a.down.num_matrices;
}

bool check(const cw_heads& a, Limits&) {
  const cw_stack& s = a.stack;
  if (a.rows != CW_TOKENS || !is_sound_stack(s) || !a.out || a.x == a.out) return false;
  return check_by_head({a.x, a.x_stride, a.x_head_stride}, s.num_matrices, s.num_columns) &&
         check_by_head({a.out, a.out_stride, a.out_head_stride}, s.num_matrices, s.num_rows);
}

bool check(const cw_store_latent& a, Limits& limits) {
  return a.rows == CW_TOKENS && a.latent && a.rotary && a.latent_stride >= a.pages.rank &&
         a.rotary_stride >= a.pages.rotary_size && check_latent(a.pages, false, true, limits);
}

bool check(const cw_attend_latent& a, Limits& limits) {
  return a.rows == CW_TOKENS && a.query && a.out && check_latent(a.pages, true, false, limits) &&
         check_scoring(a.scoring) && a.num_heads >= 1 && a.num_heads <= 4096 &&
         a.query_stride >= a.num_heads * (a.pages.rank + a.pages.rotary_size);
}

bool check(const cw_delta& a, Limits& limits) {
  if (a.rows != CW_TOKENS || !a.convolution || !a.decay_bias || !a.decay_log) return false;
  if (!a.states || !a.inputs || !a.out) return false;
  if (a.num_heads < 1 || a.num_heads > 4096 || a.shared < 1 || a.shared > 4096) return false;
  if (a.key_size < 1 || a.key_size > kMostHeadSize || a.value_size < 1) return false;
  if (a.value_size > kMostHeadSize || a.width < 2 || a.width > 64) return false;
  return check_by_head(a.query, a.num_heads, a.key_size) &&
         check_by_head(a.key, a.num_heads, a.key_size) &&
         check_by_head(a.value, a.num_heads, a.shared * a.value_size) &&
         check_by_head(a.rate, a.num_heads, a.shared) &&
         check_by_head(a.speed, a.num_heads, a.shared) &&
         limit_group(a.group, a.num_pages, a.page_size, true, false, limits);
}

bool check(const cw_convolve& a, Limits& limits) {
  return a.rows == CW_TOKENS && a.x && a.weights && a.inputs && a.out && a.x != a.out &&
         is_size(a.channels) && a.width >= 2 && a.width <= 64 &&
         limit_group(a.group, a.num_pages, a.page_size, true, false, limits);
}

template <class Arguments>
cw_status checked(const void* arguments, Limits& limits) {
  const Arguments& a = *static_cast<const Arguments*>(arguments);
  if (a.rows != CW_TOKENS && a.rows != CW_LOGITS) return CW_BAD_ARGUMENT;
  if (!is_size(a.capacity) || !check(a, limits)) return CW_BAD_ARGUMENT;
  at_most(limits.most_rows[a.rows], a.capacity);
  return CW_OK;
}

cw_status check_sequences(const cw_step& step, const Limits::Group& limits, const cw_group& group) {
  if (step.num_tokens && !step.num_sequences) return CW_BAD_QUERY_START;
  if (!step.query_starts || !step.context_lengths || !group.page_table) return CW_BAD_STEP;
  if (!is_size(group.pages_per_sequence)) return CW_BAD_STEP;
  if (step.query_starts[0] != 0 || step.query_starts[step.num_sequences] != step.num_tokens)
    return CW_BAD_QUERY_START;
  for (int64_t s = 0; s < step.num_sequences; s++) {
    int64_t queries = step.query_starts[s + 1] - step.query_starts[s];
    if (queries < 1) return CW_BAD_QUERY_START;
    int64_t context = step.context_lengths[s];
    if (context < queries || context > group.pages_per_sequence * limits.page_size)
      return CW_BAD_CONTEXT_LENGTH;
    const int64_t* pages = group.page_table + s * group.pages_per_sequence;
    for (int64_t i = 0; i * limits.page_size < context; i++)
      if (pages[i] < 0 || pages[i] >= limits.num_pages) return CW_BAD_PAGE;
  }
  return CW_OK;
}

// Whether all count entries are there and lie in [0, limit).
bool are_within(const int64_t* entries, int64_t count, int64_t limit) {
  if (!entries) return count == 0;
  for (int64_t i = 0; i < count; i++)
    if (entries[i] < 0 || entries[i] >= limit) return false;
  return true;
}

}  // namespace

Limits::Limits() : most_rows{kMost, kMost}, vocab_size(kMost), num_positions(kMost), num_adapters(kMost) {
  needs_tokens = needs_positions = needs_logit_rows = false;
  for (Group& group : groups) group = {false, false, kMost, 0};
}

bool is_sound(const cw_weight& w) {
  return w.data && reinterpret_cast<uintptr_t>(w.data) % 64 == 0 && is_size(w.num_rows) &&
         is_size(w.num_columns) && fits_kind(w.kind) &&
         (!is_integer(w.kind) || w.num_columns % kGroupColumns == 0);
}

int64_t size_of(int64_t operation) {
  switch (operation) {
    case CW_GATHER:
      return sizeof(cw_gather);
    case CW_TAKE:
      return sizeof(cw_take);
    case CW_NORM:
      return sizeof(cw_norm);
    case CW_LINEAR:
      return sizeof(cw_linear);
    case CW_GATED:
      return sizeof(cw_gated);
    case CW_GATE:
      return sizeof(cw_gate);
    case CW_ROTATE:
      return sizeof(cw_rotate);
    case CW_STORE:
      return sizeof(cw_store);
    case CW_ATTEND:
      return sizeof(cw_attend);
    case CW_ATTENTION:
      return sizeof(cw_attention);
    case CW_SAMPLE:
      return sizeof(cw_sample);
    case CW_ROUTE:
      return sizeof(cw_route);
    case CW_EXPERTS:
      return sizeof(cw_experts);
    case CW_HEADS:
      return sizeof(cw_heads);
    case CW_STORE_LATENT:
      return sizeof(cw_store_latent);
    case CW_ATTEND_LATENT:
      return sizeof(cw_attend_latent);
    case CW_DELTA:
      return sizeof(cw_delta);
    case CW_CONVOLVE:
      return sizeof(cw_convolve);
    case CW_EXPERT_UNITS:
      return sizeof(cw_expert_units);
    case CW_EXPERT_SUMS:
      return sizeof(cw_expert_sums);
    default:
      return 0;
  }
}

cw_status check_operation(int64_t operation, const void* arguments, Limits& limits) {
  switch (operation) {
    case CW_GATHER:
      return checked<cw_gather>(arguments, limits);
    case CW_TAKE:
      return checked<cw_take>(arguments, limits);
    case CW_NORM:
      return checked<cw_norm>(arguments, limits);
    case CW_LINEAR:
      return checked<cw_linear>(arguments, limits);
    case CW_GATED:
      return checked<cw_gated>(arguments, limits);
    case CW_GATE:
      return checked<cw_gate>(arguments, limits);
    case CW_ROTATE:
      return checked<cw_rotate>(arguments, limits);
    case CW_STORE:
      return checked<cw_store>(arguments, limits);
    case CW_ATTEND:
      return checked<cw_attend>(arguments, limits);
    case CW_ATTENTION:
      return checked<cw_attention>(arguments, limits);
    case CW_SAMPLE:
      return checked<cw_sample>(arguments, limits);
    case CW_ROUTE:
      return checked<cw_route>(arguments, limits);
    case CW_EXPERTS:
      return checked<cw_experts>(arguments, limits);
    case CW_HEADS:
      return checked<cw_heads>(arguments, limits);
    case CW_STORE_LATENT:
      return checked<cw_store_latent>(arguments, limits);
    case CW_ATTEND_LATENT:
      return checked<cw_attend_latent>(arguments, limits);
    case CW_DELTA:
      return checked<cw_delta>(arguments, limits);
    case CW_CONVOLVE:
      return checked<cw_convolve>(arguments, limits);
    case CW_EXPERT_UNITS:
      return checked<cw_expert_units>(arguments, limits);
    case CW_EXPERT_SUMS:
      return checked<cw_expert_sums>(arguments, limits);
    default:
      return CW_BAD_ARGUMENT;
  }
}

cw_status check_step(const cw_step& step, const Limits& limits) {
  if (step.num_tokens < 0 || step.num_tokens > limits.most_rows[CW_TOKENS]) return CW_BAD_STEP;
  if (step.num_logit_rows < 0 || step.num_logit_rows > limits.most_rows[CW_LOGITS])
    return CW_BAD_STEP;
  if (step.num_sequences < 0 || step.num_sequences > step.num_tokens) return CW_BAD_STEP;
  if (limits.needs_tokens && !are_within(step.token_ids, step.num_tokens, limits.vocab_size))
    return CW_BAD_TOKEN_ID;
  if (limits.needs_positions && !are_within(step.positions, step.num_tokens, limits.num_positions))
    return CW_BAD_POSITION;
  if (limits.needs_logit_rows && !are_within(step.logit_rows, step.num_logit_rows, step.num_tokens))
    return CW_BAD_LOGIT_ROW;
  for (int64_t t = 0; step.adapters && t < step.num_tokens; t++)
    if (step.adapters[t] < -1 || step.adapters[t] >= limits.num_adapters) return CW_BAD_ADAPTER;
  for (int g = 0; g < CW_MAX_GROUPS; g++) {
    const Limits::Group& group = limits.groups[g];
    int64_t num_slots = group.num_pages * group.page_size;
    if (group.needs_slots && !are_within(step.groups[g].slots, step.num_tokens, num_slots))
      return CW_BAD_SLOT;
    if (!group.needs_table) continue;
    cw_status status = check_sequences(step, group, step.groups[g]);
    if (status != CW_OK) return status;
  }
  return CW_OK;
}

}  // namespace cutaway
