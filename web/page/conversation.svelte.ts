// One conversation as the page shows it, and the answer that is being made.
import { ask, type Message, type Timings } from "../core/chat";
import { Pieces, type Piece } from "../core/pieces";

/** A question of the person, or an answer of the model with its tokens and times. */
export class Turn {
  readonly role: "user" | "assistant";
  text = $state("");
  pieces: Piece[] = $state.raw([]);
  rest = $state("");
  finish: string | null = $state(null);
  timings: Timings | null = $state.raw(null);
  fault = $state("");

  constructor(role: "user" | "assistant", text = "") {
    this.role = role;
    this.text = text;
  }
}

/** Turns in order; at most one answer is being made at a time. */
export class Conversation {
  turns: Turn[] = $state([]);
  isBusy = $state(false);
  #stopper: AbortController | null = null;

  /** Say something and have it answered. */
  async say(model: string, text: string): Promise<void> {
    if (this.isBusy) return;
    this.turns.push(new Turn("user", text));
    await this.#answer(model);
  }

  /** Throw the last answer away and have another. */
  async again(model: string): Promise<void> {
    if (this.isBusy || this.turns.at(-1)?.role !== "assistant") return;
    this.turns.pop();
    await this.#answer(model);
  }

  /** End the answer where it is; the server stops computing it. */
  stop(): void {
    this.#stopper?.abort();
  }

  /** Begin anew. */
  clear(): void {
    this.stop();
    this.turns = [];
  }

  async #answer(model: string): Promise<void> {
    const messages = this.#messages();
    const turn = new Turn("assistant");
    this.turns.push(turn);
    const stopper = new AbortController();
    this.#stopper = stopper;
    this.isBusy = true;
    try {
      await follow(turn, model, messages, stopper.signal);
    } catch (error) {
      if (stopper.signal.aborted) turn.finish = "stopped";
      else turn.fault = error instanceof Error ? error.message : String(error);
    } finally {
      if (this.#stopper === stopper) {
        this.#stopper = null;
        this.isBusy = false;
      }
    }
  }

  /** What the server is told: turns that have text. */
  #messages(): Message[] {
    const told = this.turns.filter((turn) => turn.text);
    return told.map((turn) => ({ role: turn.role, content: turn.text }));
  }
}

/** Bring the news of an answer into its turn, at most once per frame that is painted. */
async function follow(
  turn: Turn,
  model: string,
  messages: readonly Message[],
  signal: AbortSignal,
): Promise<void> {
  const pieces = new Pieces();
  let frame = 0;
  const show = () => {
    frame = 0;
    turn.text = pieces.text;
    turn.pieces = [...pieces.all];
    turn.rest = pieces.rest;
  };
  try {
    for await (const news of ask(model, messages, signal)) {
      pieces.add(news.text, news.tokens);
      turn.finish = news.finish ?? turn.finish;
      turn.timings = news.timings ?? turn.timings;
      frame ||= requestAnimationFrame(show);
    }
  } finally {
    cancelAnimationFrame(frame);
    show();
  }
}
