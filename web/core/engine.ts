// What the engine holds at a moment, as GET /cutaway/v1/engine tells it, and a memory of moments.

/** An answer that runs or waits. trace_id: null unless it is one's own. pages: runs [first, count]. */
export interface Running {
  answer: number | null;
  trace_id: string | null;
  choice: number | null;
  num_tokens: number;
  num_computed: number;
  num_prompt_tokens: number;
  num_cached: number | null;
  preemptions: number;
  pages: [number, number][][];
}

export interface Group {
  layers: number[];
  window: number | null;
  is_state: boolean;
  token_bytes: number;
  page_bytes: number;
  num_pages: number;
  free: number;
  cached: number;
  used: number;
  evictions: number;
  map: string; // a letter a page
}

export interface Moment {
  schema: number;
  steps: number;
  running: Running[];
  waiting: Running[];
  batch: {
    number: number;
    seconds: number;
    kernel: string;
    parts: { answer: number; start: number; count: number; rows: number; drafts: number }[];
  } | null;
  groups: Group[];
  counts: Record<string, number>;
  stores?: Store[]; // behind the pages
  pins?: Pin[]; // prefixes that are never evicted
  fleet?: Fleet; // where several engines answer; the other fields are then those of the first
  ranks?: Rank[]; // where the model is divided among several processes
}

/** Where pages are kept besides the cache. spoilt: found with another checksum, and computed again. */
export interface Store {
  kind: string;
  num_bytes: number;
  most_bytes: number;
  pages: number;
  written: number;
  found: number;
  spoilt: number;
}

/** A pinned prefix. found: requests that began with it. */
export interface Pin {
  name: string;
  num_tokens: number;
  num_pages: number;
  num_bytes: number;
  is_ready: boolean;
  found: number;
}

/** What a store is called on the page. */
export function nameOfStore(store: Store): string {
  return store.kind === "host" ? "pages in the host's memory" : "pages of prompts on disk";
}

/** One process of a divided model: bytes of its weights and of its pages. */
export interface Rank {
  rank: number;
  weight_bytes: number;
  page_bytes: number;
  is_gone: boolean;
}

/** One engine of a fleet. engine: what it holds; null while it tells nothing. */
export interface Member {
  name: string;
  state: string;
  starts: number;
  bound: number;
  requests: number;
  waiting_tokens: number;
  prompt_rate: number;
  step_seconds: number;
  numeric_class: string;
  refused: string | null;
  engine: Moment | null;
}

/** Engines behind one server. waiting: requests that none has; resumed: answers by whether their seam was exact. */
export interface Fleet {
  waiting: number;
  resumed: Record<string, number>;
  members: Member[];
  answers?: Placed[];
}

/** One of one's own answers: the engines that had it in turn, and why each. is_exact: of its seams; null without any. */
export interface Placed {
  trace_id: string;
  is_done: boolean;
  num_tokens: number;
  is_exact: boolean | null;
  routes: { member: string; why: string; estimated: number; missing: number }[];
}

const WHY: Readonly<Record<string, string>> = {
  cache: "it was thought to have its beginning",
  idle: "it had nothing to do",
  shortest: "it would begin it soonest",
  only: "no other could take it",
};

/** Why an answer was sent to an engine, in words. */
export function whyOf(route: Placed["routes"][number]): string {
  const words = WHY[route.why] ?? route.why;
  return route.why === "cache" ? `${words}, ${route.estimated} of ${route.estimated + route.missing} tokens` : words;
}

/** What became of an answer between its engines, in words. */
export function placedOf(answer: Placed): string {
  const moves = answer.routes.length - 1;
  if (moves < 1) return answer.is_done ? "whole in one" : "being computed";
  const often = moves === 1 ? "went on once" : `went on ${moves} times`;
  if (answer.is_exact === null) return `${often}, before it had said anything`;
  return `${often}, ${answer.is_exact ? "to the bit" : "not to the bit"}`;
}

/** What one engine of a fleet holds, by its name; of a server with one engine, and for no name, the moment itself. */
export function engineOf(moment: Moment, name: string | null): Moment {
  const member = moment.fleet?.members.find((each) => each.name === name) ?? moment.fleet?.members.find((each) => each.engine);
  return member?.engine ?? moment;
}

/** How many answers went on in another engine, and how many of their seams were not exact, in words. */
export function seamsOf(fleet: Fleet): string {
  const exact = fleet.resumed["true"] ?? 0;
  const torn = fleet.resumed["false"] ?? 0;
  if (!exact && !torn) return "no answer had to go on elsewhere";
  const all = exact + torn;
  return `${all} ${all === 1 ? "answer" : "answers"} went on in another engine, ${torn ? `${torn} not to the bit` : "to the bit"}`;
}

/** How far the prompt of one's own answer is read; null where none is, or several are and nobody knows which. */
export function readingOf(moment: Moment): { done: number; all: number } | null {
  const own = moment.running.filter((each) => each.trace_id !== null && each.num_computed < each.num_prompt_tokens);
  return own.length === 1 ? { done: own[0]!.num_computed, all: own[0]!.num_prompt_tokens } : null;
}

/** Seconds until the prompt is read, by what was read since the first look; null while nothing was. */
export function secondsLeft(
  first: { at: number; done: number },
  now: { at: number; done: number; all: number },
): number | null {
  const speed = (now.done - first.done) / (now.at - first.at);
  return speed > 0 && Number.isFinite(speed) ? (now.all - now.done) / speed : null;
}

/** What the letters of a page map mean. */
export const STATES: Readonly<Record<string, string>> = {
  u: "in use",
  s: "shared by several",
  c: "kept for the next prompt",
  f: "free",
  ".": "scratch",
};

/** One page of a picture, or neighbours that it stands for. */
export interface Brick {
  state: string;
  first: number;
  count: number;
}

/**
 * Pages in a picture of at most so many bricks. Where there are more pages, each long stretch of free ones
 * is one brick; where those that hold something are too many still, each stands for neighbours and is as
 * its busiest one.
 */
export function bricksOf(map: string, most: number): Brick[] {
  if (map.length > most) {
    const runs = [...map.matchAll(/f{9,}|[^]/g)];
    if (runs.length <= most) return runs.map(({ 0: run, index }) => ({ state: run[0]!, first: index, count: run.length }));
  }
  const size = Math.max(1, Math.ceil(map.length / most));
  const order = "suc.f";
  return Array.from({ length: Math.ceil(map.length / size) }, (_, index) => {
    const pages = map.slice(index * size, (index + 1) * size);
    const state = [...order].find((letter) => pages.includes(letter)) ?? "f";
    return { state, first: index * size, count: pages.length };
  });
}

/** One answer's way through time: when it was seen waiting, reading its prompt, and writing. */
export interface Lane {
  answer: number;
  isOwn: boolean;
  tokens: number;
  spans: { state: "waiting" | "prefill" | "decode"; from: number; to: number }[];
}

/** Remembers what answers were doing, as often as somebody looked. Units: seconds. */
export class Watch {
  readonly lanes = new Map<number, Lane>();
  constructor(
    readonly span = 60,
    readonly most = 24,
  ) {}

  add(moment: Moment, now: number): void {
    for (const each of moment.waiting) this.#note(each, "waiting", now);
    for (const each of moment.running) {
      this.#note(each, each.num_computed < each.num_prompt_tokens ? "prefill" : "decode", now);
    }
    // The oldest first; what runs or waits now stays, else it would begin anew at every look.
    for (const [answer, lane] of this.lanes) {
      const seen = lane.spans.at(-1)?.to ?? 0;
      if (seen < now - this.span || (seen < now && this.lanes.size > this.most)) this.lanes.delete(answer);
    }
  }

  #note(each: Running, state: Lane["spans"][number]["state"], now: number): void {
    if (each.answer === null) return;
    const lane = this.lanes.get(each.answer) ?? { answer: each.answer, isOwn: each.trace_id !== null, tokens: 0, spans: [] };
    this.lanes.set(each.answer, lane);
    lane.tokens = each.num_tokens;
    const last = lane.spans.at(-1);
    if (last?.state === state) last.to = now;
    else lane.spans.push({ state, from: last ? last.to : now, to: now });
  }
}
