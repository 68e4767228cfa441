// Frames that Python wrote (tests/web/golden_frames.py), read; and bytes that are none.
import { describe, expect, it } from "vitest";

import { plain, shownOf, Tensor } from "./frame";
import frames from "./golden.json";
import { tablesOf } from "./tables";

function golden(name: keyof typeof frames): ArrayBuffer {
  return Uint8Array.from(atob(frames[name]), (sign) => sign.charCodeAt(0)).buffer;
}

describe("frames", () => {
  it("give integers, bytes and floats in their shapes", () => {
    const shown = shownOf(golden("weights"));
    expect(shown).toMatchObject({ view: "weights", stage: "blocks", proof: null, isExact: null });
    const { counts, thumbnail, edges } = shown.values;
    expect((counts as Tensor).list()).toEqual([5, 2 ** 40 + 1]);
    expect((edges as Tensor).list()).toEqual([-1, 0, 1]);
    expect((thumbnail as Tensor).shape).toEqual([3, 2]);
    expect((thumbnail as Tensor).at(1, 0)).toBe(7);
    expect((thumbnail as Tensor).row(2).list()).toEqual([1, 2]);
    expect(shown.values.others).toEqual(["blocks.0.mlp.up"]);
  });

  it("keep what is not finite, and tell it as the API's JSON does", () => {
    const shown = shownOf(golden("drift"));
    expect(shown).toMatchObject({ isExact: true, proof: "exact (invariant, 3 rows)" });
    expect((shown.values.own as Tensor).list()).toEqual([1, -Infinity, 0.25]);
    expect((shown.values.between as Tensor).length).toBe(0);
    expect(shown.values.context).toEqual(["na\u00efve \u{1f4a1}"]);
    expect(plain(shown.values)).toMatchObject({ own: [1, null, 0.25], text: "\u00b7d\u00e9j\u00e0" });
  });

  it("tell a difference, and nested records", () => {
    const shown = shownOf(golden("probabilities"));
    expect(shown.isExact).toBe(false);
    expect(shown.proof).toContain("1 of 3 rows; the plan");
    expect(shown.values.chosen).toMatchObject({ token_id: 7, rank: 1 });
  });

  it("are refused when they are cut anywhere", () => {
    const whole = golden("weights");
    for (let end = 0; end < whole.byteLength; end += 1) {
      expect(() => shownOf(whole.slice(0, end))).toThrow();
    }
  });

  it.each([
    { shape: [9], data_offsets: [0, 4] },
    { shape: [1e9, 0], data_offsets: [0, 0] }, // as a table it would have so many rows
    { shape: [-1, -1], data_offsets: [0, 4] },
    { shape: [0.5, 2], data_offsets: [0, 4] },
  ])("are refused when the header lies: $shape", (lie) => {
    const text = JSON.stringify({ __metadata__: { cutaway: '{"schema":1}' }, a: { dtype: "F32", ...lie } });
    const bytes = new Uint8Array(8 + text.length + 4);
    new DataView(bytes.buffer).setBigUint64(0, BigInt(text.length), true);
    bytes.set(new TextEncoder().encode(text), 8);
    expect(() => shownOf(bytes.buffer)).toThrow("a does not fit");
  });

  it("become tables: single values, lists side by side, matrices, records", () => {
    const tables = tablesOf(shownOf(golden("weights")).values);
    expect(tables[0]).toMatchObject({ name: "values" });
    expect(tables[0]!.rows).toContainEqual(["number of bytes", "24"]);
    expect(tables.find((each) => each.name === "counts")!.rows[1]).toEqual(["1", "1,099,511,627,777"]);
    expect(tables.find((each) => each.name === "thumbnail")!.rows[1]).toEqual(["1", "7", "128"]);
    const below = tablesOf(shownOf(golden("probabilities")).values).find((each) => each.name === "below");
    expect(below).toMatchObject({ head: ["probability", "number of entries", "mass"], rows: [["0.01", "300", "0.125"]] });
  });
});
