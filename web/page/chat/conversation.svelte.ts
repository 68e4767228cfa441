// One conversation as the page shows it, and the answer that is being made.
import type { Call, Message, Scored } from "../../core/chat";
import { timingsOf } from "../../core/facts";
import { Pieces } from "../../core/pieces";
import { NOTHING_SET, requestFields, type Settings } from "../../core/sampling";
import { newId, type KeptChat } from "../../core/transfer";
import { byParent, leafUnder, messagesOf, openCalls, pathTo } from "../../core/tree";
import { follow } from "./following";
import { keepTokens, leave, tokensOf } from "./store";
import { Turn } from "./turn.svelte";

const MOST_TITLE = 60;
const ENDED_HERE: ReadonlySet<string> = new Set(["stopped", "looped", "enough"]);
const KEEP_MS = 2000; // what a page that closes amid an answer may lose
const task = (): Promise<void> => new Promise((resume) => setTimeout(resume));

/** Turns as a tree, of which one path is shown; at most one answer is being made at a time. */
export class Conversation {
  readonly id: string;
  title = $state("");
  changed = $state(0);
  turns: Turn[] = $state.raw([]);
  leaf: string | null = $state(null);
  settings: Settings = $state(NOTHING_SET);
  isBusy = $state(false);
  readonly path = $derived(pathTo(this.turns, this.leaf));

  /** What the server was told for an answer of this conversation; null for any other. */
  toldFor(trace: string): Message[] | null {
    const at = trace ? this.path.findIndex((turn) => turn.trace === trace) : -1;
    return at < 0 ? null : messagesOf(this.settings.system, this.path.slice(0, at));
  }

  readonly #groups = $derived(byParent(this.turns));
  readonly openCalls: Call[] = $derived(this.isBusy ? [] : openCalls(this.path));
  #stopper: AbortController | null = null;
  #keep: (chat: KeptChat) => void;

  constructor(keep: (chat: KeptChat) => void, settings: Settings = NOTHING_SET, id = newId()) {
    this.#keep = keep;
    this.settings = settings;
    this.id = id;
  }

  /** A conversation as it was kept. */
  static from(kept: KeptChat, keep: (chat: KeptChat) => void): Conversation {
    const chat = new Conversation(keep, kept.settings, kept.id);
    chat.title = kept.title;
    chat.changed = kept.changed;
    chat.turns = kept.turns.map((turn) => Turn.from(turn));
    chat.leaf = kept.leaf;
    return chat;
  }

  /** The conversation as it is to be kept. */
  kept(): KeptChat {
    const { id, title, changed, leaf } = this;
    const settings = $state.snapshot(this.settings);
    return { id, title, changed, leaf, settings, turns: this.turns.map((turn) => turn.kept()) };
  }

  /** Read the tokens of the path that is shown. */
  async readTokens(): Promise<void> {
    for (const turn of this.path) {
      if (turn.role !== "assistant" || turn.pieces.length || !turn.text) continue;
      const pieces = new Pieces();
      pieces.add(turn.text, await tokensOf(turn.id));
      if (!turn.pieces.length) [turn.pieces, turn.rest] = [pieces.all, pieces.rest];
    }
  }

  /** Take in what another tab kept of this conversation; what is being written here stays. */
  take(kept: KeptChat): void {
    if (this.isBusy) return;
    const own = new Map(this.turns.map((turn) => [turn.id, turn]));
    const isNew = kept.turns.map((turn) => own.get(turn.id)?.take(turn) ?? true).some(Boolean);
    if (!isNew) return;
    this.turns = kept.turns.map((turn) => own.get(turn.id) ?? Turn.from(turn));
    this.title = kept.title;
    // Follow the other tab where it went on from what is shown here.
    if (pathTo(this.turns, kept.leaf).some((turn) => turn.id === this.leaf)) this.leaf = kept.leaf;
    void this.readTokens();
  }

  /** Say something and have it answered. */
  async say(model: string, text: string): Promise<void> {
    if (this.isBusy) return;
    this.#add(new Turn("user", this.leaf, text));
    this.title ||= text.replace(/\s+/g, " ").slice(0, MOST_TITLE);
    await this.#answer(model);
  }

  /** Have another answer beside one. */
  async again(model: string, turn: Turn): Promise<void> {
    if (this.isBusy) return;
    this.leaf = turn.parent;
    await this.#answer(model);
  }

  /** Say something else in a turn's place: a branch beside it, answered. */
  async edit(model: string, turn: Turn, text: string): Promise<void> {
    if (this.isBusy) return;
    this.leaf = turn.parent;
    this.#add(new Turn("user", turn.parent, text));
    await this.#answer(model);
  }

  /** Go on from a token of an answer with another in its place: a branch beside it. */
  async fork(model: string, turn: Turn, index: number, token: Scored): Promise<void> {
    if (this.isBusy) return;
    const before = turn.pieces.slice(0, index).map((piece) => piece.token);
    const begun = [...before, token];
    this.leaf = turn.parent;
    const text = turn.pieces.slice(0, index).reduce((whole, piece) => whole + piece.text, "");
    await this.#answer(model, begun, text + token.token, index);
  }

  /** Go on behind the last token of an answer that was stopped or cut off: a branch beside it. */
  async goOn(model: string, turn: Turn): Promise<void> {
    if (this.isBusy) return;
    this.leaf = turn.parent;
    const begun = turn.pieces.map((piece) => piece.token);
    await this.#answer(model, begun, turn.text, turn.forkedAt);
  }

  /** Answer a call of the model in the tool's place; when all are answered the model goes on. */
  async giveResult(model: string, call: Call, text: string): Promise<void> {
    if (this.isBusy) return;
    const turn = new Turn("tool", this.leaf, text);
    turn.call = call.id;
    this.#add(turn);
    if (!openCalls(this.path).length) await this.#answer(model);
    else this.save();
  }

  /** The turns that stand in one's place, itself among them. */
  beside(turn: Turn): Turn[] {
    return this.#groups.get(turn.parent) ?? [turn];
  }

  /** Show the branch that stands so many places beside a turn. */
  turnTo(turn: Turn, by: 1 | -1): void {
    if (this.isBusy) return;
    const all = this.beside(turn);
    const other = all[all.indexOf(turn) + by];
    if (!other) return;
    this.leaf = leafUnder(this.turns, other.id);
    void this.readTokens();
    this.save();
  }

  /** End the answer where it is; the server stops computing it. */
  stop(): void {
    this.#stopper?.abort();
  }

  /** Keep the conversation as it is. */
  save(): void {
    this.changed = Date.now();
    this.#keep(this.kept());
  }

  #add(turn: Turn): void {
    this.turns = [...this.turns, turn];
    this.leaf = turn.id;
  }

  async #answer(model: string, begun: Scored[] = [], text = "", forkedAt = -1): Promise<void> {
    const before = this.path;
    this.#add(new Turn("assistant", this.leaf));
    const turn = this.turns.at(-1)!;
    turn.forkedAt = forkedAt;
    const stopper = new AbortController();
    this.#stopper = stopper;
    this.isBusy = true;
    let numKept = 0;
    const tokens = (): Scored[] => turn.pieces.map((piece) => piece.token);
    const keep = (): void => {
      this.save();
      const all = tokens();
      // What this browser does not take is told of by the conversation, which it then does not take either.
      void keepTokens(turn.id, all, numKept).then(() => (numKept = all.length), () => undefined);
    };
    let isLeaving = false;
    // Before the page goes: when it goes, the stream has broken off, and that would pass for a fault.
    const close = (): void => {
      isLeaving = true;
      leave(this.id, turn.kept(), numKept, tokens().slice(numKept));
    };
    keep();
    const keeper = setInterval(keep, KEEP_MS);
    addEventListener("beforeunload", close);
    try {
      const messages = messagesOf(this.settings.system, before);
      const fields = requestFields(this.settings);
      const ids = begun.map((token) => token.token_id ?? 0);
      turn.text = text;
      await follow(turn, { model, messages, fields, begun: ids }, stopper.signal, begun);
    } catch (error) {
      if (stopper.signal.aborted) turn.finish = "stopped";
      else if (!isLeaving) turn.fault = error instanceof Error ? error.message : String(error);
    } finally {
      this.#stopper = null;
      clearInterval(keeper);
      // Each in a task of its own: what is left of the answer, what can be done with it and with all others, its keeping.
      await task();
      this.isBusy = false;
      await task();
      removeEventListener("beforeunload", close);
      keep();
      if (turn.trace && !turn.timings && ENDED_HERE.has(turn.finish ?? "")) void this.#askTimings(turn);
    }
  }

  /** What an answer cost whose stream was ended from here: the engine tells once it has noticed. */
  async #askTimings(turn: Turn): Promise<void> {
    turn.timings = await timingsOf(turn.trace).catch(() => null);
    if (turn.timings) this.save();
  }
}
