// Levers: controls within the server's ranges, events cut anywhere, and figures in words.
import { afterEach, describe, expect, it, vi } from "vitest";

import { changeOf, compare, doneOf, klOf, levers, measuresOf, movedOf, noiseOf, partingOf, rangeOf, sliderOf, stepsOf, valueOf, type Found, type Lever } from "./levers";
import { comparePythonOf } from "./python";

const lever = (fields: Partial<Lever>): Lever => ({
  name: "temperature",
  meaning: "a number",
  group: "draw",
  kind: "number",
  least: 0,
  most: 5,
  is_open: false,
  num_heads: null,
  choices: [],
  now: null,
  refused: null,
  ...fields,
});

const spread = (median: number) => ({ median, least: median / 2, most: median * 2 });
const side = (money: number | null = null) => ({
  first_text: spread(0.02),
  per_token: spread(0.004),
  seconds: spread(1),
  rate: spread(50),
  num_computed: 25,
  flops: 2e9,
  num_bytes: 2 ** 20,
  cache_bytes: 1024,
  weight_bytes: 2 ** 21,
  money,
});
const found: Found = {
  change: "temperature=0",
  first_difference: 1,
  recorded_token_ids: [1, 2],
  changed_token_ids: [1, 3, 4],
  recorded_pieces: ["a", "b"],
  changed_pieces: ["a", "c", "d"],
  recorded_text: "ab",
  changed_text: "acd",
  num_equal_rows: 2,
  num_rows: 2,
  is_as_served: true,
  is_repeatable: true,
  are_whole: true,
  divergence: { of: "draw", kl: [0.5, null], distance: [0.25, 1], num_same_top: 2 },
  recorded: side(),
  changed: side(),
  num_runs: 3,
  notes: [],
};

afterEach(() => vi.unstubAllGlobals());

/** A server that answers with pieces of a stream; asked has what came to it. */
function answering(pieces: string[], status = 200): { url: string; init: RequestInit }[] {
  const asked: { url: string; init: RequestInit }[] = [];
  vi.stubGlobal("fetch", (url: string, init: RequestInit = {}) => {
    asked.push({ url, init });
    const encoder = new TextEncoder();
    const body = new ReadableStream<Uint8Array>({
      start(stream) {
        for (const piece of pieces) stream.enqueue(encoder.encode(piece));
        stream.close();
      },
    });
    return Promise.resolve(new Response(body, { status }));
  });
  return asked;
}

describe("what can be changed", () => {
  it("has a slider where people look, and never past the server's range", () => {
    expect(sliderOf(lever({}))).toEqual({ from: 0, to: 2, step: 0.05 });
    expect(sliderOf(lever({ most: 1.5, least: 0.5 }))).toEqual({ from: 0.5, to: 1.5, step: 0.05 });
    expect(sliderOf(lever({ name: "window", kind: "whole" }))).toBeNull();
  });

  it("begins with another value than the answer has", () => {
    expect(valueOf(lever({}), { temperature: 0 }, 9)).toBe("1");
    expect(valueOf(lever({}), { temperature: 0.7 }, 9)).toBe("0");
    expect(valueOf(lever({ name: "kv_dtype", kind: "choice", choices: ["auto", "int8"], now: "auto" }), {}, 9)).toBe("int8");
    expect(valueOf(lever({ name: "patch", kind: "patch", most: 29 }), {}, 9)).toBe("14@8:zero");
    expect(valueOf(lever({ name: "context", kind: "whole" }), {}, 9)).toBe("4");
    expect(valueOf(lever({ name: "prefill_chunk", kind: "whole", now: "512" }), {}, 9)).toBe("8");
  });

  it("is written and told as the command has it", () => {
    expect(changeOf(lever({}), "0.5", 3)).toBe("temperature=0.5");
    expect(changeOf(lever({ name: "token", kind: "token" }), " not", 3)).toBe("token@3= not");
    expect(rangeOf(lever({}))).toBe("from 0 to 5");
    expect(rangeOf(lever({ is_open: true, most: 10 }))).toBe("above 0 and at most 10");
    expect(rangeOf(lever({ kind: "layer", most: 29, num_heads: 9 }))).toBe("layers from 0 to 29, heads from 0 to 8");
  });

  it("comes from the server, in whose words a refusal is", async () => {
    answering([JSON.stringify({ levers: [lever({})] })]);
    expect(await levers()).toEqual([lever({})]);
    answering([JSON.stringify({ error: { message: "this server shows no views." } })], 403);
    await expect(levers()).rejects.toThrow("this server shows no views.");
  });
});

describe("a comparison", () => {
  const wish = { change: "temperature=0", runs: 1, max_tokens: 4 };
  const signal = new AbortController().signal;
  const far = { part: "changed", num_done: 1, num_parts: 3, num_tokens: 2, most_tokens: 4 } as const;
  const event = (value: object): string => `data: ${JSON.stringify(value)}\n\n`;

  it("tells how far it is, and at last what was found", async () => {
    const stream = `: keep-alive\n\n${event({ type: "progress", ...far })}${event({ type: "comparison", ...found })}`;
    const asked = answering([stream.slice(0, 30), stream.slice(30, 200), stream.slice(200)]);
    const told: number[] = [];
    const got = await compare("cmpl/1", wish, signal, (progress) => told.push(doneOf(progress)));
    expect(got).toMatchObject(found);
    expect(told).toEqual([0.5]);
    expect(asked[0]!.url).toBe("/cutaway/v1/traces/cmpl%2F1/compare");
    expect(JSON.parse(asked[0]!.init.body as string)).toEqual({ ...wish, stream: true });
  });

  it("fails in the server's words, and where the stream ends early", async () => {
    answering([event({ error: { message: "temperature is 9." } })]);
    await expect(compare("a", wish, signal, () => undefined)).rejects.toThrow("temperature is 9.");
    answering([event({ type: "progress", ...far })]);
    await expect(compare("a", wish, signal, () => undefined)).rejects.toThrow("before the comparison's end");
    answering([JSON.stringify({ error: { message: "no record" } })], 404);
    await expect(compare("a", wish, signal, () => undefined)).rejects.toThrow("no record");
  });
});

describe("what was found", () => {
  it("is told in words, infinite chances apart", () => {
    expect(klOf(found)).toEqual({ mean: 0.5, infinite: 1 });
    const endless = { ...found, divergence: { ...found.divergence!, kl: [null, null] } };
    expect(movedOf(endless)).toContain("KL \u221e nats on average, infinite in 2 steps");
    expect(partingOf(found)).toBe("from token 1 of 3");
    expect(partingOf({ ...found, first_difference: null })).toBe("the very same 3 tokens");
    expect(movedOf(found)).toContain("KL 0.5 nats on average, infinite in 1 steps, where what could come cannot any more; at most 100 % of the mass moved");
    expect(movedOf({ ...found, divergence: null })).toContain("bits of their rows");
  });

  it("has every measurement, and money where there is a price", () => {
    const rows = measuresOf(found);
    expect(rows[0]).toEqual(["first text", "20 ms (10 ms to 40 ms)", "20 ms (10 ms to 40 ms)", "the same, ranges overlap"]);
    expect(rows.at(-2)).toEqual(["rows of logits with the same bits", "", "2 of 2", ""]);
    expect(rows.map(([name]) => name)).not.toContain("money");
    expect(measuresOf({ ...found, recorded: side(0.1), changed: side(0.2) }).map(([name]) => name)).toContain("money");
  });

  it("tells a change from noise, as far as so many runs can", () => {
    const faster = { ...side(), first_text: spread(0.004), per_token: spread(0.003), num_computed: 20, flops: 8e9 };
    const differences = Object.fromEntries(measuresOf({ ...found, changed: faster }).map(([name, , , difference]) => [name, difference]));
    expect(differences).toMatchObject({ "first text": "5 times less", "per token": "\u221225.0 %, ranges overlap", operations: "4 times", "tokens computed": "\u221220.0 %", weights: "the same" });
    const once = measuresOf({ ...found, num_runs: 1, changed: faster });
    expect(once[1]).toEqual(["per token", "4 ms", "3 ms", "\u221225.0 %"]);
    expect(noiseOf(1)).toContain("does not tell a change from noise");
    expect(noiseOf(3)).toContain("With 3 runs of each side they lie apart by chance in 10.0 % of all cases");
  });

  it("is a table of steps as long as the longer answer", () => {
    const steps = stepsOf(found);
    expect(steps.recorded).toEqual(["a", "b", null]);
    expect(steps.kl_in_nats).toEqual([0.5, "infinite", null]);
  });

  it("is had again by Python", () => {
    const made = { model: "smollm2", build: {}, prompt: [1, 2], numTokens: 4, settings: { temperature: 0.7 }, seed: "5" };
    const program = comparePythonOf("token@1=\"x\"", 2, made);
    expect(program).toContain("SamplingParams(temperature=0.7, seed=5, max_tokens=4)");
    expect(program).toContain('change_of("token@1=\\"x\\"")');
    expect(program).toContain('name="smollm2", num_runs=2');
  });
});
