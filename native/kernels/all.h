// Every kernel for one instruction set: a file of isa/ includes its registers, then this, and gives
// the table a name. All else has internal linkage, so that no function compiled for one
// instruction set is ever taken for that of another.
#pragma once

#include "../runtime/operations.h"
#include "attention/attention.h"
#include "attention/latent.h"
#include "convolve.h"
#include "delta.h"
#include "experts.h"
#include "gate.h"
#include "heads.h"
#include "heads_linear.h"
#include "learn/curves.h"
#include "learn/own_attention.h"
#include "learn/products.h"
#include "learn/rms.h"
#include "linear.h"
#include "norm.h"
#include "pages.h"
#include "route.h"
#include "rows.h"
#include "sample.h"

namespace {

// Reads every word once, several lines at a time.
uint64_t sum_words(const uint8_t* buffer, int64_t num_bytes) {
  I32 sums[4] = {int_zeros(), int_zeros(), int_zeros(), int_zeros()};
  for (int64_t i = 0; i + 256 <= num_bytes; i += 256) {
    prefetch(buffer + i + 2048);
    prefetch(buffer + i + 2048 + 64);
    prefetch(buffer + i + 2048 + 128);
    prefetch(buffer + i + 2048 + 192);
    for (int j = 0; j < 4; j++)
      sums[j] =
          int_add(sums[j], bits_of(load(reinterpret_cast<const float*>(buffer + i + 64 * j))));
  }
  int32_t totals[4];
  int_sum_four(sums, totals);
  return static_cast<uint32_t>(totals[0]) ^ static_cast<uint32_t>(totals[1]) ^
         static_cast<uint32_t>(totals[2]) ^ static_cast<uint32_t>(totals[3]);
}

constexpr cutaway::Isa table(const char* name) {
  cutaway::Isa isa{};
  isa.name = name;
  isa.run[CW_GATHER] = run_gather;
  isa.run[CW_TAKE] = run_take;
  isa.run[CW_NORM] = run_norm;
  isa.run[CW_LINEAR] = run_linear;
  isa.run[CW_GATED] = run_gated;
  isa.run[CW_GATE] = run_gate;
  isa.run[CW_ROTATE] = run_rotate;
  isa.run[CW_STORE] = run_store;
  isa.run[CW_ATTEND] = run_attend;
  isa.run[CW_ATTENTION] = run_attention;
  isa.run[CW_SAMPLE] = run_sample;
  isa.run[CW_ROUTE] = run_route;
  isa.run[CW_EXPERTS] = run_experts;
  isa.run[CW_HEADS] = run_heads;
  isa.run[CW_STORE_LATENT] = run_store_latent;
  isa.run[CW_ATTEND_LATENT] = run_attend_latent;
  isa.run[CW_DELTA] = run_delta;
  isa.run[CW_CONVOLVE] = run_convolve;
  isa.run[CW_EXPERT_UNITS] = run_expert_units;
  isa.run[CW_EXPERT_SUMS] = run_expert_sums;
  isa.scratch[CW_LINEAR] = linear_scratch;
  isa.scratch[CW_GATED] = gated_scratch;
  isa.scratch[CW_ATTEND] = attend_scratch;
  isa.scratch[CW_ATTENTION] = attention_scratch;
  isa.scratch[CW_SAMPLE] = sample_scratch;
  isa.scratch[CW_ROUTE] = route_scratch;
  isa.scratch[CW_EXPERTS] = experts_scratch;
  isa.scratch[CW_HEADS] = heads_scratch;
  isa.scratch[CW_ATTEND_LATENT] = attend_latent_scratch;
  isa.scratch[CW_DELTA] = delta_scratch;
  isa.scratch[CW_CONVOLVE] = convolve_scratch;
  isa.scratch[CW_EXPERT_UNITS] = half_scratch<cw_expert_units>;
  isa.scratch[CW_EXPERT_SUMS] = half_scratch<cw_expert_sums>;
  isa.unpack_row = unpack_row;
  isa.sum_words = sum_words;
  isa.learn_curve = learn_curve;
  isa.learn_rms = learn_rms;
  isa.learn_attention = learn_attention;
  isa.learn_pack = learn_pack;
  isa.learn_rows = learn_rows;
  isa.learn_columns = learn_columns;
  isa.learn_tile_columns = kTileColumns;
  return isa;
}

}  // namespace
