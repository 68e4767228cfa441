import { describe, expect, it } from "vitest";

import { ROUTED } from "./recorded";
import { someOf, wayThrough } from "./routes";

describe("the way of a token through experts", () => {
  it("names as many different experts in each layer as are chosen, the best first, with all of the weight", () => {
    for (const token of ROUTED.tokens.keys()) {
      const way = wayThrough(ROUTED, token);
      expect(way.map((stop) => stop.layer)).toEqual(ROUTED.layers);
      for (const { chosen } of way) {
        expect(new Set(chosen.map((each) => each.expert)).size).toBe(ROUTED.num_chosen);
        expect(chosen.every((each) => each.expert >= 0 && each.expert < ROUTED.num_experts)).toBe(true);
        const weights = chosen.map((each) => each.weight);
        expect([...weights].sort((one, other) => other - one)).toEqual(weights);
        expect(weights.reduce((sum, each) => sum + each, 0)).toBeCloseTo(1, 2);
      }
    }
  });

  it("counts every token's choices in the loads", () => {
    const total = ROUTED.load.list().reduce((sum, each) => sum + each, 0);
    expect(total).toBe(ROUTED.tokens.length * ROUTED.layers.length * ROUTED.num_chosen);
  });

  it("leaves the ends in where there are too many layers", () => {
    const layers = Array.from({ length: 48 }, (_, layer) => layer);
    expect(someOf(layers, 12)).toHaveLength(12);
    expect([someOf(layers, 12)[0], someOf(layers, 12).at(-1)]).toEqual([0, 47]);
    expect(someOf([3, 4], 12)).toEqual([3, 4]);
  });
});
