// What the engine recorded of one answer, in short: read from its events when somebody asks.
import { faultOf, type Timings } from "./chat";
import { EventReader } from "./events";

/** A stage of the pipeline, summed over the steps of an answer. */
export interface Stage {
  name: string;
  seconds: number;
  bytes: number;
  flops: number;
}

/** Sums of one answer. Units: seconds, bytes, FLOPs; null where the engine did not tell. */
export interface Facts {
  dtype: string;
  device: string;
  steps: number;
  kernels: string[];
  stages: Stage[];
  seconds: number | null;
  bytes: number | null;
  flops: number | null;
  detokenize: number | null;
  first: number | null; // from the request's arrival to the first token
}

interface Told {
  schema: number;
  type: string;
  dtype?: string;
  device?: string;
  kernel?: string;
  stages?: Stage[];
  seconds?: number;
  bytes?: number;
  flops?: number;
  timings?: { queue?: number; prefill?: number; decode?: number; detokenize?: number; first_token?: number } | null;
  usage?: { prompt_tokens?: number; completion_tokens?: number; cached_tokens?: number } | null;
  error?: { message?: string };
}

const SCHEMA = 1;

/** The events of an answer that has ended, a line of JSON each. Throws an Error in the server's words. */
export async function linesOf(trace: string): Promise<string[]> {
  const response = await fetch(`/cutaway/v1/traces/${encodeURIComponent(trace)}/events`);
  if (!response.ok) throw new Error(await faultOf(response));
  return new EventReader().add(await response.text());
}

/** What they come to. Throws an Error in the server's words. */
export async function factsOf(trace: string): Promise<Facts> {
  return summed(await linesOf(trace));
}

/** Times of an answer that was stopped, whose stream ended before they came; null where they are not on record. */
export async function timingsOf(trace: string): Promise<Timings | null> {
  const end = (await linesOf(trace)).map((line) => JSON.parse(line) as Told).find((event) => event.type === "end");
  return end ? endTimings(end) : null;
}

/** The times that the last event tells, as an answer's stream tells them. */
export function endTimings({ usage, timings }: Pick<Told, "usage" | "timings">): Timings | null {
  if (!usage || !timings) return null;
  const [tokens, cached, decode] = [usage.completion_tokens ?? 0, usage.cached_tokens ?? 0, timings.decode ?? 0];
  return {
    queue_ms: 1000 * (timings.queue ?? 0),
    prompt_n: (usage.prompt_tokens ?? 0) - cached,
    prompt_ms: 1000 * (timings.prefill ?? 0),
    cache_n: cached,
    predicted_n: tokens,
    predicted_ms: 1000 * decode,
  };
}

/** The sums that events tell. Throws an Error for what this page cannot read. */
export function summed(events: readonly string[]): Facts {
  const nothing = { seconds: null, bytes: null, flops: null, detokenize: null, first: null };
  const facts: Facts = { dtype: "", device: "", steps: 0, kernels: [], stages: [], ...nothing };
  for (const data of events) {
    const event = JSON.parse(data) as Told;
    if (event.schema > SCHEMA) throw new Error(`The server's events have schema ${event.schema}; this page reads ${SCHEMA}.`);
    if (event.type === "error") throw new Error(event.error?.message ?? "The record ends early.");
    take(facts, event);
  }
  return facts;
}

function take(facts: Facts, event: Told): void {
  if (event.type === "start") {
    facts.dtype = event.dtype ?? "";
    facts.device = event.device ?? "";
  } else if (event.type === "step") {
    facts.steps += 1;
    if (event.kernel && !facts.kernels.includes(event.kernel)) facts.kernels.push(event.kernel);
  } else if (event.type === "cost") {
    facts.stages = event.stages ?? [];
    facts.seconds = event.seconds ?? null;
    facts.bytes = event.bytes ?? null;
    facts.flops = event.flops ?? null;
  } else if (event.type === "end") {
    facts.detokenize = event.timings?.detokenize ?? null;
    facts.first = event.timings?.first_token ?? null;
  }
}
