// What training's kernels are told: whole tensors, forward where grad is null, else the gradient.
#pragma once

#include <stdint.h>

namespace cutaway {

constexpr int64_t kRowsOfBlock = 64;     // whose part of a weight's gradient is summed alone
constexpr int64_t kTokensOfBlock = 256;  // whose products are summed before they join the rest
constexpr int64_t kQueriesOfBlock = 64;  // whose scores lie in scratch memory at once

// An activation of rows; or a gate of rows that hold gate and value side by side.
struct Curve {
  int64_t kind;  // CW_SILU, CW_GELU_TANH or CW_GELU
  int64_t is_gate;
  int64_t width;
  const float* x;     // [rows, width], of a gate [rows, 2 width]
  const float* grad;  // [rows, width] or null
  float* out;         // [rows, width]; with grad as x
};

// The gradient of rows over their root mean square, times a weight.
struct RmsRows {
  int64_t rows;
  int64_t width;
  double epsilon;
  const float* x;
  const float* weight;  // [width]
  const float* grad;    // [rows, width]
  float* out;           // [rows, width], of x
  float* of_weight;     // [blocks of rows, width]
};

// Causal attention of sequences to themselves. Rows of queries, keys and values may lie apart.
struct OwnAttention {
  int64_t num_sequences;
  int64_t num_heads;
  int64_t num_groups;
  int64_t head_size;      // a multiple of 16
  int64_t longest;        // tokens of a sequence
  const int64_t* starts;  // [B + 1]
  double scale;
  const float* query;  // [T, H, C], rows query_stride apart
  const float* key;    // [T, G, C]
  const float* value;  // [T, G, C]
  int64_t query_stride;
  int64_t key_stride;
  int64_t value_stride;
  float* out;         // [T, H, C]
  float* sums;        // [T, H], logs of sums of exponentials
  const float* grad;  // [T, H, C] or null; what follows only with it
  float* of_query;    // [T, H, C]
  float* of_key;      // [T, G, C]
  float* of_value;    // [T, G, C]
};

// Rows times a matrix, and a bias.
struct RowProducts {
  int64_t rows;
  int64_t depth;
  int64_t width;
  int64_t is_turned;    // the matrix is [width, depth], else [depth, width]
  const float* x;       // [rows, depth]
  const float* matrix;
  const float* bias;    // [width] or null
  float* out;           // [rows, width]
  float* packed;        // the matrix by tiles of columns
};

// One matrix, turned, times another with as many rows; and the sums of the first one's columns.
struct ColumnProducts {
  int64_t rows;
  int64_t height;
  int64_t width;
  const float* left;   // [rows, height]
  const float* right;  // [rows, width]
  float* out;          // [height, width]
  float* sums;         // [height] or null
};

}  // namespace cutaway
