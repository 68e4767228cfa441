import { expect, test } from "vitest";

import { linesOf, pairsOf, rated, type Pair } from "./ratings";

const pair: Pair = { prompt: [{ role: "user", content: "What is gravity?" }], chosen: 'A "force".', rejected: "No\nidea." };

test("a pair is a line of JSON as training reads it", () => {
  const lines = linesOf([pair, { ...pair, prompt: [{ role: "user", content: "And mass?" }] }]).split("\n");
  expect(lines).toHaveLength(3);
  expect(JSON.parse(lines[0]!)).toEqual(pair);
  expect(lines[2]).toBe("");
});

test("who thinks again of the same two answers is heard once, and last", () => {
  const turned = { ...pair, chosen: pair.rejected, rejected: pair.chosen };
  const other: Pair = { ...pair, prompt: [{ role: "user", content: "And mass?" }] };
  expect(rated(rated(rated([], pair), other), turned)).toEqual([other, turned]);
  expect(rated(rated([], pair), pair)).toEqual([pair]);
});

test("what was kept comes again, and what is no pair is left out", () => {
  expect(pairsOf(JSON.stringify([pair, { prompt: 1 }, null, { ...pair, more: true }]))).toEqual([pair, pair]);
  expect(pairsOf("{}")).toEqual([]);
  expect(pairsOf("no JSON")).toEqual([]);
});
