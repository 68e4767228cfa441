// Pins and the words that name them.
import { describe, expect, it } from "vitest";

import { pinOf, wordOf } from "./pins";
import { hashOf, NOWHERE, placeOf } from "./route";

describe("a pin", () => {
  it("is read as it was written, and the address keeps it", () => {
    const pin = { trace: "chatcmpl-1a", place: { ...NOWHERE, view: "attention", step: 0, layer: 3, head: 7 } };
    expect(wordOf(pin)).toBe("chatcmpl-1a~attention~0~~3~7");
    const place = placeOf(hashOf({ ...NOWHERE, chat: "c", pin: wordOf(pin) }));
    expect(place.chat).toBe("c");
    expect(pinOf(place.pin)).toEqual(pin);
  });

  it("is none where it is not understood", () => {
    expect([null, "", "a~b", "a~lens~x~~~", "a~lens~1~2~3~4~5", "a~lens~-1~~~"].map(pinOf)).toEqual(Array(6).fill(null));
  });
});
