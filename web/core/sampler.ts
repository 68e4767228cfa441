// The engine's sampler over again, bit for bit: docs/randomness.md is the specification.
// From one row of logits to the token that a random number points at, and what each stage left.

/** Everything that decides a token besides its logits. A neutral value asks nothing of its stage. */
export interface Setting {
  temperature: number;
  min_p: number;
  top_k: number;
  top_p: number;
  repetition_penalty: number;
  presence_penalty: number;
  frequency_penalty: number;
}

export const NEUTRAL: Setting = {
  temperature: 1,
  min_p: 0,
  top_k: 0,
  top_p: 1,
  repetition_penalty: 1,
  presence_penalty: 0,
  frequency_penalty: 0,
};

/** What came before the token, and what the request moved, forbade or allowed. */
export interface Before {
  said: ArrayLike<number>; // different tokens of prompt and answer
  output: ArrayLike<number>; // different tokens of the answer
  counts: ArrayLike<number>; // how often each of output came
  biased: ArrayLike<number>;
  bias: ArrayLike<number>;
  banned: ArrayLike<number>;
  allowed: Uint8Array; // a bit per token from the lowest on; empty allows all
}

export const NOTHING_BEFORE: Before = {
  said: [],
  output: [],
  counts: [],
  biased: [],
  bias: [],
  banned: [],
  allowed: new Uint8Array(0),
};

/** The row after a stage. weights: whole numbers, 2^30 for the likeliest; 0 cannot be drawn. */
export interface Stage {
  name: "logits" | "grammar" | "logit_bias" | "bans" | "penalties" | "temperature" | "min_p" | "top_k" | "top_p";
  weights: Float64Array;
  total: number;
  numKept: number;
  keptMass: number; // of the mass before; 1 where a stage gives new logits
}

/** low <= target < high: the stretch of the cumulated weights that u fell on; null when greedy. */
export interface Chosen {
  stages: Stage[];
  token: number; // -1 where no token is left
  draw: { u: number; target: number; low: number; high: number; total: number } | null;
}

const GREEDY_BELOW = 1e-5;
const LEAST = 2 ** -126; // the smallest normal float32
const MOST = (2 - 2 ** -23) * 2 ** 127; // the largest
const f = Math.fround;

const ROTATIONS = [13, 15, 26, 6, 17, 29, 16, 24] as const;

/** The random number of a draw, in [0, 2^32). purpose: 0 for the draw itself. */
export function uniform(seed: bigint, choice: number, position: number, purpose = 0): number {
  const low = Number(BigInt.asUintN(32, seed));
  const high = Number(BigInt.asUintN(32, seed >> 32n));
  const keys = [low, high, (low ^ high ^ 0x1bd11bda) >>> 0] as const;
  const key = (index: number): number => keys[(index % 3) as 0 | 1 | 2];
  let x = (position + low) >>> 0;
  let y = (choice * 4 + purpose + high) >>> 0;
  for (let i = 0; i < 20; i += 1) {
    const turn = ROTATIONS[i % 8]!;
    x = (x + y) >>> 0;
    y = (((y << turn) | (y >>> (32 - turn))) ^ x) >>> 0;
    if (i % 4 === 3) {
      const inject = (i + 1) / 4;
      x = (x + key(inject)) >>> 0;
      y = (y + key(inject + 1) + inject) >>> 0;
    }
  }
  return x;
}

const words = new Uint32Array(7);
words.set([0x3fb8aa3b, 0x3aaddd0a, 0x3c1e7544, 0x3d635ba9, 0x3e75fcde, 0x3f317215]);
const [LOG2_E, P0, P1, P2, P3, P4] = new Float32Array(words.buffer) as unknown as readonly [
  number,
  number,
  number,
  number,
  number,
  number,
];

/** e^(logit - peak) as float32, each operation rounded by itself. */
export function exponential(logit: number, peak: number): number {
  const exponent = Math.max(f(f(logit - peak) * LOG2_E), -64);
  const whole = halfToEven(exponent);
  const rest = f(exponent - whole);
  let sum = f(f(f(rest * P0) + P1) * rest);
  sum = f(f(sum + P2) * rest);
  sum = f(f(sum + P3) * rest);
  sum = f(f(sum + P4) * rest);
  return f(sum + 1) * 2 ** whole;
}

/** A whole number; what lies between two goes to the even one. */
function halfToEven(value: number): number {
  const below = Math.floor(value);
  const over = value - below;
  return over < 0.5 || (over === 0.5 && below % 2 === 0) ? below : below + 1;
}

/** Whole weights of a row, 2^30 for its peak. */
export function weigh(logits: Float32Array): Float64Array {
  const peak = peakOf(logits);
  return Float64Array.from(logits, (logit) => halfToEven(exponential(logit, peak) * 2 ** 30));
}

function peakOf(logits: Float32Array): number {
  let peak = -Infinity;
  for (const logit of logits) if (logit > peak) peak = logit;
  return peak;
}

/** Take a row through every stage that its setting asks for, and draw. */
export function choose(raw: Float32Array, setting: Setting, before: Before, u: number): Chosen {
  const stages: Stage[] = [staged("logits", weigh(raw), null)];
  let logits = raw;
  for (const [name, edit] of editsOf(setting, before)) {
    logits = edit(logits);
    stages.push(staged(name, weigh(logits), null));
  }
  if (!isFinite(peakOf(logits))) return { stages, token: -1, draw: null }; // nothing is left to take
  if (setting.temperature < GREEDY_BELOW) {
    return { stages, token: logits.indexOf(peakOf(logits)), draw: null };
  }
  for (const [name, cut] of cutsOf(setting, logits)) {
    const last = stages.at(-1)!;
    stages.push(staged(name, cut(last.weights, last.total), last.total));
  }
  const { weights, total } = stages.at(-1)!;
  return { stages, ...drawn(weights, total, u) };
}

function staged(name: Stage["name"], weights: Float64Array, before: number | null): Stage {
  let total = 0;
  let numKept = 0;
  for (const weight of weights) {
    total += weight;
    if (weight > 0) numKept += 1;
  }
  return { name, weights, total, numKept, keptMass: before === null ? 1 : total / before };
}

type Edit = (logits: Float32Array) => Float32Array;

function* editsOf(setting: Setting, before: Before): Generator<[Stage["name"], Edit]> {
  if (before.allowed.length) yield ["grammar", (logits) => masked(logits, before.allowed)];
  if (before.biased.length) yield ["logit_bias", (logits) => biased(logits, before)];
  if (before.banned.length) yield ["bans", (logits) => banned(logits, before.banned)];
  const { repetition_penalty: repetition, presence_penalty: presence, frequency_penalty: frequency } = setting;
  if (repetition !== 1 || presence || frequency) yield ["penalties", (logits) => penalised(logits, setting, before)];
  const { temperature } = setting;
  if (temperature !== 1 && temperature >= GREEDY_BELOW) yield ["temperature", (logits) => tempered(logits, temperature)];
}

function masked(logits: Float32Array, allowed: Uint8Array): Float32Array {
  return logits.map((logit, id) => ((allowed[id >> 3] ?? 0) & (1 << (id & 7)) ? logit : -Infinity));
}

function biased(logits: Float32Array, { biased: ids, bias }: Before): Float32Array {
  const edited = logits.slice();
  for (let index = 0; index < ids.length; index += 1) edited[ids[index]!]! += f(bias[index]!);
  return edited;
}

function banned(logits: Float32Array, ids: ArrayLike<number>): Float32Array {
  const edited = logits.slice();
  for (let index = 0; index < ids.length; index += 1) {
    if (ids[index]! < edited.length) edited[ids[index]!] = -Infinity;
  }
  return edited;
}

function penalised(logits: Float32Array, setting: Setting, { said, output, counts }: Before): Float32Array {
  const edited = logits.slice();
  const repetition = Math.max(f(setting.repetition_penalty), LEAST);
  for (let index = 0; repetition !== 1 && index < said.length; index += 1) {
    const old = edited[said[index]!]!;
    edited[said[index]!] = Math.min(f(old > 0 ? old / repetition : old * repetition), MOST);
  }
  for (let index = 0; index < output.length; index += 1) {
    edited[output[index]!]! -= f(counts[index]! * setting.frequency_penalty + setting.presence_penalty);
  }
  return edited;
}

function tempered(logits: Float32Array, temperature: number): Float32Array {
  const peak = peakOf(logits);
  const divisor = f(temperature);
  return logits.map((logit) => f(logit - peak) / divisor);
}

type Cut = (weights: Float64Array, total: number) => Float64Array;

function* cutsOf(setting: Setting, logits: Float32Array): Generator<[Stage["name"], Cut]> {
  const { min_p: minP, top_k: topK, top_p: topP } = setting;
  if (minP !== 0) yield ["min_p", (weights) => aboveFloor(weights, minP)];
  if (topK > 0) yield ["top_k", (weights) => largest(weights, logits, topK)];
  if (topP !== 1) yield ["top_p", (weights, total) => nucleus(weights, total, topP)];
}

function aboveFloor(weights: Float64Array, minP: number): Float64Array {
  const floor = halfToEven(minP * 2 ** 24) * 64;
  return weights.map((weight) => (weight >= floor ? weight : 0));
}

// Order and id in one number below 2^53, so that a plain sort of numbers gives a fixed order.
const IDS = 2 ** 19;

/** The k largest logits; among equals the smaller id. */
function largest(weights: Float64Array, logits: Float32Array, k: number): Float64Array {
  const bits = new Int32Array(Float32Array.from(logits, (logit) => logit + 0).buffer);
  const keys = Float64Array.from(bits, (word, id) => ((word >> 31) & 0x7fffffff ^ word) * IDS + (IDS - 1 - id));
  return only(weights, keys.sort().subarray(Math.max(0, keys.length - k)));
}

/** The fewest of the heaviest whose mass reaches p; the first always stays. */
function nucleus(weights: Float64Array, total: number, p: number): Float64Array {
  const rest = 2 ** 32 - halfToEven(p * 2 ** 32);
  const bound = total - Number((BigInt(total) * BigInt(rest)) >> 32n);
  const keys = weights.map((weight, id) => weight * IDS + (IDS - 1 - id)).sort();
  let before = 0;
  let first = keys.length;
  do {
    first -= 1;
    before += Math.floor(keys[first]! / IDS);
  } while (first > 0 && before < bound);
  return only(weights, keys.subarray(first));
}

/** Weights of those whose keys are given, 0 for all others. */
function only(weights: Float64Array, keys: Float64Array): Float64Array {
  const kept = new Float64Array(weights.length);
  for (const key of keys) {
    const id = IDS - 1 - (((key % IDS) + IDS) % IDS);
    kept[id] = weights[id]!;
  }
  return kept;
}

/** The first token, by id, whose cumulated weight exceeds u of the total. */
function drawn(weights: Float64Array, total: number, u: number): Pick<Chosen, "token" | "draw"> {
  const target = Number((BigInt(u) * BigInt(total)) >> 32n);
  let high = 0;
  let token = -1;
  while (high <= target && token < weights.length - 1) {
    token += 1;
    high += weights[token]!;
  }
  return { token, draw: { u, target, low: high - weights[token]!, high, total } };
}

/** Ids of the heaviest tokens, in order; among equals the smaller id. */
export function heaviest(weights: Float64Array, count: number): number[] {
  const keys = weights.map((weight, id) => weight * IDS + (IDS - 1 - id)).sort();
  return Array.from(keys.subarray(Math.max(0, keys.length - count)), (key) => IDS - 1 - (key % IDS)).reverse();
}
