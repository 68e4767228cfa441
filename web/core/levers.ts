// One thing of an answer changed: what there is to change, how it is asked for, and what it did.
import { faultOf } from "./chat";
import { EventReader } from "./events";
import type { Value } from "./frame";
import { KNOBS } from "./lab";
import { bytes, figure, operations, seconds, share } from "./numbers";

/** A lever as the server tells it. refused: why it cannot be pulled here. */
export interface Lever {
  name: string;
  meaning: string;
  group: string;
  kind: "number" | "whole" | "choice" | "text" | "token" | "layer" | "patch";
  least: number | null;
  most: number | null;
  is_open: boolean;
  num_heads: number | null;
  choices: string[];
  now: string | null;
  refused: string | null;
}

interface Spread {
  median: number;
  least: number;
  most: number;
}

/** What one side took. Units: seconds, tokens, operations, bytes. */
export interface Measured {
  first_text: Spread;
  per_token: Spread;
  seconds: Spread;
  rate: Spread;
  num_computed: number;
  flops: number;
  num_bytes: number;
  cache_bytes: number;
  weight_bytes: number;
  money: number | null;
}

/** What was found: docs/compare.md. An infinite KL is null. */
export interface Found {
  change: string;
  first_difference: number | null;
  recorded_token_ids: number[];
  changed_token_ids: number[];
  recorded_pieces: string[];
  changed_pieces: string[];
  recorded_text: string;
  changed_text: string;
  num_equal_rows: number;
  num_rows: number;
  is_as_served: boolean;
  is_repeatable: boolean;
  are_whole: boolean;
  divergence: { of: "model" | "draw"; kl: (number | null)[]; distance: number[]; num_same_top: number } | null;
  recorded: Measured;
  changed: Measured;
  num_runs: number;
  notes: string[];
}

/** How far it is. */
export interface Progress {
  part: "recorded" | "changed" | "chances";
  num_done: number;
  num_parts: number;
  num_tokens: number;
  most_tokens: number;
}

/** What a comparison is asked with. */
export interface Wish {
  change: string;
  runs: number;
  max_tokens: number;
  price?: number;
}

/** All levers of the server's model. Throws an Error in its words. */
export async function levers(): Promise<Lever[]> {
  const response = await fetch("/cutaway/v1/levers");
  if (!response.ok) throw new Error(await faultOf(response));
  return ((await response.json()) as { levers: Lever[] }).levers;
}

/** Compare; far hears how far it is. Ending the signal ends the work. Throws an Error in the server's words. */
export async function compare(trace: string, wish: Wish, signal: AbortSignal, far: (progress: Progress) => void): Promise<Found> {
  const response = await fetch(`/cutaway/v1/traces/${encodeURIComponent(trace)}/compare`, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify({ ...wish, stream: true }),
    signal,
  });
  if (!response.ok || !response.body) throw new Error(await faultOf(response));
  const reader = response.body.getReader();
  const [events, decoder] = [new EventReader(), new TextDecoder()];
  for (;;) {
    const { done, value } = await reader.read();
    if (done) throw new Error("the server closed the stream before the comparison's end.");
    for (const data of events.add(decoder.decode(value, { stream: true }))) {
      const told = JSON.parse(data) as (Found & { type: "comparison" }) | (Progress & { type: "progress" }) | { type?: undefined; error: { message: string } };
      if (told.type === "comparison") return told;
      if (told.type === "progress") far(told);
      else throw new Error(told.error.message);
    }
  }
}

/** The part of a comparison that is done, from 0 to 1. */
export const doneOf = (far: Progress): number =>
  (far.num_done + Math.min(1, far.num_tokens / Math.max(1, far.most_tokens))) / far.num_parts;

/** The ends of a slider: where people look, within what the server allows; null where a slider is of no use. */
export function sliderOf(lever: Lever): { from: number; to: number; step: number } | null {
  const knob = KNOBS.find((each) => each.name === lever.name);
  if (!knob) return null;
  return { from: Math.max(knob.from, lever.least ?? knob.from), to: Math.min(knob.to, lever.most ?? knob.to), step: knob.step };
}

/** A value to begin with that differs from the answer's own, where that is known. */
export function valueOf(lever: Lever, own: Readonly<Record<string, number>>, numPrompt: number): string {
  const now = own[lever.name];
  if (lever.name === "temperature") return now === 0 ? "1" : "0";
  if (lever.kind === "choice") return lever.choices.find((each) => each !== (lever.now ?? "on")) ?? lever.choices[0] ?? "";
  if (lever.kind === "layer") return String(Math.floor((lever.most ?? 0) / 2));
  if (lever.kind === "patch") return `${Math.floor((lever.most ?? 0) / 2)}@${Math.max(0, numPrompt - 1)}:zero`;
  if (lever.name === "context") return String(Math.max(1, numPrompt >> 1));
  const usual: Record<string, string> = { top_k: "1", top_p: "0.5", min_p: "0.1", seed: "1", window: "16", batch: "4", prefill_chunk: "8", page_size: "32" };
  return usual[lever.name] ?? (lever.kind === "text" || lever.kind === "token" ? "" : String(now ?? lever.now ?? 1));
}

/** The change in the words of `cutaway compare --change`. */
export const changeOf = (lever: Lever, value: string, step: number): string =>
  `${lever.name}${lever.kind === "token" ? `@${step}` : ""}=${value}`;

/** What a lever's values may be, in words. */
export function rangeOf(lever: Lever): string {
  if (lever.kind === "choice") return `one of ${lever.choices.join(", ")}`;
  const ends = `${lever.is_open ? "above" : "from"} ${figure(lever.least)} ${lever.is_open ? "and at most" : "to"} ${figure(lever.most)}`;
  if (lever.kind === "number" || lever.kind === "whole") return `${lever.kind === "whole" ? "whole, " : ""}${ends}`;
  if (lever.kind === "layer") return `layers ${ends}, heads from 0 to ${(lever.num_heads ?? 1) - 1}`;
  if (lever.kind === "patch") return `layers ${ends}`;
  return lever.kind === "token" ? `an id ${ends}, or a text` : "";
}

/** Mean of the finite KL in nats, infinite where none is finite; and how many are infinite. */
export function klOf(found: Found): { mean: number; infinite: number } | null {
  if (!found.divergence) return null;
  const finite = found.divergence.kl.filter((each) => each !== null);
  const mean = finite.length ? finite.reduce((sum, each) => sum + each, 0) / finite.length : Infinity;
  return { mean, infinite: found.divergence.kl.length - finite.length };
}

/** Where the two part, in words. */
export function partingOf(found: Found): string {
  const most = Math.max(found.recorded_pieces.length, found.changed_pieces.length);
  return found.first_difference === null ? `the very same ${most} tokens` : `from token ${found.first_difference} of ${most}`;
}

/** By how much a number changed: in percent, or in times where it is far. */
function moved(before: number, after: number): string {
  if (before === after) return "the same";
  const times = after / before;
  if (!(times > 0 && Number.isFinite(times))) return "";
  if (times >= 2) return `${figure(times)} times`;
  return times <= 0.5 ? `${figure(1 / times)} times less` : `${times > 1 ? "+" : "\u2212"}${share(Math.abs(times - 1))}`;
}

/** What was measured: its name, of the answer as it was, of the changed one, and the difference. */
export type Measure = [name: string, before: string, after: string, difference: string];

/** Everything that was measured. What one side's own runs differ by is told of each difference. */
export function measuresOf({ recorded, changed, num_equal_rows, num_rows, divergence, num_runs }: Found): Measure[] {
  const spread = (name: string, of: (each: Measured) => Spread, told: (value: number) => string): Measure => {
    const [one, other] = [of(recorded), of(changed)];
    const inWords = (each: Spread): string => (num_runs > 1 ? `${told(each.median)} (${told(each.least)} to ${told(each.most)})` : told(each.median));
    const isNoise = num_runs > 1 && one.least <= other.most && other.least <= one.most;
    return [name, inWords(one), inWords(other), `${moved(one.median, other.median)}${isNoise ? ", ranges overlap" : ""}`];
  };
  const both = (name: string, of: (each: Measured) => number, told: (value: number) => string): Measure => [
    name,
    told(of(recorded)),
    told(of(changed)),
    moved(of(recorded), of(changed)),
  ];
  const rows = [
    spread("first text", (each) => each.first_text, seconds),
    spread("per token", (each) => each.per_token, seconds),
    spread("in all", (each) => each.seconds, seconds),
    spread("tokens a second", (each) => each.rate, figure),
    both("tokens computed", (each) => each.num_computed, figure),
    both("operations", (each) => each.flops, operations),
    both("bytes moved", (each) => each.num_bytes, bytes),
    both("its cache", (each) => each.cache_bytes, bytes),
    both("weights", (each) => each.weight_bytes, bytes),
  ];
  if (recorded.money !== null && changed.money !== null) rows.push(both("money", (each) => each.money ?? 0, figure));
  rows.push(["rows of logits with the same bits", "", `${num_equal_rows} of ${num_rows}`, ""]);
  if (divergence) rows.push(["the same likeliest token", "", `${divergence.num_same_top} of ${divergence.kl.length} steps`, ""]);
  return rows;
}

/** What so many runs of each side can tell. Without any effect both ranges lie apart in 2 of (2n over n) orders. */
export function noiseOf(runs: number): string {
  if (runs < 2) return "One run of each side does not tell a change from noise; take more runs.";
  let orders = 1;
  for (let each = 1; each <= runs; each += 1) orders *= (runs + each) / each;
  return (
    "Where ranges overlap, the change is no larger than what one side's own runs differ by. " +
    `With ${runs} runs of each side they lie apart by chance in ${share(2 / orders)} of all cases.`
  );
}

/** What was found, as far as a table has no room for it in one cell. */
export function stepsOf(found: Found): { [name: string]: Value } {
  const most = Math.max(found.recorded_pieces.length, found.changed_pieces.length);
  const padded = (list: readonly (string | number | null)[]): Value => Array.from({ length: most }, (_, index) => list[index] ?? null);
  const { divergence } = found;
  return {
    recorded: padded(found.recorded_pieces),
    changed: padded(found.changed_pieces),
    ...(divergence && { kl_in_nats: padded(divergence.kl.map((each) => each ?? "infinite")), mass_that_moved: padded(divergence.distance) }),
  };
}

/** How far chances moved, in words. */
export function movedOf(found: Found): string {
  const [kl, of] = [klOf(found), found.divergence?.of === "draw" ? "the draw" : "the model"];
  if (!kl) return "Chances are the same ones by intent; the bits of their rows are compared.";
  const endless = kl.infinite ? `, infinite in ${kl.infinite} steps, where what could come cannot any more` : "";
  const worst = Math.max(0, ...found.divergence!.distance);
  return `Chances of ${of}, step by step on the tokens of the answer: KL ${figure(kl.mean, 4)} nats on average${endless}; at most ${share(worst)} of the mass moved.`;
}
