// Chapters A to G say and judge what the payloads of a made-up answer hold.
import { describe, expect, it } from "vitest";

import { shownOf } from "../frame";
import golden from "../golden_tour.json";
import type { Payloads } from "../payloads";
import { A } from "./a";
import { B } from "./b";
import { C } from "./c";
import { isRight, type Chapter, type Places, type Reach } from "./chapter";
import { D } from "./d";
import { E } from "./e";
import { F } from "./f";
import { G } from "./g";

const frames: Record<string, string> = golden.frames;
const learned: Record<string, object> = golden.learned;
const COMPARED: Record<string, object> = {
  "positions=off": {
    first_difference: 1,
    recorded_text: "a b",
    changed_text: "a c",
    recorded_pieces: ["a", "\u00b7b"],
    divergence: { distance: [0.25, 0.5] },
  },
};
const coder = new TextEncoder();

/** The golden answer; its tokenizer takes bytes for ids. changed: values of a view in the place of the golden. */
function reach(changed: { [Name in keyof Payloads]?: Partial<Payloads[Name]> } = {}): Reach {
  const routes: Record<string, (body: never) => unknown> = {
    "/tokenize": (body: { prompt: string }) => ({ tokens: [...coder.encode(body.prompt)] }),
    "/detokenize": (body: { tokens: number[] }) => ({ prompt: String.fromCharCode(...body.tokens.map((id) => id % 128)) }),
    "/cutaway/v1/traces/id/compare": (body: { change: string }) => COMPARED[body.change],
    "/cutaway/v1/learn": (body: { text: string }) => learned[body.text],
  };
  return {
    model: "golden",
    trace: "id",
    asked: "What is it?",
    position: 5,
    see<Name extends keyof Payloads>(view: Name, places: Places = {}): Promise<Payloads[Name]> {
      const frame = frames[places.text === undefined ? view : `${view}?${places.text}`] ?? frames[view]!;
      const bytes = Uint8Array.from(atob(frame), (sign) => sign.charCodeAt(0));
      return Promise.resolve({ ...(shownOf(bytes.buffer).values as unknown as Payloads[Name]), ...changed[view] });
    },
    post: <Told>(path: string, body: object) => Promise.resolve(routes[path]!(body as never) as Told),
  };
}

const heres = async (chapter: Chapter, at = reach()): Promise<string[]> => (await chapter.claims(at)).map((claim) => claim.here);
const pull = (chapter: Chapter, value: string, at = reach()): ReturnType<Chapter["lever"]["run"]> => chapter.lever.run(at, value);

describe("chapter A", () => {
  it("tells what the model was sent, and the wait by stages", async () => {
    expect(await heres(A)).toEqual([
      "It was given 11 characters and 2 marks that say who speaks; your message has 11 characters. Code around the model wrote the rest.",
      "The first piece of the answer took 375 ms: going through the model 250 ms, choosing the next piece 125 ms.",
    ]);
  });

  it("counts another text, and asks where the time went", async () => {
    const other = await pull(A, "\u00e9");
    expect(other.said).toBe("On a screen it is 1 sign, made of 2 characters in 3 bytes: 3 bytes a sign. In your message it is 1.");
    expect(other.view).toEqual({ view: "characters", text: "\u00e9" });
    expect((await A.question(reach())).choices).toEqual(["waiting for a turn", "going through the model", "choosing the next piece"]);
    const answer = await A.answer(reach());
    expect([isRight("going through the model", answer), isRight("choosing the next piece", answer)]).toEqual([true, false]);
  });
});

describe("chapter B", () => {
  it("cuts what is told by this vocabulary", async () => {
    const [gravity, long, tabs, whole] = await heres(B);
    expect(gravity).toBe("With the space before it, it is 8: \u00b7|g|r|a|v|i|t|y.");
    expect(long).toContain("u|n|c|h|a|r");
    expect(tabs).toContain("29 tokens with tabs, 38 with spaces");
    expect(whole).toContain("All 3 tokens");
  });

  it("compares another text, and counts the letters inside", async () => {
    const other = await pull(B, "\u00e9a");
    expect(other.said).toBe("3 tokens, 1 bytes each; in your prompt and its answer 3.8.");
    expect(other.tokens!.map((each) => each.id)).toEqual([0xc3, 0xa9, 0x61]);
    const answer = await B.answer(reach());
    expect([answer.right, isRight("3", answer), isRight("4", answer)]).toEqual([3, true, false]);
  });
});

describe("chapter C", () => {
  it("replays hello, and says what ranks are", async () => {
    expect(await heres(C)).toEqual([
      "Here it ends as he|y, 255, 88, over he 255.",
      "It learned an order of counts. \u201c\u00b7hey\u201d was put together by merge number 3.",
      "This one has 49,152.",
    ]);
    const empty = { text: "x", token_ids: [1], texts: ["x"], start: [], steps: [], cut: [], is_whole: true };
    expect((await heres(C, reach({ merges: { pieces: [empty] } })))[1]).toContain("no more");
    expect((await heres(C, reach({ merges: { pieces: [] } })))[2]).toContain("49,152");
  });

  it("learns from another text, and counts merges until half is left", async () => {
    const other = await pull(C, "aaaa bb");
    expect(other.said).toMatch(/^After \d merges the text has 2 tokens instead of 7\. /);
    expect(other.bars![0]).toEqual({ name: "a + a", value: 3, told: "3" });
    // 20 bytes; ab four times: 16 left; abab: 14; then abababab and words of the question.
    const answer = await C.answer(reach());
    const { steps } = learned["What is it? abababab"] as { steps: { num_tokens: number }[] };
    expect(steps[Number(answer.right) - 1]!.num_tokens).toBeLessThanOrEqual(10);
    expect(steps[Number(answer.right) - 2]!.num_tokens).toBeGreaterThan(10);
  });
});

describe("chapter D", () => {
  it("spells the ids that are told, and names id 0", async () => {
    const [told, zero, recipe] = await heres(D);
    expect(told).toMatch(/^Here it is 87, 104, .* 63\. 2601, 318, 26110, 879, 30 would spell \u201c.{5}\u201d\.$/su);
    expect(zero).toContain("Id 0 exists");
    expect(recipe).toMatch(/^Here it is 37: H\|o\|w/);
    expect((await heres(D, reach({ merges: { vocab_size: 40 } })))[0]).toContain("30 would spell");
    expect((await heres(D, reach({ merges: { vocab_size: 20 } })))[0]).toContain("None of those ids exists here.");
  });

  it("shows neighbours within the list, and counts different ids", async () => {
    expect((await pull(D, "65")).tokens!.map((each) => each.text).join("")).toBe("ABCDEFGH");
    expect((await pull(D, "1e9")).tokens!.map((each) => each.id).at(-1)).toBe(49151);
    const answer = await D.answer(reach());
    expect([answer.right, isRight("5", answer), isRight("6", answer)]).toEqual([5, true, false]);
    expect(answer.bars![0]).toMatchObject({ name: "\u00b7is 3", value: 2 });
  });
});

describe("chapter E", () => {
  it("puts the table's numbers in, and queen in her place", async () => {
    const [row, size, queen, drift] = await heres(E);
    expect(row).toContain("\u201c\u00b7gravity\u201d goes from \u22120.5 to 0.25, with norm 2.5");
    expect(size).toBe("Here 49,152 \u00d7 576 = 28,311,552 numbers: 54 MiB in 16 bits.");
    expect(queen).toContain("number 2 of 49,152 rows near the sum, number 1 without");
    expect(drift).toContain("to its own row is 0.25");
    const { analogy } = await reach().see("embeddings");
    expect((await heres(E, reach({ embeddings: { analogy: { ...analogy, expected: null } } })))[2]).toContain("no such word");
  });

  it("adds words, and asks for the nearest row", async () => {
    expect((await pull(E, "king - man + woman = queen")).said).toContain("\u201c\u00b7queen\u201d is number 2");
    expect((await pull(E, "gravity")).said).toContain("0.125 on average");
    expect(await E.question(reach())).toMatchObject({ choices: ["\u00b7fall", "\u00b7pull"] });
    expect((await E.answer(reach())).right).toBe("\u00b7pull");
  });
});

describe("chapter F", () => {
  it("says what turns, and what a full context keeps", async () => {
    expect(await heres(F)).toEqual([
      "Nothing is added. In each head 3 pairs of entries turn.",
      "The score of \u201c\u00b7gravity\u201d and \u201cWhat\u201d is 1.5; with both 10,000 places further on it is 1.5. Their distance is the same.",
      "This model was made for 8,192 tokens. Full, their keys and values take 8,192 \u00d7 22.5 KiB = 180 MiB.",
    ]);
    const learnt = reach({ positions: { kind: "learned", added_norm: 0.5 } });
    expect((await heres(F, learnt))[0]).toBe("Here one is: a learned vector of norm 0.5.");
    expect(await F.question(learnt)).toMatchObject({ choices: ["the mask alone", "a vector that is added"] });
    expect((await F.answer(learnt)).right).toBe("a vector that is added");
    const none = reach({ positions: { kind: "none" } });
    expect([(await heres(F, none))[0], (await F.answer(none)).right]).toEqual(["Layer 15 is told no position at all.", "the mask alone"]);
  });

  it("leaves positions out, and counts pairs that turned once", async () => {
    const without = await pull(F, "positions=off");
    expect(without.said).toBe("\u201ca b\u201d became \u201ca c\u201d: another token from number 2 on. How much of the chances moved at each step:");
    expect(without.bars).toEqual([
      { name: "a", value: 0.25, told: "25.0 %" },
      { name: "\u00b7b", value: 0.5, told: "50.0 %" },
    ]);
    expect((await F.answer(reach())).right).toBe(2); // of 2, 4.5 and 6,000 positions within 5
  });
});

describe("chapter G", () => {
  it("names layers, experts, operations and the wait", async () => {
    const [layers, dense, work, wait] = await heres(G);
    expect(layers).toMatch(/^This one has 30\./);
    expect(dense).toMatch(/^None of the 30 layers here has experts/);
    expect(work).toBe("It multiplied: 4 GFLOP for this answer, with 2 GiB read and written.");
    expect(wait).toContain("34 tokens of the prompt took 250 ms");
    const routed = reach({ experts: { num_experts: 64, num_chosen: 8, layers: [1, 2] } });
    expect((await heres(G, routed))[1]).toBe("A router sends each token to 8 of 64 experts, in 2 layers.");
    expect(await heres(G, reach({ cost: { stages: [], modes: [] } }))).toHaveLength(3);
  });

  it("opens a layer, and weighs its two parts over all layers", async () => {
    expect((await pull(G, "0")).bars!.map((each) => each.value)).toEqual([2, 1, 3, 4]);
    expect((await pull(G, "7")).bars!.map((each) => each.value)).toEqual([4, 2, 0.5, 8]); // the last there is
    const answer = await G.answer(reach());
    expect([answer.right, isRight("attention", answer)]).toEqual(["feed-forward", false]);
  });
});
