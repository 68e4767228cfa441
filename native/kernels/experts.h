// Experts: each row of activations times matrices that its token chose.
//
// Pairs of token and expert are sorted by expert, so that a matrix is read once for all its rows.
// A pair's products are those of a linear, and a token's results are added in the token's own
// order, product and sum rounded one after the other: so what a token gets does not depend on its
// mates. Nothing here is known before the ids are, so phases are cut by the most that there may
// be, and what is not there is passed over.
#pragma once

#include "linear.h"

namespace {

constexpr int64_t kGateUnit = kGroupColumns;  // entries of F: what is rounded together
constexpr int64_t kPartsOfExperts = 8;        // one expert may have many rows, another few

// Rows of one expert that are multiplied together.
struct Block {
  int64_t expert;
  int64_t place;  // of the first row
  int64_t num_rows;
};

// Most blocks into which pairs may fall, if one has block_rows at most.
inline int64_t most_blocks(int64_t num_pairs, int64_t num_experts, int64_t block_rows) {
  return num_pairs / block_rows + least(num_pairs, num_experts);
}

inline int64_t expert_block_rows(int64_t num_columns) {
  int64_t rows = kRowBlockBytes / (num_columns * 3 / 2) / kTileRows * kTileRows;
  return most(2 * kTileRows, rows);
}

// The step's pairs by expert. An expert's rows begin with a tile of their own, so places do not
// hang on how many rows a block has.
class Pairs {
 public:
  Pairs(const cw_experts& a, const cw_step& step, Arena& local)
      : a_(a), num_pairs_(rows_of(a.rows, step) * a.num_chosen) {
    int64_t num_experts = a.down.num_matrices;
    firsts_ = local.take<int64_t>(num_experts);
    counts_ = local.take<int64_t>(num_experts);
    places_ = local.take<int64_t>(num_pairs_);
  }

  int64_t count() const { return num_pairs_; }
  int64_t num_places() const {
    int64_t filled = least(num_pairs_, a_.down.num_matrices);
    return num_pairs_ + filled * (kTileRows - 1);
  }

  // With a part in hand: else ids may be another layer's by now.
  void sort() {
    if (is_sorted_) return;
    is_sorted_ = true;
    int64_t num_experts = a_.down.num_matrices, first = 0;
    for (int64_t e = 0; e < num_experts; e++) counts_[e] = 0;
    for (int64_t i = 0; i < num_pairs_; i++) places_[i] = counts_[expert(i)]++;
    for (int64_t e = 0; e < num_experts; e++) {
      firsts_[e] = first;
      first += ceil_div(counts_[e], kTileRows) * kTileRows;
    }
    for (int64_t i = 0; i < num_pairs_; i++) places_[i] += firsts_[expert(i)];
  }

  int64_t expert(int64_t pair) const {
    int64_t id = a_.ids[pair];
    return id >= 0 && id < a_.down.num_matrices ? id : 0;
  }
  int64_t place(int64_t pair) const { return places_[pair]; }

  // The blocks of all experts, of nearly one size; their number. One token's are of one row each.
  int64_t cut(int64_t block_rows, Block* blocks) const {
    int64_t count = 0;
    if (num_pairs_ == a_.num_chosen) {
      for (; count < num_pairs_; count++) blocks[count] = {expert(count), place(count), 1};
      return count;
    }
    for (int64_t e = 0; e < a_.down.num_matrices; e++) {
      if (!counts_[e]) continue;
      int64_t parts = ceil_div(counts_[e], block_rows);
      int64_t size = ceil_div(ceil_div(counts_[e], parts), kTileRows) * kTileRows;
      for (int64_t row = 0; row < counts_[e]; row += size)
        blocks[count++] = {e, firsts_[e] + row, least(size, counts_[e] - row)};
    }
    return count;
  }

 private:
  const cw_experts& a_;
  int64_t num_pairs_;
  bool is_sorted_ = false;
  int64_t* firsts_;
  int64_t* counts_;
  int64_t* places_;
};

// Rows as a product takes them, floats or rounded, by place.
struct PreparedRows {
  float* floats = nullptr;
  QuantizedGroup* groups = nullptr;
  SplitGroup* splits = nullptr;
  int64_t width;

  PreparedRows(int64_t kind, int64_t num_rows, int64_t columns, Arena& arena) : width(columns) {
    int64_t rows = ceil_div(num_rows, kTileRows) * kTileRows;
    if (!is_integer(kind)) {
      floats = arena.take<float>(rows * columns);
      return;
    }
    groups = arena.take<QuantizedGroup>(rows * (columns / kGroupColumns));
    if (kSplitsInputs && has_bytes(kind))
      splits = arena.take<SplitGroup>(rows * (columns / kGroupColumns));
  }

  Activations rows() const { return {floats, groups, splits, width}; }
};

// Everything of one thread, and what all share.
struct ExpertMemory {
  Pairs pairs;
  bool is_one;  // one token: all its experts read one row
  int64_t most_rows;
  Block* gate_blocks;
  Block* down_blocks;
  float* one_row;  // [D] normalized
  float* result;   // of a product
  char* product;
  float* gate;    // [rows, kGateUnit]
  float* up;      // [rows, kGateUnit]
  float* joined;  // [rows, 2 kGateUnit] of interleaved rows
  float* sums;    // [kResultWidth]
  PreparedRows in;
  PreparedRows inner;
  float* results;  // [places, D] of down, unless there is one token

  static constexpr int64_t kResultWidth = kFloatResultStride;

  ExpertMemory(const cw_experts& a, const cw_step& step, Arena& local, Arena& shared)
      : pairs(a, step, local),
        is_one(rows_of(a.rows, step) == 1),
        in(a.gate_up.kind, is_one ? 1 : pairs.num_places(), a.gate_up.num_columns,
           is_one ? local : shared),
        inner(a.down.kind, pairs.num_places(), a.down.num_columns, shared) {
    int64_t experts = a.down.num_matrices;
    int64_t gate_rows = expert_block_rows(a.gate_up.num_columns);
    int64_t down_rows = expert_block_rows(a.down.num_columns);
    most_rows = least(most(gate_rows, down_rows), ceil_div(pairs.count(), kTileRows) * kTileRows);
    gate_blocks = local.take<Block>(most_blocks(pairs.count(), experts, gate_rows));
    down_blocks = local.take<Block>(most_blocks(pairs.count(), experts, down_rows));
    one_row = local.take<float>(a.norm.kind ? a.gate_up.num_columns : 0);
    result = local.take<float>(most_rows * kFloatResultStride);
    product = local.take<char>(kProductBytes);
    gate = local.take<float>(most_rows * kGateUnit);
    up = local.take<float>(most_rows * kGateUnit);
    joined = local.take<float>(a.is_interleaved ? most_rows * 2 * kGateUnit : 0);
    sums = local.take<float>(kResultWidth);
    results = shared.take<float>(is_one ? 0 : pairs.num_places() * a.down.num_rows);
  }
};

// Some columns of rows times a matrix: [first, first + count), which may begin inside a panel, with
// the bias of each; out has rows out_stride apart.
struct Columns {
  int64_t first;
  int64_t count;
  const float* bias;  // of the matrix, or null
  float* out;
  int64_t out_stride;
};

inline void multiply_columns(const cw_weight& w, const Columns& to, const Activations& x,
                             int64_t row, int64_t num_rows, const ExpertMemory& m) {
  int64_t stride = result_stride(w.kind), end = to.first + to.count;
  int64_t wide = num_rows <= kDirectRows ? 1 : panels_per_unit(w.kind);
  int64_t end_panel = ceil_div(end, kPanelRows);
  for (int64_t panel = to.first / kPanelRows; panel < end_panel; panel += wide) {
    int64_t count = least(wide, end_panel - panel), column = panel * kPanelRows;
    multiply(w, panel, count, x, row, num_rows, m.result, m.product, {to.out, to.out_stride});
    int64_t begin = most(column, to.first), stop = least(column + count * kPanelRows, end);
    finish({m.result + begin - column, stride, to.bias ? to.bias + begin : nullptr, nullptr,
            to.out + begin - to.first, to.out_stride, num_rows},
           stop - begin);
  }
}

inline void separate(const float* joined, int64_t count, float* gate, float* up) {
  for (int64_t i = 0; i < count; i++) gate[i] = joined[2 * i], up[i] = joined[2 * i + 1];
}

// Entries [first, first + kGateUnit) of F for the rows of a block, as down takes them.
inline void run_gate_unit(const cw_experts& a, const Block& block, int64_t row, int64_t first,
                          const ExpertMemory& m) {
  int64_t inner = a.down.num_columns, count = least(kGateUnit, inner - first);
  cw_weight matrix = matrix_of(a.gate_up, block.expert);
  const float* bias = a.gate_up_bias ? a.gate_up_bias + block.expert * 2 * inner : nullptr;
  Activations x = m.in.rows();
  if (a.is_interleaved) {
    multiply_columns(matrix, {2 * first, 2 * count, bias, m.joined, 2 * kGateUnit}, x, row,
                     block.num_rows, m);
    for (int64_t r = 0; r < block.num_rows; r++)
      separate(m.joined + r * 2 * kGateUnit, count, m.gate + r * kGateUnit, m.up + r * kGateUnit);
  } else {
    multiply_columns(matrix, {first, count, bias, m.gate, kGateUnit}, x, row, block.num_rows, m);
    multiply_columns(matrix, {inner + first, count, bias, m.up, kGateUnit}, x, row, block.num_rows,
                     m);
  }
  float alpha = static_cast<float>(a.alpha), limit = static_cast<float>(a.limit);
  for (int64_t r = 0; r < block.num_rows; r++) {
    float *gate = m.gate + r * kGateUnit, *up = m.up + r * kGateUnit;
    float* out = m.inner.floats ? m.inner.floats + (block.place + r) * inner + first : gate;
    if (a.activation == CW_CLAMPED)
      clamped_gate_row(gate, up, count, alpha, limit, out);
    else
      gate_row(a.activation, gate, up, count, out);
  }
  if (!m.inner.groups) return;
  int64_t num_groups = inner / kGroupColumns, group = first / kGroupColumns;
  for (int64_t r = 0; r < block.num_rows; r += kTileRows) {  // a tile's rows lie side by side
    int64_t rows = least(kTileRows, block.num_rows - r);
    int64_t at = tiled(block.place + r, group, num_groups);
    quantize_row(m.gate + r * kGateUnit, rows, m.inner.groups + at, 1);
    if (m.inner.splits) split_row(m.inner.groups + at, rows, m.inner.splits + at, 1);
  }
}

// Units of a phase: those of a block in turn, all blocks, and this for several parts of the
// outputs, so that shares are alike though experts are not.
struct ExpertUnits {
  int64_t per_block;
  int64_t per_part;
  int64_t num_blocks;

  ExpertUnits(int64_t count, int64_t blocks, bool is_one)
      : per_block(count), per_part(is_one ? count : ceil_div(count, 16)), num_blocks(blocks) {}

  int64_t count() const { return ceil_div(per_block, per_part) * per_part * num_blocks; }
  int64_t block(int64_t unit) const { return unit / per_part % num_blocks; }
  int64_t part(int64_t unit) const {
    return unit / (per_part * num_blocks) * per_part + unit % per_part;
  }
};

// Panels [panel, panel + count) of one token's result, its experts in turn.
inline void run_down_of_one(const cw_experts& a, int64_t panel, const ExpertMemory& m) {
  int64_t width = a.down.num_rows, first = panel * kPanelRows;
  int64_t count = least(kPanelRows, width - first);
  float* part = m.gate;
  for (int64_t k = 0; k < a.num_chosen; k++) {
    int64_t expert = m.pairs.expert(k);
    const float* bias = a.down_bias ? a.down_bias + expert * width : nullptr;
    multiply_columns(matrix_of(a.down, expert), {first, count, bias, part, kPanelRows},
                     m.inner.rows(), m.pairs.place(k), 1, m);
    F32 weighted = mul(load(part), broadcast(a.weights[k]));
    store(m.sums, k ? add(load(m.sums), weighted) : weighted);
  }
  finish({m.sums, kPanelRows, nullptr, a.residual ? a.residual + first : nullptr, a.out + first,
          width, 1},
         count);
}

inline void add_experts(const cw_experts& a, int64_t token, const ExpertMemory& m) {
  int64_t width = a.down.num_rows;
  float* out = a.out + token * width;
  const float* residual = a.residual ? a.residual + token * width : nullptr;
  for (int64_t i = 0; i < width; i += kLanes) {
    int count = static_cast<int>(least(kLanes, width - i));
    F32 sum = zeros();
    for (int64_t k = 0; k < a.num_chosen; k++) {
      int64_t pair = token * a.num_chosen + k;
      F32 part = load_first(m.results + m.pairs.place(pair) * width + i, count);
      F32 weighted = mul(part, broadcast(a.weights[pair]));
      sum = k ? add(sum, weighted) : weighted;
    }
    if (residual) sum = add(load_first(residual + i, count), sum);
    store_first(out + i, sum, count);
  }
}

// Each pair's row by place, and what gate and up make of it.
inline bool run_gates(const cw_experts& a, const cw_step& step, ExpertMemory& m,
                      cutaway::Worker& worker) {
  int64_t experts = a.gate_up.num_matrices, width = a.gate_up.num_columns;
  int64_t inner = a.down.num_columns;
  Preparation p{a.x, a.norm, rows_of(a.rows, step), width, m.in.floats != nullptr,
                m.in.groups != nullptr, m.in.splits != nullptr};
  auto prepare = [&](int64_t from, int64_t to) {
    float* floats = m.in.floats ? m.in.floats + to * width : m.one_row;
    if (m.in.floats && !a.norm.kind)
      __builtin_memcpy(floats, a.x + from * width, static_cast<size_t>(width) * sizeof(float));
    prepare_row(p, from, to, floats, m.in.groups, m.in.splits);
  };
  bool is_prepared = false;
  if (!m.is_one && !each(worker, m.pairs.count(), [&](Range pairs) {
        m.pairs.sort();
        for (int64_t i = pairs.begin; i < pairs.end; i++) prepare(i / a.num_chosen, m.pairs.place(i));
      }))
    return false;

  int64_t parts = m.is_one ? 1 : kPartsOfExperts;
  int64_t block_rows = expert_block_rows(width), num_blocks = -1;
  ExpertUnits gates(ceil_div(inner, kGateUnit), most_blocks(m.pairs.count(), experts, block_rows),
                    m.is_one);
  auto run = [&](Range range) {
    m.pairs.sort();
    if (m.is_one && !is_prepared) prepare(0, 0);
    is_prepared = true;
    if (num_blocks < 0) num_blocks = m.pairs.cut(block_rows, m.gate_blocks);
    for (int64_t u = range.begin; u < range.end; u++) {
      int64_t block = gates.block(u), first = gates.part(u) * kGateUnit;
      if (block >= num_blocks || first >= inner) continue;
      const Block& b = m.gate_blocks[block];
      run_gate_unit(a, b, m.is_one ? 0 : b.place, first, m);
    }
  };
  return each(worker, gates.count(), run, parts);
}

// What down makes of that, added up for each token.
inline bool run_downs(const cw_experts& a, const cw_step& step, ExpertMemory& m,
                      cutaway::Worker& worker) {
  int64_t experts = a.down.num_matrices, width = a.down.num_rows, inner = a.down.num_columns;
  if (m.is_one)
    return each(worker, num_panels(width), [&](Range panels) {
      m.pairs.sort();
      for (int64_t i = panels.begin; i < panels.end; i++) run_down_of_one(a, i, m);
    });

  int64_t wide = panels_per_unit(a.down.kind) * kPanelRows;
  int64_t block_rows = expert_block_rows(inner), num_blocks = -1;
  ExpertUnits downs(ceil_div(width, wide), most_blocks(m.pairs.count(), experts, block_rows), false);
  auto run = [&](Range range) {
    m.pairs.sort();
    if (num_blocks < 0) num_blocks = m.pairs.cut(block_rows, m.down_blocks);
    for (int64_t u = range.begin; u < range.end; u++) {
      int64_t block = downs.block(u), first = downs.part(u) * wide;
      if (block >= num_blocks || first >= width) continue;
      const Block& b = m.down_blocks[block];
      const float* bias = a.down_bias ? a.down_bias + b.expert * width : nullptr;
      multiply_columns(matrix_of(a.down, b.expert),
                       {first, least(wide, width - first), bias, m.results + b.place * width + first,
                        width},
                       m.inner.rows(), b.place, b.num_rows, m);
    }
  };
  if (!each(worker, downs.count(), run, kPartsOfExperts)) return false;
  return each(worker, rows_of(a.rows, step), [&](Range tokens) {
    m.pairs.sort();
    for (int64_t t = tokens.begin; t < tokens.end; t++) add_experts(a, t, m);
  });
}

bool run_experts(const void* arguments, const cw_step& step, cutaway::Worker& worker) {
  const cw_experts& a = *static_cast<const cw_experts*>(arguments);
  Arena local(worker.local), shared(worker.shared);
  ExpertMemory m(a, step, local, shared);
  return run_gates(a, step, m, worker) && run_downs(a, step, m, worker);
}

cutaway::Scratch experts_scratch(const void* arguments, const cw_step& step) {
  Arena local(nullptr), shared(nullptr);
  ExpertMemory memory(*static_cast<const cw_experts*>(arguments), step, local, shared);
  return {local.size(), shared.size()};
}

// A half as the layer that it is one of: the other has no numbers, and gives and takes floats.
inline cw_experts layer_of(const cw_expert_units& u) {
  cw_stack down{nullptr, u.gate_up.num_matrices, 0, u.gate_up.num_rows / 2, CW_F32};
  return {u.rows, u.capacity, u.x, u.norm, u.ids, nullptr, u.num_chosen, u.gate_up, down, u.bias,
          nullptr, u.is_interleaved, u.activation, u.alpha, u.limit, nullptr, nullptr};
}

inline cw_experts layer_of(const cw_expert_sums& s) {
  cw_stack gate_up{nullptr, s.down.num_matrices, 2 * s.down.num_columns, 1, CW_F32};
  return {s.rows, s.capacity, nullptr, {}, s.ids, s.weights, s.num_chosen, gate_up, s.down, nullptr,
          s.bias, 0, CW_SILU, 0.0, 0.0, nullptr, s.out};
}

bool run_expert_units(const void* arguments, const cw_step& step, cutaway::Worker& worker) {
  const cw_expert_units& u = *static_cast<const cw_expert_units*>(arguments);
  cw_experts a = layer_of(u);
  Arena local(worker.local), shared(worker.shared);
  ExpertMemory m(a, step, local, shared);
  if (!run_gates(a, step, m, worker)) return false;
  int64_t inner = a.down.num_columns;
  return each(worker, m.pairs.count(), [&](Range pairs) {
    m.pairs.sort();
    for (int64_t i = pairs.begin; i < pairs.end; i++)
      __builtin_memcpy(u.out + i * inner, m.inner.floats + m.pairs.place(i) * inner,
                       static_cast<size_t>(inner) * sizeof(float));
  });
}

bool run_expert_sums(const void* arguments, const cw_step& step, cutaway::Worker& worker) {
  const cw_expert_sums& s = *static_cast<const cw_expert_sums*>(arguments);
  cw_experts a = layer_of(s);
  Arena local(worker.local), shared(worker.shared);
  ExpertMemory m(a, step, local, shared);
  int64_t inner = a.down.num_columns;
  Preparation p{s.x, {}, m.pairs.count(), inner, m.inner.floats != nullptr,
                m.inner.groups != nullptr, m.inner.splits != nullptr};
  if (!each(worker, m.pairs.count(), [&](Range pairs) {
        m.pairs.sort();
        for (int64_t i = pairs.begin; i < pairs.end; i++) {
          int64_t place = m.pairs.place(i);
          if (m.inner.floats)
            __builtin_memcpy(m.inner.floats + place * inner, s.x + i * inner,
                             static_cast<size_t>(inner) * sizeof(float));
          prepare_row(p, i, place, nullptr, m.inner.groups, m.inner.splits);
        }
      }))
    return false;
  return run_downs(a, step, m, worker);
}

template <typename Half>
cutaway::Scratch half_scratch(const void* arguments, const cw_step& step) {
  Arena local(nullptr), shared(nullptr);
  cw_experts a = layer_of(*static_cast<const Half*>(arguments));
  ExpertMemory memory(a, step, local, shared);
  return {local.size(), shared.size()};
}

}  // namespace
