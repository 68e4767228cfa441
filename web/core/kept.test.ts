import { describe, expect, it } from "vitest";

import { bytesOf, formsOf, groupsOf, seenBy } from "./kept";

const SMOLLM2 = { heads: 9, groups: 3, tokenBytes: 23_040, isLatent: false, window: null };

describe("what attention keeps", () => {
  it("is worked out from what the model itself keeps", () => {
    const [mha, gqa, mla, window] = formsOf(SMOLLM2, 64);
    // 30 layers of 64 numbers in 2 bytes: keys and values of a group, and 4.5 such rows for a latent one.
    expect(mha!.tokenBytes).toBe(30 * 9 * 64 * 2 * 2);
    expect(gqa!.tokenBytes).toBe(23_040);
    expect(mla!.tokenBytes).toBe(30 * 4.5 * 64 * 2);
    expect([mha, gqa, mla, window].map((each) => each!.isOwn)).toEqual([false, true, false, false]);
    expect([mha, gqa, mla, window].map((each) => each!.boxes)).toEqual([9, 3, 1, 3]);
  });

  it("says of every model which form is its own, and gives that one its own bytes", () => {
    for (const heads of [1, 2, 6, 8, 9, 14, 32]) {
      for (let groups = 1; groups <= heads; groups += 1) {
        if (heads % groups) continue;
        for (const isLatent of [false, true]) {
          for (const window of isLatent ? [null] : [null, 512]) {
            const forms = formsOf({ heads, groups, tokenBytes: 4608, isLatent, window }, 64);
            const own = forms.filter((each) => each.isOwn);
            expect(own.map((each) => each.tokenBytes)).toEqual([4608]);
            expect(own[0]!.window).toBe(window);
            expect(heads % groupsOf(heads)).toBe(0);
          }
        }
      }
    }
  });

  it("stops growing where there is a window", () => {
    const [, gqa, , window] = formsOf(SMOLLM2, 64);
    expect([1, 64, 65, 4096].map((tokens) => bytesOf(window!, tokens) / 23_040)).toEqual([1, 64, 64, 64]);
    expect(bytesOf(gqa!, 4096)).toBe(4096 * 23_040);
    expect([seenBy(0, 4), seenBy(3, 4), seenBy(4, 4), seenBy(9, null)]).toEqual([[0, 0], [0, 3], [1, 4], [0, 9]]);
  });
});
