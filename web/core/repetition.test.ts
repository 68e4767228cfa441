// Repetition: the very worked examples that the engine's side is held to.
import { describe, expect, it } from "vitest";

import { endOf, repeatsOf, saidAgain, SIZES } from "./repetition";

// tests/views/test_views_repetition.py has the same rows: tokens, [again, all] by size, said again.
const WORKED: [number[], [number, number][], number][] = [
  [[], [[0, 0], [0, 0], [0, 0], [0, 0]], 0],
  [[5], [[0, 1], [0, 0], [0, 0], [0, 0]], 0],
  [[1, 2, 3], [[0, 3], [0, 2], [0, 1], [0, 0]], 0],
  [[1, 2, 1, 2, 1], [[3, 5], [2, 4], [1, 3], [0, 2]], 3],
  [[7, 7, 7, 7, 7], [[4, 5], [3, 4], [2, 3], [1, 2]], 4],
  [[1, 2, 3, 9, 2, 3], [[2, 6], [1, 5], [0, 4], [0, 3]], 2],
];

describe("repetition", () => {
  it.each(WORKED)("of %j is counted as the engine counts it", (ids, expected, again) => {
    const found = SIZES.map((size) => repeatsOf(ids, size));
    expect(found.map((each) => [each.num_again, each.num_all])).toEqual(expected);
    expect(saidAgain(ids)).toBe(again);
  });

  it("does not take other ids with the same digits for the same", () => {
    expect(repeatsOf([1, 11, 11, 1], 2).num_again).toBe(0);
    expect(saidAgain(Array<number>(500).fill(1))).toBe(64);
  });

  it("is told in words", () => {
    expect([0, 1, 3].map(endOf)).toEqual([
      "is new in the answer",
      "ends a stretch of 1 token that stood there before",
      "ends a stretch of 3 tokens that stood there before",
    ]);
  });
});
