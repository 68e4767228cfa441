// The news of an answer on its way to the page: at most once a frame, and less often where that is slow.
import { flushSync } from "svelte";

import { ask, joined, type Question, type Scored } from "../../core/chat";
import { loopOf } from "../../core/loops";
import { Pieces } from "../../core/pieces";
import type { Painted } from "../../core/way";
import type { Arrived } from "../../core/wire";
import { whenPainted } from "./paints";
import type { Turn } from "./turn.svelte";
import { keepWire } from "./wires";

const HIDDEN_MS = 250; // a page that is not painted gets no frames, but is kept up to date
const SHARE = 4; // painting takes at most this part of the time

const LOOKED_FOR = 16; // a loop is looked for whenever so many tokens came
const MOST_TOKENS = 2048; // of an answer for which nobody set a limit; it can go on from there

/** Bring an answer into its turn. begun: tokens that it is to go on from. One that loops ends there,
 *  as "looped", and one that does not end after MOST_TOKENS, as "enough". */
export async function follow(
  turn: Turn,
  question: Question,
  signal: AbortSignal,
  begun: readonly Scored[] = [],
): Promise<void> {
  const pieces = new Pieces();
  if (begun.length) pieces.add(turn.text, begun);
  const began = performance.now();
  const painted: Painted[] = [];
  const painter = new Painter(() => show(turn, pieces), (isInFrame) => {
    const tokens = pieces.all.length - begun.length;
    whenPainted(isInFrame, () => painted.push({ tokens, at: performance.now() - began }));
  });
  const arrived: Arrived[] = [];
  let lookAt = LOOKED_FOR;
  const note = (text: string): unknown => arrived.push({ at: performance.now() - began, text });
  try {
    for await (const news of ask(question, signal, note)) {
      pieces.add(news.text, news.tokens);
      turn.trace ||= news.id;
      turn.reasoning += news.reasoning;
      if (news.calls.length) turn.calls = joined(turn.calls, news.calls);
      turn.finish = news.finish ?? turn.finish;
      turn.timings = news.timings ?? turn.timings;
      painter.ask();
      if (turn.finish || pieces.all.length - begun.length < lookAt) continue;
      // Who told it to go on from a loop wants the loop.
      const ids = pieces.all.slice(begun.length).map((piece) => piece.token.token_id ?? NaN);
      lookAt = ids.length + LOOKED_FOR;
      const isEnough = question.fields?.max_tokens === undefined && ids.length >= MOST_TOKENS;
      if (!isEnough && !loopOf(ids)) continue;
      turn.finish = isEnough ? "enough" : "looped";
      break; // the stream's reader is cancelled, so the server stops computing
    }
  } finally {
    painter.end();
    if (turn.trace) keepWire(turn.trace, { began, pieces: arrived, painted });
  }
}

function show(turn: Turn, pieces: Pieces): void {
  turn.text = pieces.text;
  turn.pieces = [...pieces.all];
  turn.rest = pieces.rest;
}

/** Paints when asked, once a frame, with pauses that grow with what a painting takes. */
class Painter {
  #frame = 0;
  #timer = 0;
  #notBefore = 0;

  /** drawn: told after each painting, and whether an animation frame was at it. */
  constructor(
    readonly paint: () => void,
    readonly drawn: (isInFrame: boolean) => void,
  ) {}

  ask(): void {
    if (this.#timer) return;
    const wait = Math.max(0, this.#notBefore - performance.now());
    if (wait === 0) this.#frame = requestAnimationFrame(() => this.#paint(true));
    // Frames stop in a window that nobody sees, and may be late on a busy machine.
    this.#timer = window.setTimeout(() => this.#paint(), wait || HIDDEN_MS);
  }

  /** Paint what is left. */
  end(): void {
    this.#paint();
  }

  #paint(isInFrame = false): void {
    cancelAnimationFrame(this.#frame);
    clearTimeout(this.#timer);
    this.#timer = 0;
    const began = performance.now();
    flushSync(this.paint);
    this.drawn(isInFrame);
    const ended = performance.now();
    this.#notBefore = ended + (SHARE - 1) * (ended - began) - 16;
  }
}
