// The map draws what was recorded or looked at of the chosen token, and nothing of another one.
import { describe, expect, it } from "vitest";

import { Tensor } from "./frame";
import { chosen, coming } from "./moment";
import type { Tokens } from "./payloads";

const tokens = { texts: ["a", "b", "c", "d"], token_ids: [10, 11, 12, 13], num_prompt: 2 } as Tokens;
const drawn = [0, 1].map((index) => ({ schema: 1, type: "token", index, text: "cd"[index]!, id: 12 + index, probability: 0.25, u: 2 ** 31 }));
const residual = { position: 1, stream: new Tensor(Float32Array.of(1, 2), [2]) };
const top = [0.5, 0.25].map((probability, index) => ({ token_id: 13 - index, text: "dc"[index], probability }));
const look = { tokens, position: 1, step: 0, isDrawn: true, drawn, latest: { residual }, numLayers: 2 };

describe("the map's picture", () => {
  it("is of the token that is looked at", () => {
    const moment = chosen(look, 1);
    expect(moment.read.map((each) => [each.text, each.index, each.id])).toEqual([["a", 0, 10], ["b", 1, 11]]);
    expect(moment.made).toEqual({ text: "c", index: 2, id: 12 });
    expect([moment.norms, moment.layer, moment.u]).toEqual([[1, 2], 1, 0.5]);
    expect(moment.chances).toEqual([{ text: "c", share: 0.25, isOwn: true }]);
  });

  it("shows nothing that was seen at another token", () => {
    const latest = { residual, probabilities: { token: 0, top, chosen: top[1] } };
    const moment = chosen({ ...look, position: 2, step: 1, latest }, null);
    expect(moment.norms).toBeNull();
    expect(moment.chances).toEqual([{ text: "d", share: 0.25, isOwn: true }]);
    expect(chosen({ ...look, latest }, null).chances.map((each) => each.isOwn)).toEqual([false, true]);
  });

  it("follows an answer that is being written", () => {
    const moment = coming({ tokens: drawn, last: { schema: 1, type: "step", pages: [0, 3] }, numLayers: 2 });
    expect([moment.made?.text, moment.read.length, moment.pages.length, moment.u]).toEqual(["d", 1, 3, 0.5]);
  });
});
