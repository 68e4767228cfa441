// The largest of many values in a fixed order: larger first, among equals the smaller index.
//
// Selection and sorting are written here because what <algorithm> instantiates is shared by all
// files: the linker might take the copy of an instruction set that the CPU lacks.
#pragma once

#include <stdint.h>

namespace {

constexpr int64_t kChunk = 64;

struct Entry {
  float value;
  int32_t id;
};

inline bool is_heavier(const Entry& a, const Entry& b) {
  return a.value > b.value || (a.value == b.value && a.id < b.id);
}
inline bool is_earlier(const Entry& a, const Entry& b) { return a.id < b.id; }

inline void swap(Entry& a, Entry& b) {
  Entry kept = a;
  a = b;
  b = kept;
}

// Heap sort: no bad case, no memory. Entries differ in their ids, so there is one order.
template <class Before>
inline void sort(Entry* entries, int64_t count, Before before) {
  auto sink = [&](int64_t parent, int64_t end) {
    for (int64_t child; (child = 2 * parent + 1) < end; parent = child) {
      if (child + 1 < end && before(entries[child], entries[child + 1])) child++;
      if (!before(entries[parent], entries[child])) return;
      swap(entries[parent], entries[child]);
    }
  };
  for (int64_t i = count / 2 - 1; i >= 0; i--) sink(i, count);
  for (int64_t end = count - 1; end > 0; end--) {
    swap(entries[0], entries[end]);
    sink(0, end);
  }
}

// Cuts entries[low, high) at a pivot, the middle of three: the heavier ones come before it, the others
// after. Returns where it stands.
inline int64_t partition(Entry* entries, int64_t low, int64_t high) {
  int64_t middle = low + (high - low) / 2, last = high - 1;
  if (is_heavier(entries[middle], entries[low])) swap(entries[middle], entries[low]);
  if (is_heavier(entries[last], entries[low])) swap(entries[last], entries[low]);
  if (is_heavier(entries[middle], entries[last])) swap(entries[middle], entries[last]);
  int64_t at = low;
  for (int64_t i = low; i < last; i++)
    if (is_heavier(entries[i], entries[last])) swap(entries[i], entries[at++]);
  swap(entries[at], entries[last]);
  return at;
}

// Moves the heaviest `wanted` entries to the front, in any order; 0 < wanted < count.
inline void select(Entry* entries, int64_t count, int64_t wanted) {
  int64_t low = 0, high = count;
  while (low < high) {
    int64_t at = partition(entries, low, high);
    if (at == wanted || at == wanted - 1) return;
    if (at > wanted)
      high = at;
    else
      low = at + 1;
  }
}

// The entry with which the sum of values, heaviest first, reaches bound > 0; all together reach it.
inline Entry reaching(Entry* entries, int64_t count, int64_t bound) {
  int64_t low = 0, high = count;
  while (high - low > 1) {
    int64_t at = partition(entries, low, high), heavier = 0;
    for (int64_t i = low; i < at; i++) heavier += static_cast<int64_t>(entries[i].value);
    int64_t pivot = static_cast<int64_t>(entries[at].value);
    if (heavier >= bound) {
      high = at;
    } else if (heavier + pivot >= bound) {
      return entries[at];
    } else {
      bound -= heavier + pivot;
      low = at + 1;
    }
  }
  return entries[low];
}

struct Largest {
  float* maxima;   // of each chunk
  Entry* order;    // the chunks, to be selected from
  Entry* entries;  // the result, and room for every value

  // The `wanted` largest of size values, in any order; values are padded to whole chunks with ones
  // that are at most the least. Returns how many there are: wanted.
  //
  // Whatever is among them is at least the wanted-largest of the chunks' maxima.
  int64_t find(const float* values, int64_t size, int64_t wanted) {
    int64_t num_chunks = (size + kChunk - 1) / kChunk;
    for (int64_t c = 0; c < num_chunks; c++) {
      F32 most = load(values + c * kChunk);
      for (int64_t i = kLanes; i < kChunk; i += kLanes)
        most = max_of(most, load(values + c * kChunk + i));
      maxima[c] = max_lanes(most);
      order[c] = {maxima[c], static_cast<int32_t>(c)};
    }
    float bound = -__builtin_inff();
    if (wanted < num_chunks) {
      select(order, num_chunks, wanted);
      bound = order[0].value;
      for (int64_t c = 1; c < wanted; c++) bound = order[c].value < bound ? order[c].value : bound;
    }
    int64_t count = 0;
    for (int64_t c = 0; c < num_chunks; c++) {
      if (maxima[c] < bound) continue;
      int64_t end = (c + 1) * kChunk < size ? (c + 1) * kChunk : size;
      for (int64_t i = c * kChunk; i < end; i++) {
        entries[count] = {values[i], static_cast<int32_t>(i)};
        count += values[i] >= bound;
      }
    }
    if (wanted < count) select(entries, count, wanted);
    return wanted;
  }
};

}  // namespace
