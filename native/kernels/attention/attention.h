// Causal attention over pages, for one query per sequence, a few or a whole chunk.
//
// Order of summation: keys are cut into segments of 256 at absolute positions. In a segment a score
// is summed over C in turn, weights lane by lane over keys and then over lanes, values key by key;
// then segments are merged in order. A key that a query may not see takes no part at all. So what
// a query gets does not depend on its mates, on chunk borders or on threads.
//
// A unit of work is one key-value head of one sequence with all query heads that share it, for
// some tokens. Few tokens: each segment is a unit, and its partial results are merged later. Many:
// a unit goes through all segments of a block of tokens.
#pragma once

#include "segments.h"

namespace {

// All pieces of a block of tokens.
template <class T>
void attend_block(const Heads& h, const QueryUnit& unit, const AttentionMemory& m) {
  gather_queries(h, unit, m.query);
  int64_t num_rows = unit.num_rows(), padded = h.padded();
  Pieces pieces(h, unit.position(0), unit.position(num_rows - 1));
  for (int64_t r = 0; r < num_rows; r++) m.merged_sums[r] = 0.0f;  // nothing yet
  for (int64_t i = 0; i < pieces.count(); i++) {
    Range rows = unit.rows_of(h, pieces[i]);
    if (rows.begin >= rows.end) continue;
    reduce_segment<T>(h, unit, pieces[i], m, rows);
    for (int64_t r = rows.begin; r < rows.end; r++) {
      if (m.merged_sums[r] == 0.0f) {
        m.merged_peaks[r] = m.peaks[r];
        m.merged_sums[r] = m.sums[r];
        __builtin_memcpy(m.merged + r * padded, m.values + r * padded,
                         static_cast<size_t>(padded) * sizeof(float));
      } else {
        merge_row(m.merged_peaks + r, m.merged_sums + r, m.merged + r * padded, m.peaks[r],
                  m.sums[r], m.values + r * padded, padded);
      }
    }
  }
  for (int64_t r = 0; r < num_rows; r++)
    finish_row(h, unit, r, m.merged + r * padded, m.merged_peaks[r], m.merged_sums[r]);
}

// A sequence of few tokens leaves peak, sum and values of each piece and row in parts.
inline int64_t part_floats(const Heads& h) { return h.padded() + 2 * kLanes; }

inline Pieces pieces_of(const Heads& h, const Sequence& sequence) {
  return {h, sequence.position(0), sequence.context - 1};
}

inline int64_t parts_of(const Heads& h, const Sequence& sequence) {
  int64_t count = pieces_of(h, sequence).count();
  if (!sequence.has_few() || count == 1) return 0;
  return count * sequence.num_tokens * h.num_heads;
}

inline float* part_at(const Heads& h, const QueryUnit& unit, int64_t piece, int64_t row,
                      float* parts) {
  int64_t groups = h.pages->num_groups;
  return parts + ((piece * groups + unit.group) * unit.num_rows() + row) * part_floats(h);
}

template <class T>
void attend_piece(const Heads& h, const QueryUnit& unit, int64_t index, const AttentionMemory& m,
                  float* parts) {
  gather_queries(h, unit, m.query);
  Pieces pieces = pieces_of(h, unit.sequence);
  Range rows = unit.rows_of(h, pieces[index]);
  if (rows.begin >= rows.end) return;
  int64_t padded = h.padded();
  reduce_segment<T>(h, unit, pieces[index], m, rows);
  for (int64_t r = rows.begin; r < rows.end; r++) {
    if (pieces.count() == 1) {
      finish_row(h, unit, r, m.values + r * padded, m.peaks[r], m.sums[r]);
      continue;
    }
    float* part = part_at(h, unit, index, r, parts);
    part[0] = m.peaks[r];
    part[kLanes] = m.sums[r];
    __builtin_memcpy(part + 2 * kLanes, m.values + r * padded,
                     static_cast<size_t>(padded) * sizeof(float));
  }
}

// The first part of a row gathers the others.
inline void merge_parts(const Heads& h, const QueryUnit& unit, int64_t row, float* parts) {
  Pieces pieces = pieces_of(h, unit.sequence);
  float* merged = nullptr;
  for (int64_t i = 0; i < pieces.count(); i++) {
    Range rows = unit.rows_of(h, pieces[i]);
    if (row < rows.begin || row >= rows.end) continue;
    float* part = part_at(h, unit, i, row, parts);
    if (merged)
      merge_row(merged, merged + kLanes, merged + 2 * kLanes, part[0], part[kLanes],
                part + 2 * kLanes, h.padded());
    else
      merged = part;
  }
  finish_row(h, unit, row, merged + 2 * kLanes, merged[0], merged[kLanes]);
}

// Units of a sequence: one of few tokens has its pieces, one of many blocks of its tokens, and
// each of these once for every key-value head.
inline int64_t num_units(const Heads& h, const Sequence& sequence) {
  int64_t count = sequence.has_few() ? pieces_of(h, sequence).count()
                                     : ceil_div(sequence.num_tokens, h.tokens_per_block());
  return count * h.pages->num_groups;
}

inline int64_t num_units(const Heads& h, const cw_step& step) {
  int64_t count = 0;
  for (int64_t s = 0; s < step.num_sequences; s++)
    count += num_units(h, sequence_of(step, step.groups[h.pages->group], s));
  return count;
}

// Calls body(unit, piece, parts) for the units in a range; piece is -1 for a block.
template <class Body>
void each_unit(const Heads& h, const cw_step& step, Range range, float* parts, const Body& body) {
  const cw_group& group = step.groups[h.pages->group];
  int64_t groups = h.pages->num_groups, before = 0;
  for (int64_t s = 0; s < step.num_sequences && before < range.end; s++) {
    Sequence sequence = sequence_of(step, group, s);
    int64_t count = num_units(h, sequence);
    int64_t end = least(range.end - before, count);
    for (int64_t i = most(range.begin - before, 0); i < end; i++) {
      if (sequence.has_few()) {
        body(QueryUnit{sequence, i % groups, 0, sequence.num_tokens, h.shared()}, i / groups,
             parts);
        continue;
      }
      int64_t t = i / groups * h.tokens_per_block();
      int64_t tokens = least(h.tokens_per_block(), sequence.num_tokens - t);
      body(QueryUnit{sequence, i % groups, t, tokens, h.shared()}, -1, parts);
    }
    before += count;
    parts += parts_of(h, sequence) * part_floats(h);
  }
}

constexpr int64_t kPartsOfUneven = 8;  // later blocks of a chunk see more keys than earlier ones

template <class T>
bool attend(const Heads& h, const cw_step& step, cutaway::Worker& worker, Arena& local,
            float* parts) {
  AttentionMemory memory(local, h);
  auto run_units = [&](Range range) {
    each_unit(h, step, range, parts, [&](const QueryUnit& unit, int64_t piece, float* its) {
      if (piece < 0)
        attend_block<T>(h, unit, memory);
      else
        attend_piece<T>(h, unit, piece, memory, its);
    });
  };
  return each(worker, num_units(h, step), run_units, kPartsOfUneven);
}

inline int64_t num_parts(const Heads& h, const cw_step& step) {
  int64_t count = 0;
  for (int64_t s = 0; s < step.num_sequences; s++)
    count += parts_of(h, sequence_of(step, step.groups[h.pages->group], s));
  return count;
}

inline int64_t num_merged(const Heads& h, const cw_step& step) {
  int64_t count = 0;
  for (int64_t s = 0; s < step.num_sequences; s++) {
    Sequence sequence = sequence_of(step, step.groups[h.pages->group], s);
    if (parts_of(h, sequence)) count += sequence.num_tokens * h.num_heads;
  }
  return count;
}

// Rows of queries that have parts: those in a range of them.
void merge_rows(const Heads& h, const cw_step& step, Range range, float* parts) {
  int64_t index = 0;
  for (int64_t s = 0; s < step.num_sequences; s++) {
    Sequence sequence = sequence_of(step, step.groups[h.pages->group], s);
    int64_t count = parts_of(h, sequence);
    if (count == 0) continue;
    for (int64_t g = 0; g < h.pages->num_groups; g++) {
      QueryUnit unit{sequence, g, 0, sequence.num_tokens, h.shared()};
      for (int64_t r = 0; r < unit.num_rows(); r++)
        if (index++ >= range.begin && index <= range.end) merge_parts(h, unit, r, parts);
    }
    parts += count * part_floats(h);
  }
}

bool attend_pages(const Heads& h, const cw_step& step, cutaway::Worker& worker, Arena& local,
                  Arena& shared) {
  int64_t count = num_parts(h, step);
  float* parts = shared.take<float>(count * part_floats(h));
  bool goes_on = with_entries(h.pages->kind, [&](auto entry) {
    using T = decltype(entry);
    return h.latent ? attend<Latent<T>>(h, step, worker, local, parts)
                    : attend<T>(h, step, worker, local, parts);
  });
  if (!goes_on || count == 0) return goes_on;
  return each(worker, num_merged(h, step),
              [&](Range range) { merge_rows(h, step, range, parts); });
}

// Without a window all keys are nearer than it is wide.
inline int64_t width_of(int64_t window) { return window ? window : INT64_C(1) << 40; }

inline Heads heads_of(const cw_attend& a) {
  const cw_scoring& s = a.scoring;
  return {a.query,
          a.query_stride,
          a.num_heads,
          static_cast<float>(s.softmax_scale),
          static_cast<float>(s.cap),
          width_of(s.window),
          s.num_first,
          s.sinks,
          &a.pages,
          a.out,
          a.pages.head_size,
          nullptr};
}

bool run_attend(const void* arguments, const cw_step& step, cutaway::Worker& worker) {
  Arena local(worker.local), shared(worker.shared);
  return attend_pages(heads_of(*static_cast<const cw_attend*>(arguments)), step, worker, local,
                      shared);
}

inline Heads heads_of(const cw_attention& a, float* turned) {
  int64_t width = a.num_heads * a.pages.head_size;
  const cw_scoring& s = a.scoring;
  return {turned,
          width,
          a.num_heads,
          static_cast<float>(s.softmax_scale),
          static_cast<float>(s.cap),
          width_of(s.window),
          s.num_first,
          s.sinks,
          &a.pages,
          a.out,
          a.pages.head_size,
          nullptr};
}

// Queries are turned, keys turned and stored, values stored; then, in the next phase, read back.
bool run_attention(const void* arguments, const cw_step& step, cutaway::Worker& worker) {
  const cw_attention& a = *static_cast<const cw_attention*>(arguments);
  int64_t num_tokens = rows_of(a.rows, step), size = a.pages.head_size;
  int64_t groups = a.pages.num_groups, num_heads = a.num_heads + 2 * groups;
  Arena local(worker.local), shared(worker.shared);
  float* turned = shared.take<float>(num_tokens * a.num_heads * size);
  Turning turn_query{&a.query_norm, &a.rotation, size};
  Turning turn_key{&a.key_norm, &a.rotation, size};
  const int64_t* slots = step.groups[a.pages.group].slots;
  // Blocks of tokens, so that keys of a page are turned into columns together.
  int64_t num_blocks = ceil_div(num_tokens, kMostStretch);
  auto lay_down = [&](auto entry, Range range) {
    using T = decltype(entry);
    for (int64_t i = range.begin; i < range.end; i++) {
      int64_t first = i / num_heads * kMostStretch, head = i % num_heads;
      Range tokens{first, least(first + kMostStretch, num_tokens)};
      auto x_of = [&](int64_t token) { return a.qkv + (token * num_heads + head) * size; };
      int64_t key_group = head - a.num_heads, value_group = key_group - groups;
      if (value_group >= 0) {
        for (int64_t t = tokens.begin; t < tokens.end; t++) {
          const float* value = x_of(t);
          float normed[kMostHeadSize];
          if (a.value_norm.kind) {
            normalize(value, a.value_norm, size, normed);
            value = normed;
          }
          write_value<T>(a.pages, slots[t], value_group, value);
        }
      } else if (key_group >= 0) {
        write_keys<T>(a.pages, slots, tokens, key_group, [&](int64_t t, float* room) {
          turn_key(x_of(t), t, step, room);
          return room;
        });
      } else {
        for (int64_t t = tokens.begin; t < tokens.end; t++)
          turn_query(x_of(t), t, step, turned + (t * a.num_heads + head) * size);
      }
    }
  };
  bool goes_on = each(worker, num_blocks * num_heads, [&](Range range) {
    with_entries(a.pages.kind, [&](auto entry) { lay_down(entry, range); });
  });
  return goes_on && attend_pages(heads_of(a, turned), step, worker, local, shared);
}

inline cutaway::Scratch attend_scratch_of(const Heads& h, const cw_step& step, int64_t turned) {
  Arena local(nullptr), shared(nullptr);
  AttentionMemory memory(local, h);
  shared.take<float>(turned);
  shared.take<float>(num_parts(h, step) * part_floats(h));
  return {local.size(), shared.size()};
}

cutaway::Scratch attend_scratch(const void* arguments, const cw_step& step) {
  return attend_scratch_of(heads_of(*static_cast<const cw_attend*>(arguments)), step, 0);
}

cutaway::Scratch attention_scratch(const void* arguments, const cw_step& step) {
  const cw_attention& a = *static_cast<const cw_attention*>(arguments);
  return attend_scratch_of(heads_of(a, nullptr), step,
                           rows_of(a.rows, step) * a.num_heads * a.pages.head_size);
}

}  // namespace
