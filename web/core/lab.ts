// What the lab knows of one row: the view of logits, as the sampler takes it.
import type { Tensor } from "./frame";
import type { Before, Setting } from "./sampler";

/** The view `logits` of one token. */
export interface Row {
  token: number;
  seed: string;
  choice: number;
  position: number;
  u: number;
  settings: Setting;
  logits: Tensor;
  said_token_ids: Tensor;
  output_token_ids: Tensor;
  output_counts: Tensor;
  bias_token_ids: Tensor;
  bias: Tensor;
  banned_token_ids: Tensor;
  allowed: Tensor;
  recorded: number;
  top_token_ids: Tensor;
  top_texts: string[];
}

/** Ends and mean of a row's finite logits; mass: the sum of e^(z - most), which softmax divides by. */
export interface Spread {
  least: number;
  most: number;
  mean: number;
  mass: number;
}

export function spreadOf(logits: ArrayLike<number>): Spread {
  const finite = Array.from(logits).filter(isFinite);
  const spread = { least: Infinity, most: -Infinity, mean: 0, mass: 0 };
  for (const each of finite) {
    spread.least = Math.min(spread.least, each);
    spread.most = Math.max(spread.most, each);
    spread.mean += each / finite.length;
  }
  for (const each of finite) spread.mass += Math.exp(each - spread.most);
  return spread;
}

/** Logits of equal steps from the least to the largest, the largest first. share: of the probability. */
export interface Bin {
  from: number;
  to: number;
  count: number;
  share: number;
}

export function binsOf(logits: ArrayLike<number>, count = 16): Bin[] {
  const { least, most, mass } = spreadOf(logits);
  const size = (most - least) / count || 1;
  const bins = Array.from({ length: count }, (_, index) => ({ from: least + index * size, to: least + (index + 1) * size, count: 0, share: 0 }));
  for (const each of Array.from(logits).filter(isFinite)) {
    const bin = bins[Math.min(count - 1, Math.floor((each - least) / size))]!;
    bin.count += 1;
    bin.share += Math.exp(each - most) / mass;
  }
  return bins.reverse();
}

/** What decided the token besides its logits and the settings. */
export function beforeOf(row: Row): Before {
  return {
    said: row.said_token_ids.data,
    output: row.output_token_ids.data,
    counts: row.output_counts.data,
    biased: row.bias_token_ids.data,
    bias: row.bias.data,
    banned: row.banned_token_ids.data,
    allowed: row.allowed.data as Uint8Array,
  };
}

/** A knob of the lab, in the order in which the sampler acts. from, to, step: of its slider. */
export interface Knob {
  name: keyof Setting;
  label: string;
  from: number;
  to: number;
  step: number;
  does: string;
}

export const KNOBS: readonly Knob[] = [
  { name: "repetition_penalty", label: "Repetition penalty", from: 0.5, to: 2, step: 0.05, does: "divides logits of what was said" },
  { name: "presence_penalty", label: "Presence penalty", from: -2, to: 2, step: 0.1, does: "subtracts once from what the answer has" },
  { name: "frequency_penalty", label: "Frequency penalty", from: -2, to: 2, step: 0.1, does: "subtracts for each time it came" },
  { name: "temperature", label: "Temperature", from: 0, to: 2, step: 0.05, does: "tamer below 1, wilder above: divides the logits; 0 takes the largest" },
  { name: "min_p", label: "Min p", from: 0, to: 1, step: 0.01, does: "cuts what has less than this part of the likeliest" },
  { name: "top_k", label: "Top k", from: 0, to: 200, step: 1, does: "keeps so many; 0 keeps all" },
  { name: "top_p", label: "Top p", from: 0, to: 1, step: 0.01, does: "keeps the likeliest until they have this share together" },
];

/** Which token each of so many random numbers would give: how often each came, most often first. */
export function tally(tokens: readonly number[]): [number, number][] {
  const counts = new Map<number, number>();
  for (const token of tokens) counts.set(token, (counts.get(token) ?? 0) + 1);
  return [...counts].sort((one, other) => other[1] - one[1] || one[0] - other[0]);
}
