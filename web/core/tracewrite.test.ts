// What the browser writes opens again, with the same numbers at the same places.
import { describe, expect, it } from "vitest";

import { Tensor } from "./frame";
import { openTrace, SavedViews } from "./tracefile";
import { traceFile, type Told } from "./tracewrite";
import type { Seen } from "./views";

const events: Told[] = [
  { type: "start", schema: 1, trace_id: "chat-1", model: "tiny", seed: 7, num_prompt_tokens: 3, sampling: { temperature: 0.8 } },
  { type: "prompt", start: 0, ids: [1, 2], texts: ["a", "b"] },
  { type: "prompt", start: 2, ids: [3], texts: ["c"] },
  { type: "token", index: 0, id: 4, shows: "d\u20ac" },
  { type: "end", reason: "stop", rest: "!", usage: { completion_tokens: 1, cached_tokens: 0 } },
];

function seen(view: string, query: object, values: Seen["values"]): Seen {
  return { view, stage: "", question: `${view}?`, proof: "exact (shape-faithful, 1 row)", isExact: true, values, query: { view, ...query }, numBytes: 0, seconds: 0 };
}

describe("a file that the page writes", () => {
  const shape = [2, 2];
  const floats = new Tensor(Float32Array.of(0.5, -1, 3e-9, Infinity), shape);
  const ids = new Tensor(Float64Array.of(49151, -1, 0, 2 ** 40), shape);
  const bytes = new Tensor(Uint8Array.of(0, 255, 7, 8), shape);

  it("opens with events, places and arrays as they were", async () => {
    const written = await traceFile(
      events,
      [
        seen("sampling", { token: 0 }, { token: 0, logits: floats, parts: [{ ids }, null], name: "\u00e9" }),
        seen("sampling", { token: 5 }, { token: 5, logits: bytes, parts: [], name: "x" }),
        seen("timeline", {}, { total: 1.5 }),
      ],
      "0.1",
      (each) => each.view,
    );
    const file = await openTrace(written.buffer);
    expect(file.manifest).toMatchObject({ cutaway: "0.1", model: { name: "tiny" }, sampling: { temperature: 0.8, seed: 7 }, answer: { num_tokens: 1, finish_reason: "stop" } });
    expect(file.events("prompt")).toEqual([{ type: "prompt", count: 3, ids: [1, 2, 3], texts: ["a", "b", "c"] }]);
    expect(file.events("end")[0]!.text).toBe("d\u20ac!");
    const views = new SavedViews(file);
    expect(await views.held("sampling")).toEqual([{ view: "sampling", token: 0 }, { view: "sampling", token: 5 }]);
    const [first, second] = [await views.see({ view: "sampling", token: 1 }), await views.see({ view: "sampling", token: 4 })];
    expect(first.values).toEqual({ token: 0, logits: floats, parts: [{ ids }, null], name: "\u00e9" });
    expect(second.values).toEqual({ token: 5, logits: bytes, parts: [], name: "x" });
    expect((await views.made()).prompt).toEqual([1, 2, 3]);
  });
});
