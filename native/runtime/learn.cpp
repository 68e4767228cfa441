// Training's kernels over whole tensors, on the threads of whoever calls.

#include "learn.h"

#include <stdlib.h>

#include <atomic>
#include <memory>

#include "dispatch.h"
#include "guard.h"

namespace {

using cutaway::Range;

constexpr int64_t kMost = INT64_C(1) << 31;
constexpr int64_t kMostHeadSize = 512;
constexpr int64_t kRowsOfTile = 6;   // of a product, at most
constexpr int64_t kRowsOfPart = 132;  // of a product, for which a matrix is read once

bool is_size(int64_t size) { return size > 0 && size <= kMost; }

struct Free {
  void operator()(void* memory) const { free(memory); }
};
using Memory = std::unique_ptr<float, Free>;

// Room for so many numbers; null where there is none.
Memory memory_of(size_t count) {
  void* room = nullptr;
  if (posix_memalign(&room, 64, count * sizeof(float)) != 0) return nullptr;
  return Memory(static_cast<float*>(room));
}

// Parts of fixed size, taken by whichever thread comes: results do not hang on who does which, and
// a thread that lost its core is not waited for longer than its part takes.
template <class Body>
class Job {
 public:
  Job(int64_t total, int64_t part, size_t scratch, const Body& body)
      : total_(total), part_(part), scratch_(scratch), body_(body) {}

  int64_t run(int64_t num_threads, cw_parallel parallel) {
    bool is_shared = parallel && num_threads > 1 && total_ > part_;
    if (is_shared)
      parallel(&Job::enter, this, static_cast<unsigned>(num_threads), 0);
    else
      work();
    return lacks_memory_ ? CW_NO_MEMORY : CW_OK;
  }

 private:
  static void enter(void* job) { static_cast<Job*>(job)->work(); }

  void work() {
    Memory memory;
    if (scratch_) {
      memory = memory_of(scratch_ / sizeof(float));
      if (!memory) {
        lacks_memory_ = true;
        return;
      }
    }
    for (int64_t begin; (begin = next_.fetch_add(part_)) < total_;)
      body_(Range{begin, begin + part_ < total_ ? begin + part_ : total_}, memory.get());
  }

  int64_t total_;
  int64_t part_;
  size_t scratch_;
  const Body& body_;
  std::atomic<int64_t> next_{0};
  std::atomic<bool> lacks_memory_{false};
};

template <class Body>
int64_t share(int64_t total, int64_t part, size_t scratch, int64_t num_threads,
              cw_parallel parallel, const Body& body) {
  return Job<Body>(total, part, scratch, body).run(num_threads, parallel);
}

// Rows of a part of a product: whole tiles, and as many parts as keep all threads busy to the end.
int64_t part_of(int64_t rows, int64_t num_threads) {
  int64_t threads = num_threads > 1 ? num_threads : 1, most = kRowsOfPart * threads;
  int64_t parts = threads * ((rows + most - 1) / most);
  return (rows + parts * kRowsOfTile - 1) / (parts * kRowsOfTile) * kRowsOfTile;
}

}  // namespace

extern "C" {

int64_t cw_learn_curve(int64_t kind, int64_t is_gate, int64_t rows, int64_t width, const float* x,
                       const float* grad, float* out, int64_t num_threads, cw_parallel parallel) {
  bool is_known = kind == CW_SILU || kind == CW_GELU_TANH || kind == CW_GELU;
  if (!is_known || !is_size(rows) || !is_size(width) || !x || !out) return CW_BAD_ARGUMENT;
  cutaway::Curve curve{kind, is_gate, width, x, grad, out};
  const cutaway::Isa& isa = cutaway::isa_in_use();
  int64_t part = 1 + 16384 / width;  // a core's nearest memory holds what one reads
  return share(rows, part, 0, num_threads, parallel,
               [&](Range range, float*) { isa.learn_curve(curve, range); });
}

int64_t cw_learn_rms(int64_t rows, int64_t width, double epsilon, const float* x,
                     const float* weight, const float* grad, float* out, float* of_weight,
                     int64_t num_threads, cw_parallel parallel) {
  if (!is_size(rows) || !is_size(width)) return CW_BAD_ARGUMENT;
  if (!x || !weight || !grad || !out || !of_weight) return CW_BAD_ARGUMENT;
  cutaway::RmsRows rms{rows, width, epsilon, x, weight, grad, out, of_weight};
  const cutaway::Isa& isa = cutaway::isa_in_use();
  int64_t blocks = (rows + cutaway::kRowsOfBlock - 1) / cutaway::kRowsOfBlock;
  return share(blocks, 1, 0, num_threads, parallel,
               [&](Range range, float*) { isa.learn_rms(rms, range); });
}

int64_t cw_learn_attention(int64_t num_sequences, const int64_t* starts, int64_t num_heads,
                           int64_t num_groups, int64_t head_size, double scale, const float* query,
                           int64_t query_stride, const float* key, int64_t key_stride,
                           const float* value, int64_t value_stride, float* out, float* sums,
                           const float* grad, float* of_query, float* of_key, float* of_value,
                           int64_t num_threads, cw_parallel parallel) {
  if (!is_size(num_sequences) || !starts || !is_size(num_heads) || !is_size(num_groups))
    return CW_BAD_ARGUMENT;
  if (num_heads % num_groups || head_size < 16 || head_size > kMostHeadSize || head_size % 16)
    return CW_BAD_ARGUMENT;
  if (!query || !key || !value || !out || !sums || query_stride < num_heads * head_size ||
      key_stride < num_groups * head_size || value_stride < num_groups * head_size)
    return CW_BAD_ARGUMENT;
  if (grad && (!of_query || !of_key || !of_value)) return CW_BAD_ARGUMENT;
  int64_t longest = 0;
  for (int64_t b = 0; b < num_sequences; b++) {
    int64_t length = starts[b + 1] - starts[b];
    if (starts[b] < 0 || !is_size(length)) return CW_BAD_QUERY_START;
    longest = length > longest ? length : longest;
  }
  cutaway::OwnAttention a{num_sequences, num_heads,    num_groups, head_size,    longest,
                          starts,        scale,        query,      key,          value,
                          query_stride,  key_stride,   value_stride, out,        sums,
                          grad,          of_query,     of_key,     of_value};
  const cutaway::Isa& isa = cutaway::isa_in_use();
  int64_t padded = (longest + 15) / 16 * 16;
  size_t room = static_cast<size_t>(2 * padded * (head_size + cutaway::kQueriesOfBlock));
  return share(num_sequences * num_groups, 1, room * sizeof(float), num_threads, parallel,
               [&](Range range, float* memory) { isa.learn_attention(a, range, memory); });
}

int64_t cw_learn_rows(int64_t rows, int64_t depth, int64_t width, int64_t is_turned, const float* x,
                      const float* matrix, const float* bias, float* out, int64_t num_threads,
                      cw_parallel parallel) {
  if (!is_size(rows) || !is_size(depth) || !is_size(width)) return CW_BAD_ARGUMENT;
  if (!x || !matrix || !out) return CW_BAD_ARGUMENT;
  const cutaway::Isa& isa = cutaway::isa_in_use();
  int64_t columns = isa.learn_tile_columns, tiles = (width + columns - 1) / columns;
  Memory packed = memory_of(static_cast<size_t>(tiles * columns * depth));
  if (!packed) return CW_NO_MEMORY;
  cutaway::RowProducts a{rows, depth, width, is_turned, x, matrix, bias, out, packed.get()};
  share(tiles, 1 + 16384 / (columns * depth), 0, num_threads, parallel,
        [&](Range range, float*) { isa.learn_pack(a, range); });
  return share(rows, part_of(rows, parallel ? num_threads : 1), 0, num_threads, parallel,
               [&](Range range, float*) { isa.learn_rows(a, range); });
}

int64_t cw_learn_columns(int64_t rows, int64_t height, int64_t width, const float* left,
                         const float* right, float* out, float* sums, int64_t num_threads,
                         cw_parallel parallel) {
  if (!is_size(rows) || !is_size(height) || !is_size(width)) return CW_BAD_ARGUMENT;
  if (!left || !right || !out) return CW_BAD_ARGUMENT;
  cutaway::ColumnProducts a{rows, height, width, left, right, out, sums};
  const cutaway::Isa& isa = cutaway::isa_in_use();
  int64_t part = part_of(height, parallel ? num_threads : 1);
  int64_t room = cutaway::kTokensOfBlock * (isa.learn_tile_columns + part);
  return share(height, part, static_cast<size_t>(room) * sizeof(float), num_threads, parallel,
               [&](Range range, float* memory) { isa.learn_columns(a, range, memory); });
}

}  // extern "C"
