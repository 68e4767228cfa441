// The raw stream of an answer as it reached this browser, and the frames that it was made of.
import { newsOf } from "./chat";

/** A piece of the stream, cut where the network cut it. at: milliseconds since the question was sent. */
export interface Arrived {
  at: number;
  text: string;
}

/** One event of the stream. Units: milliseconds since the question was sent; bytes of UTF-8. */
export interface WireFrame {
  at: number; // when its last byte was there
  sent: number; // in milliseconds of the server's clock; NaN where it did not tell
  raw: string; // with the blank line that ends it
  bytes: number;
  text: string; // what it adds to the answer
  tokens: number[]; // which tokens of the answer it brings, from 0
}

/** The frames of pieces: an event ends with a blank line, wherever the network cut. */
export function framesOf(pieces: readonly Arrived[]): WireFrame[] {
  const frames: WireFrame[] = [];
  let [rest, token] = ["", 0];
  for (const { at, text } of pieces) {
    const parts = (rest + text).split("\n\n");
    rest = parts.pop() ?? "";
    for (const part of parts) {
      const raw = `${part}\n\n`;
      const said = saidBy(part);
      const tokens = said.tokens.map(() => token++);
      frames.push({ at, raw, bytes: new TextEncoder().encode(raw).length, sent: said.sent, text: said.text, tokens });
    }
  }
  return frames;
}

function saidBy(part: string): { sent: number; text: string; tokens: unknown[] } {
  try {
    const { sent, text, reasoning, tokens } = newsOf(part.replace(/^data: ?/, ""));
    return { sent, text: reasoning + text, tokens };
  } catch {
    return { sent: NaN, text: "", tokens: [] }; // a comment, [DONE], or a fault: its raw form says it all
  }
}
