import { describe, expect, it } from "vitest";

import { computed } from "./waste";

describe("computing with a cache and without", () => {
  it("is each token once, or every token so far at every step", () => {
    for (const [prompt, step] of [[1, 0], [34, 0], [34, 1], [7, 40]] as const) {
      let without = 0;
      for (let pass = 0; pass <= step; pass += 1) without += prompt + pass;
      expect(computed(prompt, step)).toEqual({ withCache: prompt + step, without });
    }
  });
});
