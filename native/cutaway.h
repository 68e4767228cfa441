// The C interface of Cutaway's CPU kernels: plain structs and raw pointers, sizes in elements.
//
// It knows shapes and numbers only: no models, no requests, no Python. Every function returns a
// cw_status; nothing is thrown across this border and nothing is written when a check fails.
//
// Letters: T tokens in the step, B sequences, R rows that want logits, D width, H query heads,
// G key-value heads, C head size, F feed-forward, K inputs and N outputs of a linear,
// V vocabulary, P tokens per page.
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// Raised when the meaning of a field changes; the loader compares it, and the structs by cw_layout.
#define CW_VERSION 8
#define CW_MAX_SEGMENTS 4
#define CW_MAX_GROUPS 4
#define CW_API __attribute__((visibility("default")))

typedef enum {
  CW_OK = 0,
  CW_BAD_ARGUMENT = 1,        // an operation's own struct: a size, a pointer, a kind
  CW_BAD_STEP = 2,            // counts of the step: negative, or beyond what buffers hold
  CW_BAD_TOKEN_ID = 3,        // outside the table
  CW_BAD_POSITION = 4,        // outside the rotation table
  CW_BAD_QUERY_START = 5,     // not ascending from 0 to T
  CW_BAD_CONTEXT_LENGTH = 6,  // shorter than the queries, or longer than the page table
  CW_BAD_PAGE = 7,            // a used entry of the page table is outside the pages
  CW_BAD_SLOT = 8,            // outside the pages
  CW_BAD_LOGIT_ROW = 9,       // not a token of the step
  CW_NO_MEMORY = 10,
  CW_UNKNOWN_ISA = 11,  // not compiled in, or this CPU lacks it
  CW_TOO_LARGE = 12,    // a scale of a block is beyond float16
  CW_BAD_ADAPTER = 13   // not one of the adapters that a linear has pairs of, nor -1
} cw_status;

// How the numbers of a weight are kept. Integers are packed in panels of 16 rows and groups of 32
// columns; floats in panels of 16 rows (see kernels/panel.h).
typedef enum {
  CW_F32 = 0,
  CW_F16 = 1,
  CW_BF16 = 2,
  CW_Q8 = 3,         // d * q, q from -128 to 127
  CW_Q4 = 4,         // d * (q - 8), q from 0 to 15
  CW_Q4_AFFINE = 5,  // d * q + m, q from 0 to 15
  CW_Q8_AFFINE = 6,  // d * q + m, q from -128 to 127
  CW_Q8_HALVES = 7,  // d * q as CW_Q8, but a scale for each 16 columns
  CW_Q4_HALVES = 8,  // d * q + m as CW_Q4_AFFINE, but both for each 16 columns
  CW_E4M3 = 9        // of pages alone: floats of 8 bits times a scale
} cw_kind;

// What cw_pack reads. Blocks are those of the GGUF format.
typedef enum {
  CW_FROM_F32 = 0,
  CW_FROM_F16 = 1,
  CW_FROM_BF16 = 2,
  CW_FROM_Q8_0 = 3,
  CW_FROM_Q4_0 = 4,
  CW_FROM_Q4_1 = 5,
  CW_FROM_Q5_0 = 6,
  CW_FROM_Q5_1 = 7,
  CW_FROM_Q2_K = 8,
  CW_FROM_Q3_K = 9,
  CW_FROM_Q4_K = 10,
  CW_FROM_Q5_K = 11,
  CW_FROM_Q6_K = 12,
  CW_FROM_IQ4_NL = 13,
  CW_FROM_IQ4_XS = 14,
  CW_FROM_MXFP4 = 15
} cw_source;

// Which count of the step says how many rows an operation has.
typedef enum { CW_TOKENS = 0, CW_LOGITS = 1 } cw_rows;

typedef enum {
  CW_GATHER = 0,
  CW_TAKE = 1,
  CW_NORM = 2,
  CW_LINEAR = 3,
  CW_GATED = 4,
  CW_GATE = 5,
  CW_ROTATE = 6,
  CW_STORE = 7,
  CW_ATTEND = 8,
  CW_ATTENTION = 9,
  CW_SAMPLE = 10,
  CW_ROUTE = 11,
  CW_EXPERTS = 12,
  CW_HEADS = 13,
  CW_STORE_LATENT = 14,
  CW_ATTEND_LATENT = 15,
  CW_DELTA = 16,
  CW_CONVOLVE = 17,
  CW_EXPERT_UNITS = 18,
  CW_EXPERT_SUMS = 19,
  CW_NUM_OPERATIONS = 20
} cw_operation;

typedef struct {
  const uint8_t* data;  // 64-byte aligned, cw_packed_bytes long
  int64_t num_rows;     // N
  int64_t num_columns;  // K
  int64_t kind;         // cw_kind
} cw_weight;

// Matrices of one shape and kind, one after the other, each from a multiple of 64 bytes on.
typedef struct {
  const uint8_t* data;  // 64-byte aligned
  int64_t num_matrices;
  int64_t num_rows;     // of each
  int64_t num_columns;
  int64_t kind;  // cw_kind
} cw_stack;

// What an adapter adds to the outputs of one weight: up * (down * x). rank 0 adds nothing.
typedef struct {
  const uint8_t* down;  // [rank, K rounded up to 16], rows of numbers of up's kind
  cw_weight up;         // [N, rank], floats, with the adapter's scale in them
  int64_t rank;
} cw_pair;

// The pairs of a linear, for each adapter and each of its weights.
typedef struct {
  const cw_pair* pairs;  // [num_adapters, weights], or null
  int64_t num_adapters;
  int64_t most_rank;
} cw_pairs;

// Where tokens lie in one cache group.
typedef struct {
  const int64_t* page_table;  // [B, pages_per_sequence]
  int64_t pages_per_sequence;
  const int64_t* slots;  // [T] page * P + offset
} cw_group;

// What differs from step to step; the operations of a program read it when they run.
typedef struct {
  int64_t num_tokens;
  int64_t num_sequences;
  int64_t num_logit_rows;
  const int64_t* token_ids;        // [T]
  const int64_t* positions;        // [T] rows of a rotation table
  const int64_t* query_starts;     // [B + 1]
  const int64_t* context_lengths;  // [B]
  const int64_t* logit_rows;       // [R]
  const int64_t* adapters;         // [T] each token's adapter, or -1; null where no token has one
  cw_group groups[CW_MAX_GROUPS];
} cw_step;

// Every operation starts with its rows: which count of the step they follow, and for how many its
// buffers have room.
#define CW_ROWS_FIELDS \
  int64_t rows;        \
  int64_t capacity;

// out[t] = multiplier * row token_ids[t] of table.
typedef struct {
  CW_ROWS_FIELDS
  cw_weight table;
  float* out;  // [T, K]
  double multiplier;
} cw_gather;

// out[r] = x[logit_rows[r]].
typedef struct {
  CW_ROWS_FIELDS
  const float* x;  // [T, D]
  float* out;      // [R, D]
  int64_t width;
  int64_t most_tokens;  // for which x has room
} cw_take;

// What rows are divided by, if anything: their root mean square, or their deviation from the mean,
// which is taken off first.
typedef enum { CW_NO_NORM = 0, CW_RMS_NORM = 1, CW_LAYER_NORM = 2 } cw_norm_kind;

typedef struct {
  const float* weight;  // [width], times which, or null
  const float* bias;    // [width], plus which, or null
  double epsilon;       // added to the mean of squares
  int64_t kind;         // cw_norm_kind
} cw_norming;

// out = residual + norm(x + add); sum = x + add where add is given (sum may be x itself). residual
// may be null, and is not out.
typedef struct {
  CW_ROWS_FIELDS
  const float* x;       // [rows, D], rows x_stride apart
  int64_t x_stride;
  const float* add;     // [rows, D] or null
  float* sum;           // [rows, D]; null exactly when add is
  cw_norming norm;
  float* out;  // [rows, D]
  int64_t width;
  const float* residual;  // [rows, D] or null
} cw_norm;

// out = residual + (norm(x) * weights' + pairs of each row's adapter + bias); bias and residual may
// be null. The outputs of all segments stand side by side. out may be residual.
typedef struct {
  CW_ROWS_FIELDS
  const float* x;  // [rows, K]
  cw_norming norm;
  int64_t num_segments;
  cw_weight segments[CW_MAX_SEGMENTS];
  const float* biases[CW_MAX_SEGMENTS];  // [N of the segment] or null
  const float* residual;                 // [rows, sum of N] or null
  float* out;                            // [rows, sum of N]
  cw_pairs pairs;                        // of rows that are tokens alone
} cw_linear;

// What a gate goes through before it multiplies.
typedef enum {
  CW_SILU = 0,
  CW_GELU_TANH = 1,
  CW_GELU = 2,
  CW_RELU = 3,
  CW_CLAMPED = 4,   // of experts alone: gpt-oss's gate, which changes the value too
  CW_SIGMOID = 5,   // of cw_gate alone, as those below
  CW_IDENTITY = 6,
  CW_CAPPED = 7  // cap * tanh(x / cap)
} cw_activation;

// out = activation(gate) * up of the normalized x; the two weights have one shape.
typedef struct {
  CW_ROWS_FIELDS
  const float* x;  // [rows, K]
  cw_norming norm;
  cw_weight gate;
  cw_weight up;
  const float* gate_bias;  // [F] or null
  const float* up_bias;    // [F] or null
  float* out;              // [rows, F]
  int64_t activation;      // cw_activation
  cw_pairs pairs;          // of gate and up
} cw_gated;

// out = residual + multiplier * activation(gate) * up; up and residual may be null.
typedef struct {
  CW_ROWS_FIELDS
  const float* gate;  // [rows, H, F], rows gate_stride apart, heads gate_head_stride
  const float* up;    // [rows, H, F] likewise, or null
  int64_t gate_stride;
  int64_t up_stride;
  int64_t gate_head_stride;
  int64_t up_head_stride;
  int64_t num_heads;
  int64_t width;           // F
  int64_t is_scalar;       // whether gate has one number for each head
  int64_t activation;      // cw_activation
  double cap;              // of CW_CAPPED
  double multiplier;
  const float* residual;  // [rows, H * F] or null; may be out
  float* out;             // [rows, H * F]; may be gate or up where they lie so
} cw_gate;

// Cosines and sines, one row per position; or one per token where by_token is not 0.
typedef struct {
  const float* cos;  // [num_rows, half]
  const float* sin;  // [num_rows, half]
  int64_t num_rows;
  int64_t half;  // pairs (i, i + half) of a head turn; entries from 2 * half on pass unchanged
  int64_t by_token;
  int64_t are_neighbours;  // pairs are (2 i, 2 i + 1); what is turned lies in halves all the same
} cw_rotation;

// Heads of x normalized, then turned.
typedef struct {
  CW_ROWS_FIELDS
  const float* x;  // [T, heads, C], tokens x_stride apart, heads x_head_stride
  int64_t x_stride;
  int64_t x_head_stride;
  float* out;  // [T, heads, C], tokens out_stride apart, heads out_head_stride; may be x
  int64_t out_stride;
  int64_t out_head_stride;
  int64_t num_heads;
  int64_t head_size;
  cw_norming norm;
  cw_rotation rotation;
} cw_rotate;

// Keys and values of one layer. Each head of a page lies apart, keys as columns: keys
// [num_pages, G, C, P], values [num_pages, G, P, C]. CW_Q8 is int8 times a scale for each token and
// head, scales [num_pages, G, P]; so is CW_E4M3, of floats.
typedef struct {
  void* keys;
  void* values;
  float* key_scales;    // exactly with CW_Q8 and CW_E4M3
  float* value_scales;  // exactly with CW_Q8 and CW_E4M3
  int64_t kind;         // CW_F32, CW_F16, CW_BF16, CW_Q8 or CW_E4M3
  int64_t group;
  int64_t num_pages;
  int64_t page_size;
  int64_t num_groups;
  int64_t head_size;
} cw_pages;

// How products of queries and keys become scores, and which of them count.
typedef struct {
  double softmax_scale;
  double cap;      // scores become cap * tanh(score / cap); 0: as they are
  int64_t window;  // keys that a query sees, its own included; 0: all before it
  int64_t num_first;   // keys of a sequence that stay visible before the window
  const float* sinks;  // [H] scores that take part in the softmax and bring no value, or null
} cw_scoring;

// Write keys and values of the step's tokens to their slots.
typedef struct {
  CW_ROWS_FIELDS
  const float* key;    // [T, G, C], tokens key_stride apart
  const float* value;  // [T, G, C], tokens value_stride apart
  int64_t key_stride;
  int64_t value_stride;
  cw_pages pages;
} cw_store;

// Causal attention of each sequence's last tokens over its pages.
typedef struct {
  CW_ROWS_FIELDS
  const float* query;  // [T, H, C], tokens query_stride apart
  int64_t query_stride;
  int64_t num_heads;
  cw_scoring scoring;
  cw_pages pages;
  float* out;  // [T, H * C]
} cw_attend;

// The three above in one: query, key and value heads stand side by side in qkv.
typedef struct {
  CW_ROWS_FIELDS
  const float* qkv;  // [T, H + 2 G, C]
  int64_t num_heads;
  cw_scoring scoring;
  cw_norming query_norm;
  cw_norming key_norm;
  cw_norming value_norm;
  cw_rotation rotation;
  cw_pages pages;
  float* out;  // [T, H * C]
} cw_attention;

// How one row is sampled, in the exact terms of sampling/.
typedef struct {
  float temperature;  // 0: the largest logit is taken
  float floor;        // weights below it are dropped (min_p), in units of 2^-30 of the largest
  int64_t top_k;      // 0: no cut
  int64_t rest;       // 2^32 * (1 - top_p); negative: no cut
  int64_t u;          // the random number, in [0, 2^32)
  int64_t watched;    // a token whose weight is told; negative: the one that is drawn
} cw_choice;

// What became of it. Where peak or left is not finite the row gave no token.
typedef struct {
  int64_t token_id;
  double total;  // sum of e^(raw logit - peak) in units of 2^-34, rounded per entry
  float peak;    // the largest raw logit; NaN where the row holds one
  float left;    // the largest edited logit
  float logit;   // raw, of the token
  float unused;
  uint64_t checksum;  // of the raw row, as kernels/checksum/plain.py defines it
  int64_t weight;     // of the watched token after all cuts; 0 where the largest logit is taken
  int64_t weights;    // of all tokens together
} cw_drawn;

// A token of each row of logits. Edited rows are what is drawn from, raw ones what is reported; both
// may be the same.
typedef struct {
  CW_ROWS_FIELDS
  const float* const* raw;     // [rows] pointers to [V]
  const float* const* edited;  // [rows] pointers to [V]
  int64_t vocab_size;
  const cw_choice* choices;  // [rows]
  cw_drawn* drawn;           // [rows]
} cw_sample;

// How scores become weights, and which experts are chosen by them.
typedef enum {
  CW_SOFTMAX_THEN_TOP = 0,  // probabilities over all experts, the highest of them
  CW_TOP_THEN_SOFTMAX = 1,  // the highest scores, and probabilities among them
  CW_SIGMOID_THEN_TOP = 2   // each expert's own sigmoid
} cw_rule;

// The experts of each token, the best first, and how much each counts. Where scores are equal the
// order is that of torch.topk.
typedef struct {
  CW_ROWS_FIELDS
  const float* scores;  // [rows, E]
  int64_t num_experts;
  int64_t num_chosen;         // K of a token, at most E
  int64_t rule;               // cw_rule
  int64_t num_groups;         // of neighbours, of which only some may be used; 1: all may
  int64_t num_chosen_groups;  // that may be used
  int64_t num_counted;        // a group is worth the sum of so many of its best
  const float* correction;    // [E], takes part in the choice alone, or null
  const float* factors;       // [E], of the weights of chosen experts, or null
  double score_multiplier;    // of scores
  double multiplier;          // of weights
  int64_t is_renormalized;    // whether the weights of a token are divided by their sum
  double least_sum;           // added to that sum
  int64_t* ids;               // [rows, K]
  float* weights;             // [rows, K]
} cw_route;

// out = residual + sum over a token's experts, in its own order, of
// weight * (down (activation(gate) * up + bias)), gate and up of the normalized x: see cw_gated.
typedef struct {
  CW_ROWS_FIELDS
  const float* x;  // [T, D]
  cw_norming norm;
  const int64_t* ids;        // [T, K], each below E; what is not counts as expert 0
  const float* weights;      // [T, K]
  int64_t num_chosen;        // K
  cw_stack gate_up;          // [E, 2 F, D]
  cw_stack down;             // [E, D, F]
  const float* gate_up_bias;  // [E, 2 F] or null
  const float* down_bias;     // [E, D] or null
  int64_t is_interleaved;    // rows of gate and up in turn; else those of gate first
  int64_t activation;        // cw_activation
  double alpha;              // of CW_CLAMPED
  double limit;              // of CW_CLAMPED
  const float* residual;     // [T, D] or null; may be out
  float* out;                // [T, D]
} cw_experts;

// The first half of such a layer, where ranks have some of each expert's units: before down, and
// with the bits that the whole would take on from.
typedef struct {
  CW_ROWS_FIELDS
  const float* x;  // [T, D]
  cw_norming norm;
  const int64_t* ids;      // [T, K], as cw_experts
  int64_t num_chosen;      // K
  cw_stack gate_up;        // [E, 2 F, D]
  const float* bias;       // [E, 2 F] or null
  int64_t is_interleaved;  // as cw_experts
  int64_t activation;      // cw_activation
  double alpha;            // of CW_CLAMPED
  double limit;            // of CW_CLAMPED
  float* out;              // [T, K, F]
} cw_expert_units;

// The second half, with some rows of each down: out = sum over a token's experts of
// weight * (down x + bias).
typedef struct {
  CW_ROWS_FIELDS
  const float* x;        // [T, K, F]
  const int64_t* ids;    // [T, K], as cw_experts
  const float* weights;  // [T, K]
  int64_t num_chosen;    // K
  cw_stack down;         // [E, D, F]
  const float* bias;     // [E, D] or null
  float* out;            // [T, D]
} cw_expert_sums;

// out[t, h] = matrix h times x[t, h]: a linear map of its own for each head.
typedef struct {
  CW_ROWS_FIELDS
  const float* x;  // [T, H, K], tokens x_stride apart, heads x_head_stride
  int64_t x_stride;
  int64_t x_head_stride;
  cw_stack stack;  // [H, N, K]
  float* out;      // [T, H, N], tokens out_stride apart, heads out_head_stride
  int64_t out_stride;
  int64_t out_head_stride;
} cw_heads;

// One row of numbers for each token, which all heads share as key and value, and a key that turns.
// CW_Q8 and CW_E4M3 have a scale for each row, scales [num_pages, P].
typedef struct {
  void* latent;          // [num_pages, P, R]
  void* rotary;          // [num_pages, P, C]
  float* latent_scales;  // exactly with CW_Q8 and CW_E4M3
  float* rotary_scales;  // exactly with CW_Q8 and CW_E4M3
  int64_t kind;          // CW_F32, CW_F16, CW_BF16, CW_Q8 or CW_E4M3
  int64_t group;
  int64_t num_pages;
  int64_t page_size;
  int64_t rank;         // R
  int64_t rotary_size;  // C
} cw_latent_pages;

// Write rows of the step's tokens to their slots.
typedef struct {
  CW_ROWS_FIELDS
  const float* latent;  // [T, R], tokens latent_stride apart
  const float* rotary;  // [T, C], tokens rotary_stride apart
  int64_t latent_stride;
  int64_t rotary_stride;
  cw_latent_pages pages;
} cw_store_latent;

// Causal attention of each sequence's last tokens over rows that all heads share.
typedef struct {
  CW_ROWS_FIELDS
  const float* query;  // [T, H, R + C], tokens query_stride apart
  int64_t query_stride;
  int64_t num_heads;
  cw_scoring scoring;
  cw_latent_pages pages;
  float* out;  // [T, H, R]
} cw_attend_latent;

// Numbers of a token by key head: heads head_stride apart, tokens stride.
typedef struct {
  const float* first;
  int64_t stride;
  int64_t head_stride;
} cw_by_head;

// A gated delta layer from its convolution on. For each key head there are shared value heads. A
// state is what is known after a page's last token so far: a layer goes on from the page of the
// token before, and leaves one in each page that it reaches.
typedef struct {
  CW_ROWS_FIELDS
  cw_by_head query;  // [T, G, K]
  cw_by_head key;    // [T, G, K]
  cw_by_head value;  // [T, G, shared * V]
  cw_by_head rate;   // [T, G, shared]: a sigmoid of it is how much a token corrects
  cw_by_head speed;  // [T, G, shared]: with decay_log and decay_bias, how much of the state stays
  const float* convolution;  // [channels, width]: queries', keys', values' channels
  const float* decay_bias;   // [G * shared]
  const float* decay_log;    // [G * shared]
  int64_t num_heads;         // G, of keys
  int64_t shared;
  int64_t key_size;    // K
  int64_t value_size;  // V
  int64_t width;       // tokens that the convolution sees
  float* states;       // [num_pages, G * shared, K, V]
  float* inputs;       // [num_pages, width - 1, channels]: the last ones of the convolution
  int64_t group;
  int64_t num_pages;
  int64_t page_size;
  float* out;  // [T, G * shared, V]
} cw_delta;

// A short convolution of each channel. The last inputs up to a page's last token so far are kept in
// the page: a layer goes on from those of the token before.
typedef struct {
  CW_ROWS_FIELDS
  const float* x;        // [T, channels]
  const float* weights;  // [channels, width]
  const float* bias;     // [channels] or null
  int64_t channels;
  int64_t width;  // tokens that it sees
  float* inputs;  // [num_pages, width - 1, channels]
  int64_t group;
  int64_t num_pages;
  int64_t page_size;
  float* out;  // [T, channels]
} cw_convolve;

CW_API int64_t cw_version(void);
CW_API int64_t cw_sizeof(int64_t operation);
// The structs above as they lie in memory, a line each: "name size: field offset size field ...".
CW_API const char* cw_layout(void);

// Threads: the caller and count - 1 workers. They spin for spin_microseconds, then sleep.
CW_API int64_t cw_set_num_threads(int64_t count, int64_t spin_microseconds);
CW_API int64_t cw_num_threads(void);

// Names of the instruction sets that are compiled in and that this CPU has, best first, separated
// by spaces; the one in use; and a choice among them.
CW_API const char* cw_isas(void);
CW_API const char* cw_isa(void);
CW_API int64_t cw_use_isa(const char* name);

CW_API int64_t cw_packed_bytes(int64_t kind, int64_t num_rows, int64_t num_columns);
// row_order[n] is the row of source that becomes row n; null keeps the order.
CW_API int64_t cw_pack(int64_t source_type, const void* source, const int64_t* row_order,
                       int64_t kind, int64_t num_rows, int64_t num_columns, uint8_t* packed);
CW_API int64_t cw_unpack(const cw_weight* weight, float* out);

typedef struct cw_program cw_program;
CW_API cw_program* cw_program_new(void);
CW_API void cw_program_free(cw_program* program);
CW_API int64_t cw_program_add(cw_program* program, int64_t operation, const void* arguments,
                              int64_t size);
CW_API int64_t cw_program_run(cw_program* program, const cw_step* step);
// Some operations of a step, count from first on: between such parts the caller may give up.
CW_API int64_t cw_program_run_part(cw_program* program, const cw_step* step, int64_t first,
                                   int64_t count);

// Guesses of a step's sequences, one after the other: each run of a program draws what comes next,
// and the next run reads that and the state that was made. All tokens lie in one cache group.
typedef struct {
  const cw_drawn* drawn;     // [R], what the program's cw_sample leaves: the likeliest of each row
  const int64_t* token_ids;  // [num_entries], what each entry that is drawn stands for
  const uint8_t* is_last;    // [num_entries], whether nothing is guessed behind it
  int64_t num_entries;
  const float* made;         // [T, D], the state that the program makes of each token
  float* given;              // [T, D], the states that it reads
  int64_t width;             // D
  int64_t page_size;         // P
  const int64_t* most;       // [B], guesses of each sequence, from 1 to room
  double least_kept;         // a guess is kept while the product of chances is no less
  double least_followed;     // and another one made behind it
  int64_t room;
  int64_t* guesses;  // [B, room]
  double* chances;   // [B, room], of each guess among the entries
  int64_t* counts;   // [B]
} cw_chain;

// Runs a step, one logit row for each sequence, and then goes on by itself.
CW_API int64_t cw_program_chain(cw_program* program, const cw_step* step, const cw_chain* chain);
// Nanoseconds of each operation of one run, taken on the calling thread.
CW_API int64_t cw_program_time(cw_program* program, const cw_step* step, int64_t* nanoseconds);
// Operations that programs have run so far; any thread may ask, in the middle of a run too.
CW_API int64_t cw_num_operations(void);
// One operation at once: what a program of it alone would do.
CW_API int64_t cw_run(int64_t operation, const void* arguments, int64_t size, const cw_step* step);

// Kernels of training, over whole tensors: forward where grad is null, else the gradient. They run
// on the caller's threads: parallel, where there is one, runs a function on so many at once and
// returns when all are done, as OpenMP does. Results do not hang on their number.
typedef void (*cw_parallel)(void (*function)(void*), void* argument, unsigned num_threads,
                            unsigned flags);
// An activation of rows: CW_SILU, CW_GELU_TANH or CW_GELU. A gate's rows are twice as wide, what is
// activated and then what it is multiplied with; so is its gradient.
CW_API int64_t cw_learn_curve(int64_t kind, int64_t is_gate, int64_t rows, int64_t width,
                              const float* x, const float* grad, float* out, int64_t num_threads,
                              cw_parallel parallel);
// The gradient of rows over their root mean square, times weight: out is that of x, of_weight has
// that of weight in parts to be added up, one for each 64 rows.
CW_API int64_t cw_learn_rms(int64_t rows, int64_t width, double epsilon, const float* x,
                            const float* weight, const float* grad, float* out, float* of_weight,
                            int64_t num_threads, cw_parallel parallel);
// Causal attention of sequences to themselves: query, key, value [T, heads, C], C a multiple of 16,
// rows so many numbers apart; out, grad and gradients [T, heads, C]; sums [T, H], which the forward
// leaves to the gradient, as it does out.
CW_API int64_t cw_learn_attention(int64_t num_sequences, const int64_t* starts, int64_t num_heads,
                                  int64_t num_groups, int64_t head_size, double scale,
                                  const float* query, int64_t query_stride, const float* key,
                                  int64_t key_stride, const float* value, int64_t value_stride,
                                  float* out, float* sums, const float* grad, float* of_query,
                                  float* of_key, float* of_value, int64_t num_threads,
                                  cw_parallel parallel);
// Rows times a matrix, and a bias where there is one: x [rows, depth], out [rows, width]. The matrix
// is [depth, width], or where it is turned [width, depth].
CW_API int64_t cw_learn_rows(int64_t rows, int64_t depth, int64_t width, int64_t is_turned,
                             const float* x, const float* matrix, const float* bias, float* out,
                             int64_t num_threads, cw_parallel parallel);
// left [rows, height], turned, times right [rows, width]: out [height, width]; and the sums of
// left's columns, where there is room for them [height].
CW_API int64_t cw_learn_columns(int64_t rows, int64_t height, int64_t width, const float* left,
                                const float* right, float* out, float* sums, int64_t num_threads,
                                cw_parallel parallel);

// Bytes per second at which all threads together read a buffer: the median of some rounds.
CW_API double cw_read_bandwidth(const uint8_t* buffer, int64_t num_bytes, int64_t num_rounds);

#ifdef __cplusplus
}
#endif
