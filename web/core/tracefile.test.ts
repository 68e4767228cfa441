// A file that the Python side wrote opens, and files that lie are refused.
import { describe, expect, it } from "vitest";

import { Tensor } from "./frame";
import { nearest, openTrace, SavedViews } from "./tracefile";
import { placed, type Query } from "./views";

const files = import.meta.glob<string>("../../tests/trace/files/*.cutaway", { eager: true, query: "?inline", import: "default" });

const NAMES = ["schema_1.cutaway", "schema_1_minor_1.cutaway"];

function bytesOf(index: number): Uint8Array<ArrayBuffer> {
  const text = files[`../../tests/trace/files/${NAMES[index]}`]!;
  return Uint8Array.from(atob(text.slice(text.indexOf(",") + 1)), (sign) => sign.charCodeAt(0));
}

describe("trace files", () => {
  it("open with all that they hold", async () => {
    expect(Object.keys(files).length).toBeGreaterThan(0);
    const file = await openTrace(bytesOf(0).buffer);
    expect(file.manifest.schema).toBe(1);
    expect(file.numEvents).toBeGreaterThan(2);
    expect(file.views.length).toBeGreaterThan(0);
    const all = (await Promise.all(file.views.map((view) => file.saved(view)))).flat().map((each) => each.seen());
    for (const seen of all) {
      expect(seen.question).not.toBe("");
      expect(JSON.stringify(seen.values)).not.toContain('"array":'); // every array is in its place
    }
    expect(all.some((seen) => Object.values(seen.values).some((value) => value instanceof Tensor))).toBe(true);
  });

  it("stand in a server's place", async () => {
    const views = new SavedViews(await openTrace(bytesOf(0).buffer));
    const seen = await views.see({ view: "attention", position: 3 });
    expect(seen.view).toBe("attention");
    expect(seen.seconds).toBeNull();
    expect(await views.held("attention")).toEqual([seen.query]);
    expect(await views.held("lens")).toEqual([]);
    await expect(views.see({ view: "lens" })).rejects.toThrow("does not hold the view lens");
  });

  it("show a view at the nearest place that they have", async () => {
    const views = new SavedViews(await openTrace(bytesOf(1).buffer));
    const at = async (query: Omit<Query, "view">): Promise<Query> => (await views.see({ view: "attention", ...query })).query;
    for (let token = 0; token < 8; token += 1) {
      const seen = await views.see({ view: "probabilities", token });
      expect([seen.query.token, seen.values.token, seen.isExact]).toEqual([token, token, true]);
    }
    expect((await views.see({ view: "probabilities", token: 99 })).query.token).toBe(7);
    expect(await views.see({ view: "probabilities", token: 99 })).toBe(await views.see({ view: "probabilities", token: 7 })); // made once
    expect((await at({ position: 3 })).head).toBeUndefined(); // all heads, not one of them
    expect(await at({ layer: 0, head: 3 })).toMatchObject({ layer: 1, head: 2 });
    const head = await views.see({ view: "attention", layer: 1, head: 0 });
    expect(head.values).toHaveProperty("weights");
    expect(head.values).not.toHaveProperty("entropy"); // of all heads
    expect(placed(head.query, { view: "attention", layer: 3 })).toBe("layer 1");
  });

  it("take no view of its own choice for the one that was asked for", () => {
    const all = [{ query: { view: "lens" } }, { query: { view: "lens", position: 3 } }, { query: { view: "lens", position: 9 } }];
    expect(nearest(all, { view: "lens", position: 9 }).query.position).toBe(9);
    expect(nearest(all, { view: "lens", position: 4 }).query.position).toBe(3);
    expect(nearest(all, { view: "lens" })).toBe(all[0]);
  });

  it("tell what makes the answer again", async () => {
    const made = await new SavedViews(await openTrace(bytesOf(0).buffer)).made();
    expect(made).toMatchObject({ model: "tiny", numTokens: 6, seed: "7" });
    expect(made.prompt.length).toBe(16);
    expect(made.settings.temperature).toBe(0.8);
    expect(Object.keys(made.settings)).not.toContain("max_tokens");
  });

  it("are refused where they are something else, cut short or damaged", async () => {
    await expect(openTrace(new ArrayBuffer(10))).rejects.toThrow("no zip");
    const large = Object.defineProperty(new Blob(), "size", { value: 2 ** 33 });
    large.arrayBuffer = () => Promise.reject(new Error("it was read"));
    await expect(openTrace(large)).rejects.toThrow("has 8589934592 bytes");
    const whole = bytesOf(0);
    await expect(openTrace(whole.slice(0, whole.length / 2).buffer)).rejects.toThrow("no zip");
    await expect(openTrace(whole.slice(100).buffer)).rejects.toThrow();
    const renamed = whole.slice();
    const name = new TextEncoder().encode("manifest.json");
    for (let at = renamed.length - name.length; at >= 0; at -= 1) {
      if (name.every((sign, index) => renamed[at + index] === sign)) {
        renamed[at] = 0x4d; // in the directory, which stands last
        break;
      }
    }
    await expect(openTrace(renamed.buffer)).rejects.toThrow("belongs in no trace file");
  });

  it("are refused where a bit flipped, or hold what they held", async () => {
    const whole = bytesOf(0);
    const held = async (bytes: Uint8Array<ArrayBuffer>): Promise<string> => {
      const file = await openTrace(bytes.buffer);
      const all = (await Promise.all(file.views.map((view) => file.saved(view)))).flat().map((each) => each.seen());
      const plain = (_: string, value: unknown): unknown => (value instanceof Tensor ? [value.shape, [...value.data].map(String)] : value);
      return JSON.stringify([file.manifest, file.events("token"), file.numEvents, all], plain);
    };
    const sound = await held(whole);
    let refused = 0;
    const directory = (whole.length - 700) * 8; // where a flip hid entries and arrays
    const bits = [...Array(directory).keys()].filter((bit) => bit % 211 === 0).concat([...Array(5600).keys()].filter((bit) => bit % 11 === 0).map((bit) => bit + directory));
    for (const bit of bits) {
      const flipped = whole.slice();
      flipped[bit >> 3]! ^= 1 << (bit & 7);
      const found = await held(flipped).catch(() => null);
      if (found === null) refused += 1;
      else expect(found, `bit ${bit}`).toBe(sound);
    }
    expect(refused).toBeGreaterThan(bits.length / 2);
  });
});
