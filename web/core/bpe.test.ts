// The player cuts its text as the merges say, from the left, never across words.
import { describe, expect, it } from "vitest";

import { Player, shownBytes, type Learned } from "./bpe";

const learned: Learned = {
  num_bytes: 9,
  num_tokens: 9,
  steps: [
    { pair: [0, 0], token_id: 3, count: 4, num_tokens: 6, pairs: [[0, 0, 4]] },
    { pair: [3, 1], token_id: 4, count: 2, num_tokens: 4, pairs: [[3, 1, 2]] },
  ],
  vocabulary: ["61", "62", "20", "6161", "616162"],
  words: ["61616162", "20616162"],
};

describe("a player", () => {
  const player = new Player(learned);

  it("stands at any merge", () => {
    expect(player.words(0)).toEqual([
      [0, 0, 0, 1],
      [2, 0, 0, 1],
    ]);
    expect(player.words(1)).toEqual([
      [3, 0, 1],
      [2, 3, 1],
    ]);
    expect(player.words(2)).toEqual([
      [3, 0, 1],
      [2, 4],
    ]);
    expect([player.numSteps, player.length(0), player.length(2)]).toEqual([2, 9, 4]);
  });

  it("names tokens so that all of them can be seen", () => {
    expect(player.texts).toEqual(["a", "b", "\u00b7", "aa", "aab"]);
    expect(["c3a9", "c3", "20c3", "0a"].map(shownBytes)).toEqual(["\u00e9", "\\xc3", "\u00b7\\xc3", "\u21b5"]);
  });
});
