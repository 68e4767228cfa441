// How this compiler laid out the structs of cutaway.h: what other languages compare theirs with.

#include <string>

#include "../cutaway.h"
#include "guard.h"

namespace {

struct Field {
  const char* name;
  size_t offset;
  size_t size;
};

void add(std::string& text, const char* name, size_t size, std::initializer_list<Field> fields) {
  text += std::string(name) + " " + std::to_string(size) + ":";
  for (const Field& field : fields)
    text += std::string(" ") + field.name + " " + std::to_string(field.offset) + " " +
            std::to_string(field.size);
  text += "\n";
}

#define FIELD(type, name) {#name, offsetof(type, name), sizeof(type::name)}

std::string layout() {
  std::string text;
  add(text, "cw_weight", sizeof(cw_weight),
      {FIELD(cw_weight, data), FIELD(cw_weight, num_rows),
       FIELD(cw_weight, num_columns), FIELD(cw_weight, kind)});
  add(text, "cw_stack", sizeof(cw_stack),
      {FIELD(cw_stack, data), FIELD(cw_stack, num_matrices), FIELD(cw_stack, num_rows),
       FIELD(cw_stack, num_columns), FIELD(cw_stack, kind)});
  add(text, "cw_group", sizeof(cw_group),
      {FIELD(cw_group, page_table), FIELD(cw_group, pages_per_sequence),
       FIELD(cw_group, slots)});
  add(text, "cw_step", sizeof(cw_step),
      {FIELD(cw_step, num_tokens), FIELD(cw_step, num_sequences),
       FIELD(cw_step, num_logit_rows), FIELD(cw_step, token_ids),
       FIELD(cw_step, positions), FIELD(cw_step, query_starts),
       FIELD(cw_step, context_lengths), FIELD(cw_step, logit_rows),
       FIELD(cw_step, adapters), FIELD(cw_step, groups)});
  add(text, "cw_pair", sizeof(cw_pair),
      {FIELD(cw_pair, down), FIELD(cw_pair, up), FIELD(cw_pair, rank)});
  add(text, "cw_pairs", sizeof(cw_pairs),
      {FIELD(cw_pairs, pairs), FIELD(cw_pairs, num_adapters), FIELD(cw_pairs, most_rank)});
  add(text, "cw_norming", sizeof(cw_norming),
      {FIELD(cw_norming, weight), FIELD(cw_norming, bias), FIELD(cw_norming, epsilon),
       FIELD(cw_norming, kind)});
  add(text, "cw_gather", sizeof(cw_gather),
      {FIELD(cw_gather, rows), FIELD(cw_gather, capacity), FIELD(cw_gather, table),
       FIELD(cw_gather, out), FIELD(cw_gather, multiplier)});
  add(text, "cw_take", sizeof(cw_take),
      {FIELD(cw_take, rows), FIELD(cw_take, capacity), FIELD(cw_take, x),
       FIELD(cw_take, out), FIELD(cw_take, width), FIELD(cw_take, most_tokens)});
  add(text, "cw_norm", sizeof(cw_norm),
      {FIELD(cw_norm, rows), FIELD(cw_norm, capacity), FIELD(cw_norm, x),
       FIELD(cw_norm, x_stride), FIELD(cw_norm, add), FIELD(cw_norm, sum), FIELD(cw_norm, norm),
       FIELD(cw_norm, out), FIELD(cw_norm, width), FIELD(cw_norm, residual)});
  add(text, "cw_linear", sizeof(cw_linear),
      {FIELD(cw_linear, rows), FIELD(cw_linear, capacity), FIELD(cw_linear, x),
       FIELD(cw_linear, norm),
       FIELD(cw_linear, num_segments), FIELD(cw_linear, segments),
       FIELD(cw_linear, biases), FIELD(cw_linear, residual), FIELD(cw_linear, out),
       FIELD(cw_linear, pairs)});
  add(text, "cw_gated", sizeof(cw_gated),
      {FIELD(cw_gated, rows), FIELD(cw_gated, capacity), FIELD(cw_gated, x),
       FIELD(cw_gated, norm), FIELD(cw_gated, gate),
       FIELD(cw_gated, up), FIELD(cw_gated, gate_bias), FIELD(cw_gated, up_bias),
       FIELD(cw_gated, out), FIELD(cw_gated, activation), FIELD(cw_gated, pairs)});
  add(text, "cw_gate", sizeof(cw_gate),
      {FIELD(cw_gate, rows), FIELD(cw_gate, capacity), FIELD(cw_gate, gate),
       FIELD(cw_gate, up), FIELD(cw_gate, gate_stride), FIELD(cw_gate, up_stride),
       FIELD(cw_gate, gate_head_stride), FIELD(cw_gate, up_head_stride),
       FIELD(cw_gate, num_heads), FIELD(cw_gate, width), FIELD(cw_gate, is_scalar),
       FIELD(cw_gate, activation), FIELD(cw_gate, cap), FIELD(cw_gate, multiplier),
       FIELD(cw_gate, residual), FIELD(cw_gate, out)});
  add(text, "cw_rotation", sizeof(cw_rotation),
      {FIELD(cw_rotation, cos), FIELD(cw_rotation, sin), FIELD(cw_rotation, num_rows),
       FIELD(cw_rotation, half), FIELD(cw_rotation, by_token),
       FIELD(cw_rotation, are_neighbours)});
  add(text, "cw_rotate", sizeof(cw_rotate),
      {FIELD(cw_rotate, rows), FIELD(cw_rotate, capacity), FIELD(cw_rotate, x),
       FIELD(cw_rotate, x_stride), FIELD(cw_rotate, x_head_stride), FIELD(cw_rotate, out), FIELD(cw_rotate, out_stride), FIELD(cw_rotate, out_head_stride),
       FIELD(cw_rotate, num_heads), FIELD(cw_rotate, head_size),
       FIELD(cw_rotate, norm),
       FIELD(cw_rotate, rotation)});
  add(text, "cw_pages", sizeof(cw_pages),
      {FIELD(cw_pages, keys), FIELD(cw_pages, values), FIELD(cw_pages, key_scales),
       FIELD(cw_pages, value_scales), FIELD(cw_pages, kind), FIELD(cw_pages, group),
       FIELD(cw_pages, num_pages), FIELD(cw_pages, page_size),
       FIELD(cw_pages, num_groups), FIELD(cw_pages, head_size)});
  add(text, "cw_scoring", sizeof(cw_scoring),
      {FIELD(cw_scoring, softmax_scale), FIELD(cw_scoring, cap),
       FIELD(cw_scoring, window), FIELD(cw_scoring, num_first), FIELD(cw_scoring, sinks)});
  add(text, "cw_store", sizeof(cw_store),
      {FIELD(cw_store, rows), FIELD(cw_store, capacity), FIELD(cw_store, key),
       FIELD(cw_store, value), FIELD(cw_store, key_stride),
       FIELD(cw_store, value_stride), FIELD(cw_store, pages)});
  add(text, "cw_attend", sizeof(cw_attend),
      {FIELD(cw_attend, rows), FIELD(cw_attend, capacity), FIELD(cw_attend, query),
       FIELD(cw_attend, query_stride), FIELD(cw_attend, num_heads),
       FIELD(cw_attend, scoring), FIELD(cw_attend, pages), FIELD(cw_attend, out)});
  add(text, "cw_attention", sizeof(cw_attention),
      {FIELD(cw_attention, rows), FIELD(cw_attention, capacity),
       FIELD(cw_attention, qkv), FIELD(cw_attention, num_heads),
       FIELD(cw_attention, scoring), FIELD(cw_attention, query_norm),
       FIELD(cw_attention, key_norm), FIELD(cw_attention, value_norm),
       FIELD(cw_attention, rotation), FIELD(cw_attention, pages),
       FIELD(cw_attention, out)});
  add(text, "cw_choice", sizeof(cw_choice),
      {FIELD(cw_choice, temperature), FIELD(cw_choice, floor), FIELD(cw_choice, top_k),
       FIELD(cw_choice, rest), FIELD(cw_choice, u), FIELD(cw_choice, watched)});
  add(text, "cw_drawn", sizeof(cw_drawn),
      {FIELD(cw_drawn, token_id), FIELD(cw_drawn, total), FIELD(cw_drawn, peak),
       FIELD(cw_drawn, left), FIELD(cw_drawn, logit), FIELD(cw_drawn, unused),
       FIELD(cw_drawn, checksum), FIELD(cw_drawn, weight), FIELD(cw_drawn, weights)});
  add(text, "cw_sample", sizeof(cw_sample),
      {FIELD(cw_sample, rows), FIELD(cw_sample, capacity), FIELD(cw_sample, raw),
       FIELD(cw_sample, edited), FIELD(cw_sample, vocab_size),
       FIELD(cw_sample, choices), FIELD(cw_sample, drawn)});
  add(text, "cw_route", sizeof(cw_route),
      {FIELD(cw_route, rows), FIELD(cw_route, capacity), FIELD(cw_route, scores),
       FIELD(cw_route, num_experts), FIELD(cw_route, num_chosen), FIELD(cw_route, rule),
       FIELD(cw_route, num_groups), FIELD(cw_route, num_chosen_groups),
       FIELD(cw_route, num_counted), FIELD(cw_route, correction), FIELD(cw_route, factors),
       FIELD(cw_route, score_multiplier), FIELD(cw_route, multiplier),
       FIELD(cw_route, is_renormalized), FIELD(cw_route, least_sum), FIELD(cw_route, ids),
       FIELD(cw_route, weights)});
  add(text, "cw_experts", sizeof(cw_experts),
      {FIELD(cw_experts, rows), FIELD(cw_experts, capacity), FIELD(cw_experts, x),
       FIELD(cw_experts, norm), FIELD(cw_experts, ids),
       FIELD(cw_experts, weights), FIELD(cw_experts, num_chosen), FIELD(cw_experts, gate_up),
       FIELD(cw_experts, down), FIELD(cw_experts, gate_up_bias), FIELD(cw_experts, down_bias),
       FIELD(cw_experts, is_interleaved), FIELD(cw_experts, activation),
       FIELD(cw_experts, alpha), FIELD(cw_experts, limit), FIELD(cw_experts, residual),
       FIELD(cw_experts, out)});
  add(text, "cw_expert_units", sizeof(cw_expert_units),
      {FIELD(cw_expert_units, rows), FIELD(cw_expert_units, capacity), FIELD(cw_expert_units, x),
       FIELD(cw_expert_units, norm), FIELD(cw_expert_units, ids),
       FIELD(cw_expert_units, num_chosen), FIELD(cw_expert_units, gate_up),
       FIELD(cw_expert_units, bias), FIELD(cw_expert_units, is_interleaved),
       FIELD(cw_expert_units, activation), FIELD(cw_expert_units, alpha),
       FIELD(cw_expert_units, limit), FIELD(cw_expert_units, out)});
  add(text, "cw_expert_sums", sizeof(cw_expert_sums),
      {FIELD(cw_expert_sums, rows), FIELD(cw_expert_sums, capacity), FIELD(cw_expert_sums, x),
       FIELD(cw_expert_sums, ids), FIELD(cw_expert_sums, weights),
       FIELD(cw_expert_sums, num_chosen), FIELD(cw_expert_sums, down),
       FIELD(cw_expert_sums, bias), FIELD(cw_expert_sums, out)});
  add(text, "cw_heads", sizeof(cw_heads),
      {FIELD(cw_heads, rows), FIELD(cw_heads, capacity), FIELD(cw_heads, x),
       FIELD(cw_heads, x_stride), FIELD(cw_heads, x_head_stride), FIELD(cw_heads, stack),
       FIELD(cw_heads, out), FIELD(cw_heads, out_stride), FIELD(cw_heads, out_head_stride)});
  add(text, "cw_latent_pages", sizeof(cw_latent_pages),
      {FIELD(cw_latent_pages, latent), FIELD(cw_latent_pages, rotary),
       FIELD(cw_latent_pages, latent_scales), FIELD(cw_latent_pages, rotary_scales),
       FIELD(cw_latent_pages, kind), FIELD(cw_latent_pages, group),
       FIELD(cw_latent_pages, num_pages), FIELD(cw_latent_pages, page_size),
       FIELD(cw_latent_pages, rank), FIELD(cw_latent_pages, rotary_size)});
  add(text, "cw_store_latent", sizeof(cw_store_latent),
      {FIELD(cw_store_latent, rows), FIELD(cw_store_latent, capacity),
       FIELD(cw_store_latent, latent), FIELD(cw_store_latent, rotary),
       FIELD(cw_store_latent, latent_stride), FIELD(cw_store_latent, rotary_stride),
       FIELD(cw_store_latent, pages)});
  add(text, "cw_attend_latent", sizeof(cw_attend_latent),
      {FIELD(cw_attend_latent, rows), FIELD(cw_attend_latent, capacity),
       FIELD(cw_attend_latent, query), FIELD(cw_attend_latent, query_stride),
       FIELD(cw_attend_latent, num_heads), FIELD(cw_attend_latent, scoring),
       FIELD(cw_attend_latent, pages), FIELD(cw_attend_latent, out)});
  add(text, "cw_by_head", sizeof(cw_by_head),
      {FIELD(cw_by_head, first), FIELD(cw_by_head, stride), FIELD(cw_by_head, head_stride)});
  add(text, "cw_delta", sizeof(cw_delta),
      {FIELD(cw_delta, rows), FIELD(cw_delta, capacity), FIELD(cw_delta, query),
       FIELD(cw_delta, key), FIELD(cw_delta, value), FIELD(cw_delta, rate),
       FIELD(cw_delta, speed), FIELD(cw_delta, convolution), FIELD(cw_delta, decay_bias),
       FIELD(cw_delta, decay_log), FIELD(cw_delta, num_heads), FIELD(cw_delta, shared),
       FIELD(cw_delta, key_size), FIELD(cw_delta, value_size), FIELD(cw_delta, width),
       FIELD(cw_delta, states), FIELD(cw_delta, inputs), FIELD(cw_delta, group),
       FIELD(cw_delta, num_pages), FIELD(cw_delta, page_size), FIELD(cw_delta, out)});
  add(text, "cw_convolve", sizeof(cw_convolve),
      {FIELD(cw_convolve, rows), FIELD(cw_convolve, capacity), FIELD(cw_convolve, x),
       FIELD(cw_convolve, weights), FIELD(cw_convolve, bias), FIELD(cw_convolve, channels),
       FIELD(cw_convolve, width), FIELD(cw_convolve, inputs), FIELD(cw_convolve, group),
       FIELD(cw_convolve, num_pages), FIELD(cw_convolve, page_size), FIELD(cw_convolve, out)});
  add(text, "cw_chain", sizeof(cw_chain),
      {FIELD(cw_chain, drawn), FIELD(cw_chain, token_ids), FIELD(cw_chain, is_last),
       FIELD(cw_chain, num_entries), FIELD(cw_chain, made), FIELD(cw_chain, given),
       FIELD(cw_chain, width), FIELD(cw_chain, page_size), FIELD(cw_chain, most),
       FIELD(cw_chain, least_kept), FIELD(cw_chain, least_followed), FIELD(cw_chain, room),
       FIELD(cw_chain, guesses), FIELD(cw_chain, chances), FIELD(cw_chain, counts)});
  return text;
}

}  // namespace

extern "C" const char* cw_layout(void) {
  static std::string text;
  static const int64_t status = cutaway::guarded([] {
    text = layout();
    return INT64_C(0);
  });
  return status == CW_OK ? text.c_str() : "";
}
