// Weights as files have them, packed into panels; and packed weights as numbers again.

#include <math.h>
#include <string.h>

#include <atomic>

#include "blocks.h"
#include "check.h"
#include "dispatch.h"
#include "guard.h"
#include "pool.h"

namespace {

using cutaway::Pool;
using cutaway::Range;
using cutaway::Worker;

struct Packing {
  int64_t source_type;
  const uint8_t* source;
  const int64_t* row_order;
  int64_t kind;
  int64_t num_rows;
  int64_t num_columns;
  uint8_t* packed;
  std::atomic<bool>* is_too_large;

  int64_t row_bytes() const {
    if (source_type == CW_FROM_F32) return 4 * num_columns;
    if (source_type <= CW_FROM_BF16) return 2 * num_columns;
    const BlockType& type = block_type(source_type);
    return num_columns / (kGroupColumns * type.groups) * type.bytes;
  }
  const uint8_t* row(int64_t index) const {
    return source + (row_order ? row_order[index] : index) * row_bytes();
  }
};

bool is_float_source(int64_t type) { return type <= CW_FROM_BF16; }

// Blocks move to the kind that holds them exactly; floats to any kind but CW_Q4, which is for
// blocks: CW_Q4_AFFINE is the better of the two where both are possible.
bool can_pack(int64_t source_type, int64_t kind, int64_t num_columns) {
  if (source_type < CW_FROM_F32 || source_type > CW_FROM_MXFP4) return false;
  if (is_float_source(source_type))
    return kind >= CW_F32 && kind <= CW_Q4_AFFINE && kind != CW_Q4;
  const BlockType& type = block_type(source_type);
  return kind == type.kind && num_columns % (kGroupColumns * type.groups) == 0;
}

void put_half(uint8_t* at, uint16_t half) { memcpy(at, &half, 2); }

// One block of a file, whose layout inside is already ours: scale, minimum, words of four bytes.
void pack_block(const Packing& p, const uint8_t* block, uint8_t* group, int64_t lane) {
  memcpy(group + 2 * lane, block, 2);
  block += 2;
  if (is_affine(p.kind)) {
    memcpy(group + kScaleBytes + 2 * lane, block, 2);
    block += 2;
  }
  uint8_t* quants = group + group_bytes(p.kind) - quant_bytes(p.kind) + 4 * lane;
  for (int64_t word = 0; word < quant_bytes(p.kind) / 64; word++) {
    uint32_t four;
    memcpy(&four, block + 4 * word, 4);
    if (p.kind == CW_Q8) four ^= 0x80808080u;  // q + 128
    memcpy(quants + 64 * word, &four, 4);
  }
}

float source_value(const Packing& p, const uint8_t* row, int64_t column) {
  if (p.source_type == CW_FROM_F32) {
    float x;
    memcpy(&x, row + 4 * column, 4);
    return x;
  }
  uint16_t half;
  memcpy(&half, row + 2 * column, 2);
  return p.source_type == CW_FROM_F16 ? from_f16(half) : from_bf16(half);
}

int rounded(float x, float scale, int low, int high) {
  if (scale == 0.0f) return low > 0 ? low : 0;
  float quotient = nearbyintf(x / scale);
  if (!(quotient > static_cast<float>(low))) return low;
  return quotient < static_cast<float>(high) ? static_cast<int>(quotient) : high;
}

// A group of 32 numbers as a block: largest / 127 for eight bits, the range / 15 for four.
void quantize_block(const Packing& p, const float* x, uint8_t* group, int64_t lane) {
  float low = x[0], high = x[0];
  for (int64_t k = 1; k < kGroupColumns; k++) {
    low = fminf(low, x[k]);
    high = fmaxf(high, x[k]);
  }
  uint8_t block[4 + kGroupColumns];
  if (p.kind == CW_Q8) {
    uint16_t scale = to_f16(fmaxf(-low, high) / 127.0f);
    put_half(block, scale);
    for (int64_t k = 0; k < kGroupColumns; k++)
      block[2 + k] = static_cast<uint8_t>(rounded(x[k], from_f16(scale), -127, 127));
  } else {
    uint16_t scale = to_f16((high - low) / 15.0f), minimum = to_f16(low);
    put_half(block, scale);
    put_half(block + 2, minimum);
    for (int64_t k = 0; k < 16; k++) {
      int first = rounded(x[k] - from_f16(minimum), from_f16(scale), 0, 15);
      int second = rounded(x[k + 16] - from_f16(minimum), from_f16(scale), 0, 15);
      block[4 + k] = static_cast<uint8_t>(first | second << 4);
    }
  }
  pack_block(p, block, group, lane);
}

// Rows of blocks whose integers and scales have to be taken apart first.
void pack_read_row(const Packing& p, int64_t index, uint8_t* panel) {
  const uint8_t* block = p.row(index);
  const BlockType& type = block_type(p.source_type);
  int64_t num_groups = p.num_columns / kGroupColumns, lane = index % kPanelRows;
  bool fits = true;
  for (int64_t g = 0; g < num_groups; block += type.bytes)
    for (int i = 0; i < type.groups; i++, g++) {
      Group group{};
      read_group(p.source_type, block, i, &group);
      fits &= put_group(p.kind, group, panel + g * group_bytes(p.kind), lane);
    }
  if (!fits) p.is_too_large->store(true, std::memory_order_relaxed);
}

void pack_integer_row(const Packing& p, int64_t index, uint8_t* panel) {
  if (p.source_type > CW_FROM_Q4_1) return pack_read_row(p, index, panel);
  const uint8_t* row = p.row(index);
  int64_t num_groups = p.num_columns / kGroupColumns, lane = index % kPanelRows;
  int64_t block_bytes = p.row_bytes() / num_groups;
  for (int64_t g = 0; g < num_groups; g++) {
    uint8_t* group = panel + g * group_bytes(p.kind);
    if (!is_float_source(p.source_type)) {
      pack_block(p, row + g * block_bytes, group, lane);
      continue;
    }
    float x[kGroupColumns];
    for (int64_t k = 0; k < kGroupColumns; k++) x[k] = source_value(p, row, g * kGroupColumns + k);
    quantize_block(p, x, group, lane);
  }
}

void pack_float_row(const Packing& p, int64_t index, uint8_t* panel) {
  const uint8_t* row = p.row(index);
  int64_t lane = index % kPanelRows, bytes = float_bytes(p.kind);
  for (int64_t k = 0; k < p.num_columns; k++) {
    uint8_t* at = panel + (k * kPanelRows + lane) * bytes;
    float x = source_value(p, row, k);
    if (p.kind == CW_F32)
      memcpy(at, &x, 4);
    else
      put_half(at, p.kind == CW_F16 ? to_f16(x) : to_bf16(x));
  }
}

void pack_panel(const Packing& p, int64_t index) {
  int64_t size = panel_bytes(p.kind, p.num_columns), first = index * kPanelRows;
  uint8_t* panel = p.packed + index * size;
  if (first + kPanelRows > p.num_rows) memset(panel, 0, static_cast<size_t>(size));
  for (int64_t row = first; row < p.num_rows && row < first + kPanelRows; row++)
    is_integer(p.kind) ? pack_integer_row(p, row, panel) : pack_float_row(p, row, panel);
}

void pack_panels(const void* context, Worker& worker) {
  const Packing& p = *static_cast<const Packing*>(context);
  Range part;
  while (worker.take(num_panels(p.num_rows), &part))
    for (int64_t i = part.begin; i < part.end; i++) pack_panel(p, i);
}

struct Unpacking {
  cw_weight weight;
  float* out;
};

void unpack_rows(const void* context, Worker& worker) {
  const Unpacking& u = *static_cast<const Unpacking*>(context);
  Range part;
  while (worker.take(u.weight.num_rows, &part))
    for (int64_t row = part.begin; row < part.end; row++)
      cutaway::isa_in_use().unpack_row(u.weight, row, u.out + row * u.weight.num_columns);
}

}  // namespace

extern "C" {

int64_t cw_packed_bytes(int64_t kind, int64_t num_rows, int64_t num_columns) {
  cw_weight shape{reinterpret_cast<const uint8_t*>(64), num_rows, num_columns, kind};
  return cutaway::is_sound(shape) ? num_panels(num_rows) * panel_bytes(kind, num_columns) : 0;
}

int64_t cw_pack(int64_t source_type, const void* source, const int64_t* row_order, int64_t kind,
                int64_t num_rows, int64_t num_columns, uint8_t* packed) {
  cw_weight weight{packed, num_rows, num_columns, kind};
  if (!source || !cutaway::is_sound(weight) || !can_pack(source_type, kind, num_columns))
    return CW_BAD_ARGUMENT;
  for (int64_t row = 0; row_order && row < num_rows; row++)
    if (row_order[row] < 0 || row_order[row] >= num_rows) return CW_BAD_ARGUMENT;
  std::atomic<bool> is_too_large{false};
  Packing packing{
      source_type, static_cast<const uint8_t*>(source), row_order, kind, num_rows, num_columns,
      packed, &is_too_large};
  return cutaway::guarded([&] {
    if (!Pool::get().run(pack_panels, &packing, {})) return CW_NO_MEMORY;
    return is_too_large ? CW_TOO_LARGE : CW_OK;
  });
}

int64_t cw_unpack(const cw_weight* weight, float* out) {
  if (!weight || !out || !cutaway::is_sound(*weight)) return CW_BAD_ARGUMENT;
  Unpacking unpacking{*weight, out};
  return cutaway::guarded(
      [&] { return Pool::get().run(unpack_rows, &unpacking, {}) ? CW_OK : CW_NO_MEMORY; });
}

}  // extern "C"
