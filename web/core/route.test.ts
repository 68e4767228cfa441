// Places and the hashes that name them.
import { describe, expect, it } from "vitest";

import { hashOf, NOWHERE, placeOf } from "./route";

describe("places", () => {
  it("are read as they were written", () => {
    const place = { chat: "a b/c", turn: 1, step: 12, view: "attention", layer: 0, head: 7, pin: "a~lens~1~~~", position: 3 };
    expect(hashOf(place)).toBe("#/c/a%20b%2Fc/t/1/s/12/v/attention/l/0/h/7/p/3/x/a~lens~1~~~");
    expect(placeOf(hashOf(place))).toEqual(place);
  });

  it("are nowhere without a hash", () => {
    expect([placeOf(""), placeOf("#"), placeOf("#/")]).toEqual([NOWHERE, NOWHERE, NOWHERE]);
    expect(hashOf(NOWHERE)).toBe("");
  });

  it("leave out what is not understood", () => {
    expect(placeOf("#/t/-1/s/1e3/y/z/c/%E0%A4%A/v//l/3")).toEqual({ ...NOWHERE, layer: 3 });
  });
});
