import { describe, expect, it } from "vitest";

import { loopOf } from "./loops";

const times = (stretch: readonly number[], count: number): number[] => Array.from({ length: count }, () => stretch).flat();
const sentence = Array.from({ length: 40 }, (_, index) => 100 + index);

describe("a loop", () => {
  it("is a stretch that stands four times at the end", () => {
    expect(loopOf([1, 2, 3, ...times(sentence, 4)])).toBe(40);
    expect(loopOf([1, 2, 3, ...times(sentence, 3)])).toBe(0);
    expect(loopOf([...times(sentence, 4), 7])).toBe(0);
  });

  it("is found wherever in the stretch one looks", () => {
    for (let cut = 0; cut < 40; cut += 7) expect(loopOf(times(sentence, 5).slice(0, 160 + cut))).toBe(40);
  });

  it("is no short thing said a few times", () => {
    expect(loopOf(times([5], 95))).toBe(0);
    expect(loopOf(times([5], 96))).toBe(1);
    expect(loopOf([9, ...times([5, 6, 7], 20)])).toBe(0);
  });

  it("is nothing that differs by one token each time, as a counting list does", () => {
    const list = Array.from({ length: 30 }, (_, index) => [1, 2, 3, 1000 + index, 4, 5, 6, 7]).flat();
    expect(loopOf(list)).toBe(0);
  });

  it("is none in an answer without tokens", () => {
    expect(loopOf([])).toBe(0);
  });
});
