// One conversation as the page shows it, and the answer that is being made.
import type { Call, Scored } from "../../core/chat";
import { Pieces } from "../../core/pieces";
import { NOTHING_SET, requestFields, type Settings } from "../../core/sampling";
import { newId, type KeptChat } from "../../core/transfer";
import { branches, leafUnder, messagesOf, openCalls, pathTo } from "../../core/tree";
import { follow } from "./following";
import { keepTokens, tokensOf } from "./store";
import { Turn } from "./turn.svelte";

const MOST_TITLE = 60;

/** Turns as a tree, of which one path is shown; at most one answer is being made at a time. */
export class Conversation {
  readonly id: string;
  title = $state("");
  changed = $state(0);
  turns: Turn[] = $state([]);
  leaf: string | null = $state(null);
  settings: Settings = $state(NOTHING_SET);
  isBusy = $state(false);
  readonly path = $derived(pathTo(this.turns, this.leaf));
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
    await this.#answer(model, begun, text, index);
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

  /** Show the branch that stands so many places beside a turn. */
  turnTo(turn: Turn, by: 1 | -1): void {
    if (this.isBusy) return;
    const all = branches(this.turns, turn);
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
    this.turns.push(turn);
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
    this.save();
    try {
      const messages = messagesOf(this.settings.system, before);
      const fields = requestFields(this.settings);
      const ids = begun.map((token) => token.token_id ?? 0);
      if (begun.length) turn.text = text + begun.at(-1)!.token;
      await follow(turn, { model, messages, fields, begun: ids }, stopper.signal, begun);
    } catch (error) {
      if (stopper.signal.aborted) turn.finish = "stopped";
      else turn.fault = error instanceof Error ? error.message : String(error);
    } finally {
      this.#stopper = null;
      this.isBusy = false;
      this.save();
      void keepTokens(turn.id, turn.pieces.map((piece) => piece.token));
    }
  }
}
