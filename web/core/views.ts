// Asks the server for views of one answer: each question once, the last one of a kind alone.
import { faultOf } from "./chat";
import { linesOf } from "./facts";
import { shownOf, type Shown } from "./frame";
import type { Happening } from "./live";
import { figure, operations, seconds } from "./numbers";
import type { Sampling, Tokens } from "./payloads";
import type { Made } from "./python";
import { before, joined } from "./wholetokens";

/** Places that a view is asked for; what is left out is left to the view. */
export interface Query {
  view: string;
  position?: number;
  token?: number;
  layer?: number;
  head?: number;
  expert?: number;
  top?: number;
  text?: string;
  start?: number;
}

/** Places that a selection chooses, the weightiest first. */
export const PLACES = ["token", "position", "layer", "head"] as const;

/** A question without the view's name: the place that it asks for. */
export function placeOf({ view: _, ...place }: Query): Omit<Query, "view"> {
  return place;
}

/** A place in words, as far as it answers a question. */
export function placed(query: Query, asked: Query): string {
  // Tokens of an answer are counted from 1 wherever they are shown, as people count.
  const told = (name: (typeof PLACES)[number]): string => `${name} ${query[name]! + (name === "token" ? 1 : 0)}`;
  return PLACES.filter((name) => query[name] !== undefined && asked[name] !== undefined).map(told).join(", ");
}

/** A view and what it took. seconds: from the question to the last byte; null where nobody waited. */
export interface Seen extends Shown {
  query: Query;
  numBytes: number;
  seconds: number | null;
  cost?: Cost | null; // where it was asked for before
}

/** What a view would take. seconds: on the server's machine, at the pace that it measured there. */
export interface Cost {
  num_tokens: number; // that go through the model again
  flops: number;
  num_bytes: number; // of inner values
  seconds: number;
}

/** Whether one is asked before. Little work that takes long waits for others: that is no price. */
export const isDear = (cost: Cost): boolean => cost.seconds > 2 && cost.flops > 1e9;

/** What a view would take, in words. */
export function priceOf(name: string, query: Query, cost: Cost): string {
  const rough = (value: number): number => Number(value.toPrecision(2));
  const places = placed(query, query);
  return (
    `${name}${places ? ` at ${places}` : ""}: ${figure(cost.num_tokens)} tokens go through the model again, about ` +
    `${operations(rough(cost.flops))}, about ${seconds(rough(cost.seconds))} on this machine.`
  );
}

/** A view that costs more than was agreed to; nothing was computed. */
export class Dear extends Error {
  constructor(
    readonly query: Query,
    readonly cost: Cost,
  ) {
    super("this view costs more than was agreed to.");
  }
}

/** The server's word that it has no such answer, or no such view of it. */
export class Refused extends Error {
  constructor(
    readonly status: number,
    message: string,
  ) {
    super(message);
  }
}

const MOST = 128; // answers kept; an attention matrix of 256 tokens is 256 KiB

export class Views {
  readonly trace: string;
  #kept = new Map<string, Seen>();
  #running = new Map<string, AbortController>();

  constructor(trace: string) {
    this.trace = trace;
  }

  /**
   * What a view shows. A further question in the same slot ends the one before, whose promise is
   * then rejected with an AbortError; the server stops computing it. agrees: is asked for the price
   * of what is not here yet; without it nobody cares. Rejects with Dear where it says no.
   */
  async see(query: Query, slot = query.view, agrees?: (cost: Cost) => boolean): Promise<Seen> {
    this.stop(slot);
    const key = JSON.stringify(query, Object.keys(query).sort());
    const kept = this.#kept.get(key);
    if (kept) return kept;
    const stopper = new AbortController();
    this.#running.set(slot, stopper);
    try {
      const cost = agrees ? await this.#price(query, stopper.signal) : null;
      if (cost && !agrees?.(cost)) throw new Dear(query, cost);
      const seen = await this.#whole({ ...(await this.#ask(query, stopper.signal)), cost }, stopper.signal);
      this.#kept.set(key, seen);
      if (this.#kept.size > MOST) this.#kept.delete(this.#kept.keys().next().value!);
      return seen;
    } finally {
      if (this.#running.get(slot) === stopper) this.#running.delete(slot);
    }
  }

  /** All that was seen so far. */
  seen(): Seen[] {
    return [...this.#kept.values()];
  }

  /** End the question in a slot. */
  stop(slot: string): void {
    this.#running.get(slot)?.abort();
    this.#running.delete(slot);
  }

  /** The places at which a view is there; null where it can be asked for anywhere. */
  held(_view: string): Promise<readonly Query[] | null> {
    return Promise.resolve(null);
  }

  /** The record of each token of the answer. */
  async drawnTokens(): Promise<Happening[]> {
    return (await linesOf(this.trace)).map((line) => JSON.parse(line) as Happening).filter((event) => event.type === "token");
  }

  /** What makes this answer again, for whoever wants it in Python. */
  async made(): Promise<Made> {
    const models = (await (await fetch("/v1/models")).json()) as { data: { id: string; about?: { settings?: Record<string, string> } }[] };
    const tokens = (await this.see({ view: "tokens" }, "made")).values as unknown as Tokens;
    const [ids, numPrompt] = [tokens.token_ids, tokens.num_prompt];
    const [served] = models.data;
    return { ...(await this.drawn()), model: served?.id ?? "", build: served?.about?.settings ?? {}, prompt: ids.slice(0, numPrompt), numTokens: ids.length - numPrompt };
  }

  /** With which settings, and of which seed. */
  protected async drawn(): Promise<Pick<Made, "settings" | "seed">> {
    const sampling = (await this.see({ view: "sampling" }, "made")).values as unknown as Sampling;
    return { settings: sampling.settings, seed: sampling.draw_effect?.seed ?? null };
  }

  /** Forget everything: the answer went on. */
  forget(): void {
    this.#kept.clear();
  }

  /** Tokens come page by page where they are many; they are shown as one. */
  async #whole(seen: Seen, signal: AbortSignal): Promise<Seen> {
    if (seen.view !== "tokens" || seen.query.start !== undefined) return seen;
    let [tokens, numBytes] = [seen.values as unknown as Tokens, seen.numBytes];
    const size = tokens.texts.length;
    for (let start = before(tokens, size); start !== null; start = before(tokens, size)) {
      const page = await this.#ask({ ...seen.query, start }, signal);
      tokens = joined(page.values as unknown as Tokens, tokens);
      numBytes += page.numBytes;
    }
    return { ...seen, values: tokens as unknown as Seen["values"], numBytes };
  }

  async #price(query: Query, signal: AbortSignal): Promise<Cost> {
    return (await (await this.#post({ ...query, only_cost: true }, signal)).json()) as Cost;
  }

  async #post(body: object, signal: AbortSignal): Promise<Response> {
    const response = await fetch(`/cutaway/v1/traces/${encodeURIComponent(this.trace)}/views`, {
      method: "POST",
      headers: { "content-type": "application/json", accept: "application/octet-stream" },
      body: JSON.stringify(body),
      signal,
    });
    if (!response.ok) throw new Refused(response.status, await faultOf(response));
    return response;
  }

  async #ask(query: Query, signal: AbortSignal): Promise<Omit<Seen, "cost">> {
    const began = performance.now();
    const bytes = await (await this.#post(query, signal)).arrayBuffer();
    return { ...shownOf(bytes), query, numBytes: bytes.byteLength, seconds: (performance.now() - began) / 1000 };
  }
}
