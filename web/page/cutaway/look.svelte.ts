// What is looked at: one answer, and in it a token, a layer and a head that all views share.
import { isKnown } from "../../core/findings";
import { headlineOf } from "../../core/headlines";
import type { Happening } from "../../core/live";
import type { Payloads, Timeline, Tokens } from "../../core/payloads";
import { wordOf } from "../../core/pins";
import type { Place } from "../../core/route";
import { FIRST, stationOf } from "../../core/stations";
import { Dear, isDear, Views, type Cost, type Query, type Seen } from "../../core/views";
import { route } from "../route.svelte";

const RECORDED = ["timeline", "pages", "cost", "characters", "detokenization"]; // cost no replay
const PAUSE_MS = 70; // a hand that scrubs asks for nothing on its way

export class Look {
  readonly views: Views;
  tokens: Tokens | null = $state.raw(null);
  seen: Seen | null = $state.raw(null);
  fault: string = $state("");
  held: readonly Query[] | null = $state.raw(null); // places that there are of the shown view; null: all
  isWaiting = $state(false);
  since = $state(0); // when the waiting began, as performance.now() tells
  foreseen: number | null = $state(null); // seconds that it is to take; null: not told
  isStopped = $state(false); // somebody would not wait for it
  offer: Dear | null = $state.raw(null); // what is not shown before somebody agrees to its price
  #agreed = 0; // seconds
  isWide = $state(false); // the lens over the last positions instead of the chosen one
  form = $state(""); // of a view's figure, where a chapter wants another one first
  asks = $state(""); // what it answers then
  words = $state(""); // that a view works on, where one takes any
  latest: Record<string, unknown> = $state.raw({}); // values of each view as it was seen last
  drawn: Happening[] = $state.raw([]); // each token of the answer, as it was recorded
  facts: Record<string, string> = $state({}); // a number on the map, by view
  numLayers = $state(0); // 0 as long as it is not known
  numHeads = $state(0);
  numGroups = $state(0); // of keys and values

  readonly #pinned: Place | null;

  /** pinned: where it looks, whatever the address says. */
  constructor(trace: string | Views, pinned: Place | null = null) {
    this.views = typeof trace === "string" ? new Views(trace) : trace;
    this.#pinned = pinned;
  }

  get isPinned(): boolean {
    return this.#pinned !== null;
  }

  /** Where it looks. */
  get place(): Place {
    return this.#pinned ?? route.place;
  }

  /** Keep this view beside the one that is shown from now on. */
  pin(): void {
    const { view, step, place } = this;
    route.go({ pin: wordOf({ trace: this.views.trace, place: { ...place, view, step } }) });
  }

  readonly view = $derived(this.place.view ?? FIRST);
  readonly numPrompt = $derived(this.tokens?.num_prompt ?? 0);
  readonly numAnswer = $derived(this.tokens ? this.tokens.texts.length - this.numPrompt : 0);
  /** The token of the answer that is looked at, from 0. */
  readonly step = $derived(Math.max(0, Math.min(this.place.step ?? 0, this.numAnswer - 1)));
  /** The position whose row is read: the one before the token that came of it. */
  readonly position = $derived.by(() => {
    const most = Math.max(0, this.numPrompt + this.numAnswer - 2);
    return Math.min(this.place.position ?? Math.max(0, this.numPrompt + this.step - 1), most);
  });
  /** Whether a token was drawn from that position's row. */
  readonly isDrawn = $derived(this.position >= this.numPrompt - 1);

  /** Tokens of the answer that the shown view can be had at, from a file that has not all; else null. */
  readonly steps = $derived.by(() => {
    const all = this.held?.map((each) => each.token ?? (each.position === undefined ? -1 : each.position - this.numPrompt + 1));
    const steps = [...new Set(all)].filter((step) => step >= 0 && step < this.numAnswer).sort((one, other) => one - other);
    return steps.length ? steps : null;
  });

  /** Layers or heads that the shown view can be had of: all that there are, or those of a file. */
  places(name: "layer" | "head", count: number): number[] {
    const all = this.held ? this.held.flatMap((each) => each[name] ?? []) : Array.from({ length: count }, (_, index) => index);
    return [...new Set(all)].sort((one, other) => one - other);
  }

  /** The one of some steps that a way leads to: so many further, or back. */
  beyond(by: number): number {
    const all = this.steps;
    if (!all) return Math.max(0, Math.min(this.numAnswer - 1, this.step + by));
    const next = by > 0 ? all.find((each) => each > this.step) : all.findLast((each) => each < this.step);
    return next ?? this.step;
  }

  /** Begin: which tokens there are. */
  async begin(): Promise<void> {
    this.tokens = (await this.#recorded("tokens")) as Tokens | null;
  }

  /** Begin, and then the numbers on the map that cost nothing. */
  async open(): Promise<void> {
    if (!this.tokens) await this.begin();
    if (this.tokens) this.drawn = await this.views.drawnTokens();
    for (const view of RECORDED) await this.#recorded(view);
  }

  /** What is on record; null in a file that lacks it. */
  async #recorded(view: string): Promise<unknown> {
    if ((await this.views.held(view))?.length === 0) return null;
    const seen = await this.views.see({ view }, this.#slot("open"));
    this.#note(seen);
    return seen.values;
  }

  #note(seen: Seen): void {
    if (!isKnown(seen.view)) return;
    this.latest = { ...this.latest, [seen.view]: seen.values };
    this.facts[seen.view] = headlineOf(seen.view, seen.values as unknown as Payloads[typeof seen.view]);
    if (seen.view === "timeline") this.numLayers = (seen.values as unknown as Timeline).num_layers;
    const { num_heads: heads, num_shared: shared } = seen.values; // one head's view tells how many read the same keys
    const groups = typeof heads === "number" && typeof shared === "number" ? heads / shared : seen.values.num_groups;
    if (typeof heads === "number" && heads && typeof groups === "number") [this.numHeads, this.numGroups] = [heads, groups];
    const grid = seen.view === "attention" ? (seen.values as unknown as { entropy?: { shape: number[] } }).entropy : null;
    if (grid) this.numHeads = grid.shape[1] ?? this.numHeads;
  }

  /** Choose a position; where a token was drawn there, that step. */
  read(position: number): void {
    const step = position - this.numPrompt + 1;
    if (step >= 0) route.go({ step: Math.min(step, this.numAnswer - 1), position: null }, true);
    else route.go({ position }, true);
  }

  /** Choose a token by its place in prompt and answer: how it came, or what it is. */
  choose(index: number): void {
    const step = index - this.numPrompt;
    if (step >= 0) route.go({ step, position: null }, true);
    else route.go({ position: index }, true);
  }

  /** What the chosen station asks for, or another one. */
  query(view = this.view): Query {
    const station = stationOf(view);
    const { layer, head } = this.place;
    const query: Query = { view };
    for (const name of station.takes) {
      if (name === "position") query.position = this.position;
      else if (name === "token") query.token = this.step;
      else if (name === "layer" && layer !== null) query.layer = layer;
      else if (name === "head" && head !== null && (layer !== null || !station.isMore)) query.head = head;
      else if (name === "text" && this.words) query.text = this.words;
    }
    if (view === "attention" && head === null) delete query.layer;
    if (view === "lens" && (layer !== null || this.isWide)) delete query.position;
    return query;
  }

  /** Show what is asked for, as soon as the hand rests. Gives what ends it. */
  follow(query: Query): () => void {
    this.#wait();
    const timer = setTimeout(() => void this.#see(query), this.seen?.view === query.view ? PAUSE_MS : 0);
    return () => {
      clearTimeout(timer);
      this.views.stop(this.#slot("shown"));
    };
  }

  /** Take what is offered, and from now on what is hardly dearer. */
  accept(): void {
    if (!this.offer) return;
    const { query, cost } = this.offer;
    this.#agreed = 1.5 * cost.seconds;
    this.again(query);
  }

  /** Wait no longer for what is asked for; the server stops computing it. */
  cancel(): void {
    this.views.stop(this.#slot("shown"));
    [this.isWaiting, this.isStopped] = [false, true];
  }

  /** Ask once more for what was cancelled. */
  again(query = this.query()): void {
    this.#wait();
    void this.#see(query);
  }

  #wait(): void {
    [this.isWaiting, this.isStopped, this.offer] = [true, false, null];
    [this.since, this.foreseen] = [performance.now(), null];
  }

  /** Of its own for a pinned one: both may wait at a time. */
  #slot(name: string): string {
    return this.isPinned ? `${name}, pinned` : name;
  }

  async #see(query: Query): Promise<void> {
    try {
      const isFree = query.view === "tokens" || RECORDED.includes(query.view);
      const agrees = (cost: Cost): boolean => {
        this.foreseen = cost.seconds;
        return !isDear(cost) || cost.seconds <= this.#agreed;
      };
      const seen = await this.views.see(query, this.#slot("shown"), isFree ? undefined : agrees);
      this.#note(seen);
      [this.seen, this.held] = [seen, await this.views.held(query.view)];
      this.fault = "";
      this.isWaiting = false;
    } catch (error) {
      if (error instanceof DOMException && error.name === "AbortError") return;
      if (error instanceof Dear) this.offer = error;
      else this.fault = error instanceof Error ? error.message : String(error);
      this.isWaiting = false;
    }
  }
}
