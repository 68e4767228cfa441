// A file that the Python side wrote opens, and files that lie are refused.
import { describe, expect, it } from "vitest";

import { Tensor } from "./frame";
import { openTrace, SavedViews } from "./tracefile";

const files = import.meta.glob<string>("../../tests/trace/files/*.cutaway", { eager: true, query: "?inline", import: "default" });

function bytesOf(index: number): Uint8Array<ArrayBuffer> {
  const text = Object.values(files)[index]!;
  return Uint8Array.from(atob(text.slice(text.indexOf(",") + 1)), (sign) => sign.charCodeAt(0));
}

describe("trace files", () => {
  it("open with all that they hold", async () => {
    expect(Object.keys(files).length).toBeGreaterThan(0);
    const file = await openTrace(bytesOf(0).buffer);
    expect(file.manifest.schema).toBe(1);
    expect(file.numEvents).toBeGreaterThan(2);
    expect(file.views.length).toBeGreaterThan(0);
    for (const view of file.views) {
      expect(view.question).not.toBe("");
      expect(JSON.stringify(view.values)).not.toContain('"array":'); // every array is in its place
    }
    expect(file.views.some((view) => Object.values(view.values).some((value) => value instanceof Tensor))).toBe(true);
  });

  it("stand in a server's place", async () => {
    const views = new SavedViews(await openTrace(bytesOf(0).buffer));
    const first = views.file.views[0]!;
    expect(await views.see({ view: first.view, position: 3 })).toBe(first);
    await expect(views.see({ view: "nothing" })).rejects.toThrow("does not hold the view nothing");
  });

  it("are refused where they are something else, cut short or damaged", async () => {
    await expect(openTrace(new ArrayBuffer(10))).rejects.toThrow("no zip");
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
});
