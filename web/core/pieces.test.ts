// Tokens over text: whatever bytes they have, whichever are shown, and however late the text comes.
import { describe, expect, it } from "vitest";

import type { Scored } from "./chat";
import { Pieces } from "./pieces";

const bytesOf = (text: string): number[] => [...new TextEncoder().encode(text)];
const scored = (bytes: number[]): Scored => ({ token: "?", bytes, logprob: -1 });

/** Numbers from 0 up to a limit, the same at every run. */
function drawing(seed: number): (limit: number) => number {
  let state = seed;
  return (limit) => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return Math.floor((state / 2 ** 32) * limit);
  };
}

describe("pieces", () => {
  it("go on behind a control token amid half a character", () => {
    const pieces = new Pieces();
    pieces.add("", [scored([0xc3])]);
    pieces.add("", [scored(bytesOf("<end>"))]);
    for (const letter of "abc") pieces.add(letter === "a" ? "\ufffda" : letter, [scored(bytesOf(letter))]);
    expect(pieces.all.map((piece) => piece.text)).toEqual(["", "", "\ufffda", "b", "c"]);
  });

  it("account for all of a text of random bytes, between control tokens, late or not", () => {
    for (let seed = 1; seed <= 20; seed += 1) {
      const draw = drawing(seed);
      const reader = new TextDecoder("utf-8", { ignoreBOM: true });
      const pieces = new Pieces();
      let text = "";
      let late = "";
      for (let index = 0; index < 100; index += 1) {
        const isControl = draw(20) === 0;
        const bytes = isControl ? bytesOf("<end>") : [draw(256), ...(draw(2) ? [draw(128)] : [])];
        late += isControl ? "" : reader.decode(Uint8Array.from(bytes), { stream: true });
        const cut = draw(3) ? late.length : draw(late.length + 1);
        pieces.add(late.slice(0, cut), [scored(bytes)]);
        text += late.slice(0, cut);
        late = late.slice(cut);
      }
      pieces.add(late, []);
      text += late;
      expect(pieces.all.map((piece) => piece.text).join("") + pieces.rest).toBe(text);
      expect(pieces.rest).toBe("");
    }
  });
});
