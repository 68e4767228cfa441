// Runs random operations on every instruction set that this CPU has, on one thread and on three,
// and compares all bits with the portable one. A program of its own, so that it also runs where
// Python does not, for instance under an emulator. Prints what it compared; exit status 1 if bits
// differ.

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <deque>
#include <functional>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "../kernels/panel.h"

namespace {

std::mt19937 generator(1);

int64_t pick(int64_t low, int64_t high) {
  return low + static_cast<int64_t>(generator() % static_cast<uint64_t>(high - low + 1));
}

std::vector<float> numbers(int64_t count, float spread = 1.0f) {
  std::normal_distribution<float> normal(0.0f, spread);
  std::vector<float> out(static_cast<size_t>(count));
  for (float& x : out) x = normal(generator);
  return out;
}

void require(bool holds, const char* what) {
  if (holds) return;
  printf("failed: %s\n", what);
  exit(1);
}

struct Weight {
  uint8_t* memory;
  cw_weight weight;

  Weight(int64_t kind, int64_t rows, int64_t columns) {
    size_t size = static_cast<size_t>(cw_packed_bytes(kind, rows, columns));
    memory = static_cast<uint8_t*>(aligned_alloc(64, (size + 63) / 64 * 64));
    weight = {memory, rows, columns, kind};
    if (kind == CW_Q4) {  // from blocks: scale 0.1 and random nibbles
      std::vector<uint8_t> blocks(static_cast<size_t>(rows * columns / 32 * 18));
      for (size_t i = 0; i < blocks.size(); i++)
        blocks[i] = i % 18 == 0 ? 0x66 : i % 18 == 1 ? 0x2e : static_cast<uint8_t>(generator());
      require(!cw_pack(CW_FROM_Q4_0, blocks.data(), nullptr, kind, rows, columns, memory), "pack");
      return;
    }
    if (kind > CW_Q4_AFFINE) {  // packed by others: halves from 0.03 to 0.12, any other bytes
      for (size_t i = 0; i < size; i++) memory[i] = static_cast<uint8_t>(generator());
      for (int64_t p = 0; p < num_panels(rows); p++)
        for (int64_t g = 0; g < columns / kGroupColumns; g++) {
          uint8_t* group = memory + p * panel_bytes(kind, columns) + g * group_bytes(kind);
          int64_t halves = (group_bytes(kind) - quant_bytes(kind)) / 2;
          for (int64_t i = 0; i < halves; i++) group[2 * i + 1] = static_cast<uint8_t>(0x28 + generator() % 8);
        }
      return;
    }
    std::vector<float> x = numbers(rows * columns);
    require(!cw_pack(CW_FROM_F32, x.data(), nullptr, kind, rows, columns, memory), "pack");
  }
  ~Weight() { free(memory); }
  Weight(const Weight&) = delete;
};

// The bytes that run leaves in its outputs.
using Run = std::function<std::string()>;

template <class T>
std::string bytes_of(const std::vector<T>& x) {
  return std::string(reinterpret_cast<const char*>(x.data()), x.size() * sizeof(T));
}

void compare(const std::string& name, const Run& run) {
  std::string expected;
  std::vector<std::string> isas{"portable"};
  std::istringstream names(cw_isas());
  for (std::string isa; names >> isa;)
    if (isa != "portable") isas.push_back(isa);
  for (const std::string& isa : isas)
    for (int64_t threads : {1, 3}) {
      require(!cw_use_isa(isa.c_str()), "use");
      require(!cw_set_num_threads(threads, 1000), "threads");
      std::string found = run();
      if (expected.empty()) expected = found;
      if (found != expected) {
        printf("%s: %s with %d threads differs\n", name.c_str(), isa.c_str(),
               static_cast<int>(threads));
        exit(1);
      }
    }
}

// Two half floats from 0.06 to 0.12 of either sign.
float two_halves(int64_t kind) {
  uint32_t first = kind == CW_F16 ? 0x2c00 : 0x3d80, rest = kind == CW_F16 ? 0x83ff : 0x807f;
  uint32_t bits = first * 0x10001u | (static_cast<uint32_t>(generator()) & rest * 0x10001u);
  float both;
  memcpy(&both, &bits, sizeof both);
  return both;
}

// Two adapters with pairs of several ranks and types; some rows have none.
struct Adapters {
  std::vector<int64_t> of_rows;
  std::vector<std::vector<float>> memory;
  std::deque<Weight> ups;
  cw_pair table[4];

  Adapters(int64_t count, int64_t rows, int64_t columns) {
    for (int64_t t = 0; t < count; t++) of_rows.push_back(pick(-1, 1));
    for (cw_pair& pair : table) {
      int64_t rank = pick(1, 9), kind = pick(CW_F32, CW_BF16);
      memory.push_back(numbers(rank * (columns + 15)));  // fewer bytes are read of half floats
      if (kind != CW_F32)
        for (float& two : memory.back()) two = two_halves(kind);
      ups.emplace_back(kind, rows, rank);
      pair = {reinterpret_cast<const uint8_t*>(memory.back().data()), ups.back().weight, rank};
    }
  }
  cw_pairs pairs(int64_t weights) { return {table, 4 / weights, 9}; }
};

void compare_products(int64_t kind) {
  int64_t columns = kind >= CW_Q8 ? 32 * pick(1, 30) : pick(1, 400), rows = pick(1, 70);
  int64_t count = pick(1, 30);
  Weight gate(kind, rows, columns), up(kind, rows, columns);
  std::vector<float> x = numbers(count * columns), norm = numbers(columns), bias = numbers(rows);
  std::vector<float> residual = numbers(count * rows), shift = numbers(columns);
  cw_step step{};
  step.num_tokens = count;
  int64_t activation = pick(CW_SILU, CW_RELU);
  cw_norming before{norm.data(), pick(0, 1) ? shift.data() : nullptr, 1e-5,
                    pick(CW_RMS_NORM, CW_LAYER_NORM)};
  Adapters adapters(count, rows, columns);
  step.adapters = adapters.of_rows.data();
  compare("linear " + std::to_string(kind), [&] {
    std::vector<float> out(static_cast<size_t>(count * rows)), product = out;
    cw_linear linear{CW_TOKENS, count,         x.data(),      before,
                     1,         {gate.weight}, {bias.data()}, residual.data(), out.data(),
                     adapters.pairs(1)};
    cw_gated gated{CW_TOKENS,   count,     x.data(),    {},
                   gate.weight, up.weight, bias.data(), nullptr, product.data(),
                   activation,  adapters.pairs(2)};
    require(!cw_run(CW_LINEAR, &linear, sizeof linear, &step), "linear");
    require(!cw_run(CW_GATED, &gated, sizeof gated, &step), "gated");
    return bytes_of(out) + bytes_of(product);
  });
}

struct Stack {
  uint8_t* memory;
  cw_stack stack;

  Stack(int64_t kind, int64_t count, int64_t rows, int64_t columns) {
    size_t size = static_cast<size_t>(cw_packed_bytes(kind, rows, columns) + 63) / 64 * 64;
    memory = static_cast<uint8_t*>(aligned_alloc(64, size * static_cast<size_t>(count)));
    for (int64_t i = 0; i < count; i++) {
      Weight one(kind, rows, columns);
      memcpy(memory + static_cast<size_t>(i) * size, one.memory,
             static_cast<size_t>(cw_packed_bytes(kind, rows, columns)));
    }
    stack = {memory, count, rows, columns, kind};
  }
  ~Stack() { free(memory); }
  Stack(const Stack&) = delete;
};

void compare_experts(int64_t kind) {
  int64_t num_experts = 4 * pick(1, 3), chosen = pick(1, 4), count = pick(1, 30);
  bool is_integer = kind >= CW_Q8;
  int64_t width = is_integer ? 32 * pick(1, 8) : pick(1, 100);
  int64_t inner = is_integer ? 32 * pick(1, 8) : pick(1, 100);
  Stack gate_up(kind, num_experts, 2 * inner, width), down(kind, num_experts, width, inner);
  std::vector<float> x = numbers(count * width), scores = numbers(count * num_experts, 3.0f);
  std::vector<float> first = numbers(num_experts * 2 * inner), second = numbers(num_experts * width);
  std::vector<float> correction = numbers(num_experts), residual = numbers(count * width);
  int64_t rule = pick(CW_SOFTMAX_THEN_TOP, CW_SIGMOID_THEN_TOP);
  int64_t num_groups = rule == CW_TOP_THEN_SOFTMAX || pick(0, 1) ? 1 : 4;
  int64_t activation = pick(CW_SILU, CW_CLAMPED), is_interleaved = pick(0, 1);
  cw_step step{};
  step.num_tokens = count;
  compare("experts " + std::to_string(kind), [&] {
    std::vector<int64_t> ids(static_cast<size_t>(count * chosen));
    std::vector<float> weights(ids.size()), out(x.size());
    cw_route route{CW_TOKENS,  count, scores.data(),     num_experts, chosen,     rule,
                   num_groups, 2,     1,                 correction.data(), nullptr, 1.0,
                   1.5,        1,     1e-20,             ids.data(),  weights.data()};
    cw_experts experts{CW_TOKENS,     count,         x.data(),      {},           ids.data(),
                       weights.data(), chosen,       gate_up.stack, down.stack,   first.data(),
                       second.data(),  is_interleaved, activation,  1.7,          2.0,
                       residual.data(), out.data()};
    require(!cw_run(CW_ROUTE, &route, sizeof route, &step), "route");
    require(!cw_run(CW_EXPERTS, &experts, sizeof experts, &step), "experts");
    std::vector<float> products(ids.size() * static_cast<size_t>(inner)), halves(x.size());
    cw_expert_units units{CW_TOKENS, count, x.data(), {}, ids.data(), chosen, gate_up.stack,
                          first.data(), is_interleaved, activation, 1.7, 2.0, products.data()};
    cw_expert_sums sums{CW_TOKENS, count,      products.data(), ids.data(),   weights.data(),
                        chosen,    down.stack, second.data(),   halves.data()};
    require(!cw_run(CW_EXPERT_UNITS, &units, sizeof units, &step), "units of experts");
    require(!cw_run(CW_EXPERT_SUMS, &sums, sizeof sums, &step), "sums of experts");
    experts.residual = nullptr;
    std::vector<float> whole(x.size());
    experts.out = whole.data();
    require(!cw_run(CW_EXPERTS, &experts, sizeof experts, &step), "experts alone");
    require(bytes_of(whole) == bytes_of(halves), "both halves make the whole");
    return bytes_of(ids) + bytes_of(weights) + bytes_of(out) + bytes_of(halves);
  });
}

void compare_gates() {
  int64_t count = pick(1, 20), heads = pick(1, 4), width = pick(1, 80), gap = pick(0, 5);
  int64_t activations[] = {CW_SILU, CW_GELU_TANH, CW_GELU,    CW_RELU,
                           CW_SIGMOID, CW_IDENTITY,  CW_CAPPED};
  int64_t stride = heads * (width + gap);
  std::vector<float> gate = numbers(count * stride), up = numbers(count * stride);
  cw_step step{};
  step.num_tokens = count;
  for (int64_t activation : activations)
    compare("gate " + std::to_string(activation), [&] {
      std::vector<float> out(static_cast<size_t>(count * heads * width));
      cw_gate a{CW_TOKENS, count, gate.data(), up.data(), stride, stride, width + gap,
                width + gap, heads, width, 0, activation, 3.0, 1.5, nullptr, out.data()};
      require(!cw_run(CW_GATE, &a, sizeof a, &step), "gate");
      return bytes_of(out);
    });
}

void compare_samples() {
  int64_t count = pick(1, 5), size = pick(1, 3000);
  std::vector<float> logits = numbers(count * size, 6.0f);
  logits[static_cast<size_t>(pick(0, count * size - 1))] = -INFINITY;
  std::vector<const float*> rows;
  std::vector<cw_choice> choices;
  for (int64_t r = 0; r < count; r++) {
    rows.push_back(logits.data() + r * size);
    float temperature = static_cast<float>(pick(0, 3)) / 2.0f;
    float floor = pick(0, 1) ? 0.0f : 1048576.0f;
    int64_t rest = pick(0, 1) ? -1 : INT64_C(0x10000000) * pick(0, 15);
    choices.push_back({temperature, floor, pick(0, size), rest, INT64_C(0x1000001) * pick(0, 255)});
  }
  cw_step step{};
  step.num_logit_rows = count;
  compare("sample", [&] {
    std::vector<cw_drawn> drawn(rows.size());
    cw_sample a{CW_LOGITS, count, rows.data(), rows.data(), size, choices.data(), drawn.data()};
    require(!cw_run(CW_SAMPLE, &a, sizeof a, &step), "sample");
    return bytes_of(drawn);
  });
}

void compare_attention(int64_t kind) {
  int64_t groups = pick(1, 3), heads = groups * pick(1, 3), page_size = pick(0, 2) ? 16 : 8;
  // Sizes of whole registers are read where they lie, others are laid out.
  int64_t size = pick(0, 1) ? 16 * pick(1, 5) : pick(1, 80);
  int64_t window = pick(0, 1) ? pick(1, 300) : 0;
  double cap = pick(0, 2) ? 0.0 : 2.0;
  int64_t num_first = pick(0, 1) ? pick(1, 300) : 0, pick_neighbours = pick(0, 1);
  bool has_sinks = pick(0, 1);
  std::vector<float> sinks = numbers(heads);
  int64_t half = pick(0, size / 2), queries[] = {1, pick(1, 8), pick(9, 40)}, table_width = 60;
  std::vector<int64_t> starts{0}, contexts, table, slots, positions;
  int64_t num_pages = 3 * table_width;
  for (int64_t i = 0; i < num_pages; i++) table.push_back(num_pages - 1 - i);
  for (int64_t s = 0; s < 3; s++) {
    starts.push_back(starts.back() + queries[s]);
    contexts.push_back(queries[s] + pick(0, 400));
    for (int64_t p = contexts.back() - queries[s]; p < contexts.back(); p++) {
      positions.push_back(p);
      slots.push_back(table[static_cast<size_t>(s * table_width + p / page_size)] * page_size +
                      p % page_size);
    }
  }
  int64_t count = starts.back(), elements = num_pages * page_size * groups * size;
  std::vector<float> keys = numbers(elements), values = numbers(elements);
  std::vector<float> qkv = numbers(count * (heads + 2 * groups) * size), norm = numbers(size);
  std::vector<float> cos = numbers(500 * (half + 1)), sin = numbers(500 * (half + 1));
  cw_step step{};
  step.num_tokens = count;
  step.num_sequences = 3;
  step.positions = positions.data();
  step.query_starts = starts.data();
  step.context_lengths = contexts.data();
  step.groups[0] = {table.data(), table_width, slots.data()};
  compare("attention " + std::to_string(kind), [&] {
    // Narrow caches begin as zeros: what is read there is what was stored, or nothing.
    std::vector<float> k = keys, v = values, out(static_cast<size_t>(count * heads * size));
    std::vector<float> key_scales(static_cast<size_t>(elements / size)), value_scales = key_scales;
    if (kind != CW_F32) memset(k.data(), 0, k.size() * 4), memset(v.data(), 0, v.size() * 4);
    bool has_scales = kind == CW_Q8 || kind == CW_E4M3;
    cw_pages pages{k.data(),
                   v.data(),
                   has_scales ? key_scales.data() : nullptr,
                   has_scales ? value_scales.data() : nullptr,
                   kind,
                   0,
                   num_pages,
                   page_size,
                   groups,
                   size};
    cw_attention a{CW_TOKENS, count,
                   qkv.data(), heads,
                   {0.3, cap, window, window ? num_first : 0, has_sinks ? sinks.data() : nullptr},
                   {norm.data(), nullptr, 1e-6, CW_RMS_NORM}, {},
                   {nullptr, nullptr, 1e-6, CW_RMS_NORM},
                   {cos.data(), sin.data(), 500, half, 0, pick_neighbours}, pages,
                   out.data()};
    require(!cw_run(CW_ATTENTION, &a, sizeof a, &step), "attention");
    return bytes_of(out) + bytes_of(k) + bytes_of(v) + bytes_of(key_scales) +
           bytes_of(value_scales);
  });
}

// A step of three sequences of one, few and many tokens over pages that no two share.
struct Sequences {
  std::vector<int64_t> starts{0}, contexts, table, slots, positions;
  int64_t page_size, width = 60;
  cw_step step{};

  explicit Sequences(int64_t size) : page_size(size) {
    int64_t queries[] = {1, pick(1, 8), pick(9, 40)};
    for (int64_t i = 0; i < num_pages(); i++) table.push_back(num_pages() - 1 - i);
    for (int64_t s = 0; s < 3; s++) {
      starts.push_back(starts.back() + queries[s]);
      contexts.push_back(queries[s] + pick(0, 400));
      for (int64_t p = contexts.back() - queries[s]; p < contexts.back(); p++) {
        positions.push_back(p);
        slots.push_back(table[static_cast<size_t>(s * width + p / size)] * size + p % size);
      }
    }
    step.num_tokens = starts.back();
    step.num_sequences = 3;
    step.positions = positions.data();
    step.query_starts = starts.data();
    step.context_lengths = contexts.data();
    step.groups[0] = {table.data(), width, slots.data()};
  }
  int64_t num_pages() const { return 3 * width; }
  int64_t count() const { return starts.back(); }
  Sequences(const Sequences&) = delete;
};

void compare_latent(int64_t kind) {
  Sequences s(pick(0, 1) ? 16 : 8);
  int64_t heads = pick(1, 20), rank = pick(1, 70), turned = pick(1, 20), count = s.count();
  std::vector<float> query = numbers(count * heads * (rank + turned));
  std::vector<float> latent = numbers(count * rank), rotary = numbers(count * turned);
  size_t rows = static_cast<size_t>(s.num_pages() * s.page_size);
  Stack maps(CW_F32, heads, 20, rank);
  bool has_scales = kind == CW_Q8 || kind == CW_E4M3;
  compare("latent " + std::to_string(kind), [&] {
    std::vector<float> kept(rows * static_cast<size_t>(rank)), keys(rows * static_cast<size_t>(turned));
    std::vector<float> scales(rows), others(rows), out(static_cast<size_t>(count * heads * rank));
    std::vector<float> mapped(static_cast<size_t>(count * heads * 20));
    cw_latent_pages pages{kept.data(), keys.data(), has_scales ? scales.data() : nullptr,
                          has_scales ? others.data() : nullptr, kind, 0, s.num_pages(),
                          s.page_size, rank, turned};
    cw_store_latent store{CW_TOKENS, count, latent.data(), rotary.data(), rank, turned, pages};
    cw_attend_latent attend{CW_TOKENS, count, query.data(), heads * (rank + turned), heads,
                            {0.3, 0.0, 0, 0, nullptr}, pages, out.data()};
    cw_heads heads_map{CW_TOKENS, count, out.data(), heads * rank, rank, maps.stack, mapped.data(),
                       heads * 20, 20};
    require(!cw_run(CW_STORE_LATENT, &store, sizeof store, &s.step), "store latent");
    require(!cw_run(CW_ATTEND_LATENT, &attend, sizeof attend, &s.step), "attend latent");
    require(!cw_run(CW_HEADS, &heads_map, sizeof heads_map, &s.step), "heads");
    return bytes_of(kept) + bytes_of(keys) + bytes_of(scales) + bytes_of(others) + bytes_of(out) +
           bytes_of(mapped);
  });
}

void compare_delta() {
  Sequences s(8);
  int64_t heads = pick(1, 3), shared = pick(1, 3), key = pick(1, 40), value = pick(1, 40);
  int64_t values = shared * value, channels = heads * (2 * key + values), count = s.count();
  std::vector<float> x = numbers(count * channels), rates = numbers(count * heads * 2 * shared);
  std::vector<float> taps = numbers(channels * 4), bias = numbers(heads * shared);
  std::vector<float> first = numbers(s.num_pages() * heads * shared * key * value);
  std::vector<float> inputs = numbers(s.num_pages() * 3 * channels);
  compare("delta", [&] {
    std::vector<float> states = first, kept = inputs, out(static_cast<size_t>(count * heads * values));
    int64_t stride = 2 * key + values, rate_stride = heads * 2 * shared;
    cw_delta a{CW_TOKENS, count, {x.data(), channels, stride}, {x.data() + key, channels, stride},
               {x.data() + 2 * key, channels, stride}, {rates.data(), rate_stride, 2 * shared},
               {rates.data() + shared, rate_stride, 2 * shared}, taps.data(), bias.data(),
               bias.data(), heads, shared, key, value, 4, states.data(), kept.data(), 0,
               s.num_pages(), s.page_size, out.data()};
    require(!cw_run(CW_DELTA, &a, sizeof a, &s.step), "delta");
    return bytes_of(out) + bytes_of(states) + bytes_of(kept);
  });
}

void compare_convolutions() {
  Sequences s(8);
  int64_t channels = pick(1, 150), count = s.count();
  std::vector<float> x = numbers(count * channels), taps = numbers(channels * 3);
  std::vector<float> bias = numbers(channels), inputs = numbers(s.num_pages() * 2 * channels);
  compare("convolve", [&] {
    std::vector<float> kept = inputs, out(static_cast<size_t>(count * channels));
    cw_convolve a{CW_TOKENS, count, x.data(), taps.data(), bias.data(), channels, 3, kept.data(), 0,
                  s.num_pages(), s.page_size, out.data()};
    require(!cw_run(CW_CONVOLVE, &a, sizeof a, &s.step), "convolve");
    return bytes_of(out) + bytes_of(kept);
  });
}

void compare_learning() {
  int64_t rows = pick(1, 150), width = pick(1, 70), gated = pick(0, 1);
  std::vector<float> x = numbers(rows * width * 2), grad = numbers(rows * width);
  std::vector<float> weight = numbers(width);
  compare("curves", [&] {
    std::string bytes;
    for (int64_t kind : {CW_SILU, CW_GELU_TANH, CW_GELU}) {
      std::vector<float> made(x.size()), pulled(x.size());
      require(!cw_learn_curve(kind, gated, rows, width, x.data(), nullptr, made.data(), 1, nullptr),
              "curve");
      require(!cw_learn_curve(kind, gated, rows, width, x.data(), grad.data(), pulled.data(), 1,
                              nullptr),
              "gradient of a curve");
      bytes += bytes_of(made) + bytes_of(pulled);
    }
    return bytes;
  });
  compare("gradient of a norm", [&] {
    std::vector<float> out(grad.size()), parts(static_cast<size_t>((rows + 63) / 64 * width));
    require(!cw_learn_rms(rows, width, 1e-6, x.data(), weight.data(), grad.data(), out.data(),
                          parts.data(), 1, nullptr),
            "gradient of a norm");
    return bytes_of(out) + bytes_of(parts);
  });
  int64_t depth = pick(1, 600), turned = pick(0, 1), wide_rows = pick(1, 300);
  std::vector<float> left = numbers(wide_rows * depth), right = numbers(wide_rows * width);
  std::vector<float> matrix = numbers(depth * width);
  compare("products of training", [&] {
    std::vector<float> out(right.size()), of_matrix(matrix.size());
    std::vector<float> sums(static_cast<size_t>(depth));
    require(!cw_learn_rows(wide_rows, depth, width, turned, left.data(), matrix.data(),
                           turned ? weight.data() : nullptr, out.data(), 1, nullptr),
            "rows times a matrix");
    require(!cw_learn_columns(wide_rows, depth, width, left.data(), right.data(), of_matrix.data(),
                              sums.data(), 1, nullptr),
            "columns times columns");
    return bytes_of(out) + bytes_of(of_matrix) + bytes_of(sums);
  });
  int64_t groups = pick(1, 3), heads = groups * pick(1, 3), size = 16 * pick(1, 4);
  std::vector<int64_t> starts{0};
  for (int s = 0; s < 3; s++) starts.push_back(starts.back() + pick(1, 100));
  int64_t count = starts.back(), wide = heads * size, narrow = groups * size;
  std::vector<float> query = numbers(count * wide), pull = numbers(count * wide);
  std::vector<float> keys = numbers(count * 2 * narrow);
  compare("attention to themselves", [&] {
    std::vector<float> out(query.size()), of_query(query.size());
    std::vector<float> sums(static_cast<size_t>(count * heads));
    std::vector<float> of_key(static_cast<size_t>(count * narrow)), of_value(of_key.size());
    const float* grads[] = {nullptr, pull.data()};
    for (const float* given : grads)
      require(!cw_learn_attention(3, starts.data(), heads, groups, size, 0.2, query.data(), wide,
                                  keys.data(), 2 * narrow, keys.data() + narrow, 2 * narrow,
                                  out.data(), sums.data(), given, of_query.data(), of_key.data(),
                                  of_value.data(), 1, nullptr),
              "attention to themselves");
    return bytes_of(out) + bytes_of(sums) + bytes_of(of_query) + bytes_of(of_key) +
           bytes_of(of_value);
  });
}

}  // namespace

int main(int argc, char** argv) {
  int rounds = argc > 1 ? atoi(argv[1]) : 5;
  for (int round = 0; round < rounds; round++) {
    for (int64_t kind = CW_F32; kind <= CW_Q4_HALVES; kind++) compare_products(kind);
    for (int64_t kind = CW_F32; kind <= CW_Q4_HALVES; kind++) compare_experts(kind);
    compare_gates();
    compare_samples();
    for (int64_t kind : {CW_F32, CW_F16, CW_BF16, CW_Q8, CW_E4M3}) {
      compare_attention(kind);
      compare_latent(kind);
    }
    compare_delta();
    compare_convolutions();
    compare_learning();
  }
  printf("%d rounds alike on: %s\n", rounds, cw_isas());
  return 0;
}
