// What views give, as src/cutaway/views/ describes it. Letters of shapes stand there.
import type { Tensor } from "./frame";
import type { Repeats } from "./repetition";
import type { Row } from "./lab";

export interface Characters {
  text: string;
  code_points: Tensor;
  names: string[];
  num_bytes_each: Tensor;
  graphemes: Tensor;
  num_characters: number;
  num_bytes: number;
  num_graphemes: number;
  by_size: number[];
  forms: Record<string, number>;
}

export interface Template {
  stretches: { writer: string; text: string; num_characters: number }[];
  num_messages: number;
  num_tokens: number;
  num_control: number;
  is_known: boolean;
}

export interface Tokens {
  texts: string[];
  token_ids: number[];
  num_bytes: number[];
  is_control: boolean[];
  is_part: boolean[];
  num_letters: number[];
  letters: string | null;
  num_words: [number, number];
  num_prompt: number;
  start?: number; // of the first; not in files of earlier versions
}

export interface Piece {
  text: string;
  token_ids: number[];
  texts: string[];
  start: string[];
  steps: { rank: number; left: string; right: string; token_id: number; parts: string[] }[];
  cut: { text: string; token_id: number | null; score: number }[];
  is_whole: boolean;
}

export interface Merges {
  pieces: Piece[];
  num_left_out: number;
  vocab_size: number;
}

export interface Neighbour {
  token_id: number;
  text: string;
  cosine: number;
  rank: number;
}

export interface Embeddings {
  text: string;
  token_ids: number[];
  position: number | null;
  width: number;
  vocab_size: number;
  first: Tensor;
  lowest: number;
  highest: number;
  norm: number;
  multiplier: number | null;
  strip: Tensor;
  neighbours: Neighbour[];
  mean_cosine: number;
  window: { start: number; texts: string[]; cosines: Tensor; points: Tensor; explained: [number, number] };
  analogy: {
    terms: [number, string, number[]][];
    nearest: Neighbour[];
    expected: Neighbour | null;
    rank_without: number | null;
  };
}

export interface Positions {
  kind: string;
  layer: number;
  position: number;
  text: string;
  max_length: number;
  scaling: string;
  settings: string;
  inverse: Tensor;
  angles: Tensor;
  wavelengths: Tensor;
  stretch: Tensor;
  num_slow: number;
  head: number;
  num_heads?: number;
  num_groups?: number;
  key_position: number;
  key_text: string;
  score: number;
  shifts: number[];
  shifted: Tensor;
  by_distance: Tensor;
  added_norm: number;
}

/** The last query's weights in the head that gives most to one earlier word; the query is the last of its keys. */
export interface TellingRow {
  layer: number;
  head: number;
  start: number;
  tokens: string[];
  weights: Tensor;
}

export interface HeadGrid {
  layers: number[];
  num_layers: number;
  windows: (number | null)[];
  groups: number[];
  start: number;
  end: number;
  num_repeated: number;
  entropy: Tensor;
  first: Tensor;
  previous: Tensor;
  self: Tensor;
  induction: Tensor;
  sink: Tensor;
  added: Tensor;
  telling?: TellingRow | null; // not in files of earlier versions
}

export interface Head {
  layer: number;
  head: number;
  num_layers: number;
  num_heads: number;
  group: number;
  num_shared: number;
  window: number | null;
  reach: number | null;
  start: number;
  tokens: string[];
  weights: Tensor;
  before: Tensor;
  sink: Tensor;
  position: number;
  text: string;
  top_keys: Tensor;
  top_texts: string[];
  top_weights: Tensor;
  hidden: number;
  tiles: Tensor | null;
  tile_start: number;
  tile_scale: number;
}

/** x W = q of one head, before the query is normed or turned. */
export interface Projection {
  width: number;
  input: Tensor;
  output: Tensor;
  entry: number;
  value: number;
  bias: number;
  places: Tensor;
  inputs: Tensor;
  weights: Tensor;
  rest: number;
}

export interface Arithmetic {
  layer: number;
  head: number;
  group: number;
  num_heads?: number; // not in files of earlier versions
  num_groups?: number;
  position: number;
  text: string;
  tokens: string[];
  softmax_scale: number;
  cap: number | null;
  window: number | null;
  products: Tensor;
  scaled: Tensor;
  masked: Tensor;
  weights: Tensor;
  contributions: Tensor;
  sink: number;
  query: Tensor;
  key: Tensor;
  value: Tensor;
  mixed: Tensor;
  entropy: number;
  entropy_unscaled: number;
  difference: number;
  is_equal: boolean;
  projection?: Projection | null; // not in files of earlier versions
}

export interface FeedForward {
  layer: number;
  position: number;
  text: string;
  kind: string;
  activation: string;
  width: number;
  inner: number;
  expert: number | null;
  num_experts: number;
  units: Tensor;
  gate: Tensor;
  up: Tensor;
  product: Tensor;
  added: Tensor;
  columns: Tensor;
  pushed: string[][];
  pushed_ids: Tensor;
  curve: Tensor;
  near_zero: number;
  half: number;
  difference: number;
}

export interface Experts {
  layers: number[];
  num_layers: number;
  num_experts: number;
  num_chosen: number;
  has_shared: boolean;
  position: number;
  start: number;
  tokens: string[];
  ids: Tensor;
  weights: Tensor;
  load: Tensor;
  counted_from: number;
  num_counted: number;
}

export interface Weights {
  name: string;
  rows: number;
  columns: number;
  stored: string;
  num_bytes: number;
  num_numbers: number;
  bits_per_number: number;
  mean: number;
  deviation: number;
  least: number;
  most: number;
  zeros: number;
  outside: number;
  edges: Tensor;
  counts: Tensor;
  thumbnail: Tensor;
  thumbnail_scale: number;
  others: string[];
}

export interface Residual {
  position: number;
  text: string;
  embedding: number;
  stream: Tensor;
  attention: Tensor;
  mlp: Tensor;
  cosine: Tensor;
}

export interface Drift {
  position: number;
  text: string;
  own: Tensor;
  other: number | null;
  between: Tensor;
  context: string[];
  is_far: boolean;
}

export interface Lens {
  layers: number[];
  num_layers: number;
  positions: number[];
  texts: string[];
  choices: number[];
  choice_texts: string[];
  is_drawn: boolean[];
  top_token_ids: Tensor;
  top_texts: string[][][];
  top_probabilities: Tensor;
  ranks: Tensor;
  choice_probabilities: Tensor;
  similarity: Tensor;
  flops: number;
}

export interface Entry {
  token_id: number;
  text: string;
  probability: number;
  logprob: number;
  rank: number;
}

export interface Probabilities {
  token: number;
  before: string;
  vocab_size: number;
  chosen: Entry;
  top: Entry[];
  tail_mass: number;
  entropy: number;
  below: { probability: number; num_entries: number; mass: number }[];
  lookups: { text: string; pieces: Entry[]; probability: number; logprob: number; num_tokens: number }[];
}

export interface Sampling {
  token: number;
  settings: Record<string, number>;
  watched: number[];
  watched_texts: string[];
  effects: {
    name: string;
    num_kept: number;
    kept_mass: number;
    top_token_id: number;
    top_probability: number;
    probabilities: number[];
  }[];
  draw_effect: {
    seed: string; // of 64 bits
    choice: number;
    position: number;
    u: number;
    total: number;
    target: number;
    low: number;
    high: number;
  } | null;
  recorded: number;
  redrawn: number;
  is_same: boolean;
  is_guess?: boolean; // not in files of earlier versions
  // probabilities: of those watched; not in files of earlier versions.
  strategies: { name: string; token_id: number; text: string; probability: number; num_kept: number; probabilities?: number[] }[];
  repetition?: Repeats[]; // not in files of earlier versions
  said_again?: number;
}

export interface Allowed {
  token_id: number;
  text: string;
  probability: number;
  allowed_probability: number;
  is_allowed: boolean;
}

export interface Grammar {
  kind: string | null;
  grammar: string;
  num_allowed: Tensor;
  probability: Tensor;
  texts: string[];
  vocab_size: number;
  row: { token: number; allowed_mass: number; likeliest: Allowed[]; allowed: Allowed[] } | null;
  fault: string | null;
}

export interface Guess {
  token_id: number;
  text: string;
  verdict: "accepted" | "refused" | "unused";
  came: string;
  probability: number | null;
  chance: number | null;
  u: number | null;
  q: number | null;
  residual: number | null;
}

export interface VerifiedStep {
  number: number;
  token: number;
  given: number;
  guesses: Guess[];
  last: string;
}

export interface Speculation {
  num_tokens: number;
  num_steps: number;
  num_guessing: number;
  num_guessed: number;
  num_accepted: number;
  tried: Tensor;
  right: Tensor;
  expected: number;
  measured: number;
  plain_seconds: number | null;
  guessing_seconds: number | null;
  speed_up: number | null;
  steps: VerifiedStep[];
  row: VerifiedStep | null;
}

export interface Detokenization {
  rows: {
    token: number;
    token_id: number;
    text: string;
    data: string;
    shows: string;
    held_bytes: string;
    held_text: string;
  }[];
  token: number;
  characters: Tensor;
  num_tokens: number;
  num_bytes: number;
  num_held: number;
  rest: string;
  stopped_by: string | number | null;
  text: string;
}

export interface PageRun {
  first: number;
  count: number;
  origin: string;
  writer: number | null;
  step: number | null;
  is_full: boolean;
  is_kept: boolean;
}

export interface Pages {
  page_size: number;
  num_tokens: number;
  num_prompt: number;
  num_preemptions: number;
  groups: {
    layers: number[];
    fields: string[];
    window: number | null;
    is_state: boolean;
    token_bytes: number;
    page_bytes: number;
    num_pages: number;
    runs: PageRun[];
  }[];
  miss: { kind: string; num_hit: number; num_computed: number; nearest: number | null; agrees: number };
  miss_reason: string;
  token_bytes: number;
  kept_bytes: number;
  flops: number;
  without_flops: number;
}

export interface Timeline {
  phases: { name: string; before: number; after: number }[];
  first_token: number;
  total: number;
  is_device: boolean;
  num_layers: number;
  num_drafts: number;
  steps: Tensor;
  began: Tensor;
  computed: Tensor;
  ended: Tensor;
  is_prefill: Tensor;
  num_tokens: Tensor;
  context: Tensor;
  others: Tensor;
  other_tokens: Tensor;
  tokens: Tensor;
  gaps: Tensor;
  gap_p50: number;
  gap_p99: number;
  slowest: number[];
  num_told?: number; // by another engine, before this one went on
  is_seam_exact?: boolean;
}

export interface Cost {
  stages: { name: string; seconds: number; num_bytes: number; flops: number; intensity: number }[];
  modes: { name: string; num_tokens: number; seconds: number; num_bytes: number; flops: number; intensity: number }[];
  seconds: number;
  busy: number;
  num_cached: number;
  slope: number | null;
  token_seconds: Tensor;
  token_bytes: Tensor;
  token_flops: Tensor;
}

/** Every view's payload by the view's name. */
export interface Payloads {
  characters: Characters;
  template: Template;
  tokens: Tokens;
  merges: Merges;
  embeddings: Embeddings;
  positions: Positions;
  attention: HeadGrid | Head;
  arithmetic: Arithmetic;
  feedforward: FeedForward;
  experts: Experts;
  weights: Weights;
  residual: Residual;
  drift: Drift;
  lens: Lens;
  logits: Row;
  probabilities: Probabilities;
  sampling: Sampling;
  grammar: Grammar;
  speculation: Speculation;
  detokenization: Detokenization;
  pages: Pages;
  timeline: Timeline;
  cost: Cost;
}

export const isHead = (values: HeadGrid | Head): values is Head => "weights" in values;
