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
  const usual: Record<string, string> = { top_k: "1", top_p: "0.5", min_p: "0.1", seed: "1", window: "16", batch: "4" };
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

/** Everything that was measured: what it is, of the answer as it was, and of the changed one. */
export function measuresOf({ recorded, changed, num_equal_rows, num_rows, divergence }: Found): [string, string, string][] {
  const spread = (each: Spread): string => `${seconds(each.median)} (${seconds(each.least)} to ${seconds(each.most)})`;
  const rate = ({ rate: each }: Measured): string => `${figure(each.median)} (${figure(each.least)} to ${figure(each.most)})`;
  const both = (name: string, of: (each: Measured) => string): [string, string, string] => [name, of(recorded), of(changed)];
  const rows = [
    both("first text", (each) => spread(each.first_text)),
    both("per token", (each) => spread(each.per_token)),
    both("in all", (each) => spread(each.seconds)),
    both("tokens a second", rate),
    both("tokens computed", (each) => figure(each.num_computed)),
    both("operations", (each) => operations(each.flops)),
    both("bytes moved", (each) => bytes(each.num_bytes)),
    both("its cache", (each) => bytes(each.cache_bytes)),
    both("weights", (each) => bytes(each.weight_bytes)),
  ];
  if (recorded.money !== null) rows.push(both("money", (each) => figure(each.money)));
  rows.push(["rows of logits with the same bits", "", `${num_equal_rows} of ${num_rows}`]);
  if (divergence) rows.push(["the same likeliest token", "", `${divergence.num_same_top} of ${divergence.kl.length} steps`]);
  return rows;
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
