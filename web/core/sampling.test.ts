// Settings: ranges as the server tells them, what is sent, and answers told sentence by sentence.
import { describe, expect, it } from "vitest";

import { summed } from "./facts";
import { faultOfNumber, fieldsOf, NOTHING_SET, requestFields } from "./sampling";
import { Sentences } from "./sentences";

const properties = {
  temperature: { type: ["number", "null"], minimum: 0, maximum: 5, description: "divides the logits" },
  top_k: { type: ["integer", "null"], minimum: -1, maximum: 2 ** 31 - 1 },
  repetition_penalty: { type: ["number", "null"], exclusiveMinimum: 0, maximum: 10 },
};
const content = { "application/json": { schema: { properties } } };
const OPENAPI = { paths: { "/v1/chat/completions": { post: { requestBody: { content } } } } };

describe("fields", () => {
  const fields = fieldsOf(OPENAPI, { temperature: 0.2 });

  it("are those that the server takes, with its ranges and the model's own values", () => {
    expect(fields.map((field) => field.name)).toEqual(["temperature", "top_k", "repetition_penalty"]);
    expect(fields[0]).toMatchObject({ least: 0, most: 5, usual: 0.2, meaning: "divides the logits" });
    expect(fieldsOf({}, {})).toEqual([]);
  });

  it("take no integer that JavaScript would round", () => {
    const wide = { seed: { type: "integer", minimum: -(2 ** 63), maximum: 2 ** 63 - 1 } };
    const body = { requestBody: { content: { "application/json": { schema: { properties: wide } } } } };
    const [seed] = fieldsOf({ paths: { "/v1/chat/completions": { post: body } } }, {});
    expect(faultOfNumber(seed!, Number.MAX_SAFE_INTEGER)).toBe("");
    expect(faultOfNumber(seed!, 2 ** 53)).toContain("to 9007199254740991");
  });

  it("tell what is wrong with a number", () => {
    const [temperature, topK, penalty] = fields;
    expect(faultOfNumber(temperature!, 5)).toBe("");
    expect(faultOfNumber(temperature!, 5.1)).toBe("Temperature must be a number from 0 to 5.");
    expect(faultOfNumber(temperature!, NaN)).not.toBe("");
    expect(faultOfNumber(topK!, 1.5)).toContain("an integer from -1");
    expect(faultOfNumber(penalty!, 0)).toContain("above 0");
  });
});

describe("requests", () => {
  it("have what is set and nothing else", () => {
    expect(requestFields(NOTHING_SET)).toEqual({});
    const numbers = { temperature: 0 };
    const stop = ["END", ""];
    expect(requestFields({ ...NOTHING_SET, numbers, stop })).toEqual({ temperature: 0, stop: ["END"] });
  });

  it("are held to a form", () => {
    const formed = (form: "json" | "schema" | "regex" | "choice", formText: string): unknown =>
      requestFields({ ...NOTHING_SET, form, formText });
    expect(formed("json", "")).toEqual({ response_format: { type: "json_object" } });
    expect(formed("schema", '{"type": "object"}')).toEqual({ structured_outputs: { json: { type: "object" } } });
    expect(formed("regex", "[0-9]+")).toEqual({ structured_outputs: { regex: "[0-9]+" } });
    expect(formed("choice", "yes\n\n no ")).toEqual({ structured_outputs: { choice: ["yes", "no"] } });
    expect(() => formed("schema", "{")).toThrow("The JSON schema is not JSON");
  });

  it("offer tools, bare or in their frame", () => {
    const framed = { type: "function", function: { name: "f" } };
    const tools = JSON.stringify([{ name: "f" }, framed]);
    expect(requestFields({ ...NOTHING_SET, tools })).toEqual({ tools: [framed, framed] });
    expect(() => requestFields({ ...NOTHING_SET, tools: "{}" })).toThrow("must be a JSON array");
  });
});

describe("sentences", () => {
  it("are told once, when they are whole", () => {
    const sentences = new Sentences();
    const text = "It falls. It is 3.5 m high! And so";
    const told: string[] = [];
    for (let end = 1; end <= text.length; end += 1) told.push(sentences.next(text.slice(0, end)));
    expect(told.filter(Boolean)).toEqual(["It falls.", "It is 3.5 m high!"]);
    expect(sentences.rest(text)).toBe("And so");
    expect(sentences.next(text)).toBe("");
  });
});

describe("facts", () => {
  it("are summed from events, and unknown ones passed over", () => {
    const event = (fields: object): string => JSON.stringify({ schema: 1, ...fields });
    const facts = summed([
      event({ type: "start", dtype: "float32", device: "cpu" }),
      event({ type: "step", kernel: "native" }),
      event({ type: "step", kernel: "native" }),
      event({ type: "news of next year" }),
      event({ type: "cost", stages: [], seconds: 1, bytes: 2, flops: 3 }),
      event({ type: "end", timings: { detokenize: 0.5, first_token: 0.25 } }),
    ]);
    expect(facts).toMatchObject({ steps: 2, kernels: ["native"], flops: 3, detokenize: 0.5, first: 0.25 });
    expect(() => summed([JSON.stringify({ schema: 2, type: "start" })])).toThrow("schema 2");
    expect(() => summed([event({ type: "error", error: { message: "the engine ended." } })])).toThrow("engine ended");
  });
});
