// The raw stream: its frames are the same wherever the network cut it, with the time of their last byte.
import { afterEach, expect, it, vi } from "vitest";

import { ask } from "./chat";
import { framesOf, type Arrived } from "./wire";

const token = (text: string): string =>
  `data: ${JSON.stringify({ choices: [{ delta: { content: text }, logprobs: { content: [{ token: text, bytes: [], logprob: -1 }] }, finish_reason: null }] })}\n\n`;
const PARTS = [": wait\n\n", token("\u00e9"), token(" b"), 'data: {"choices": []}\n\n', "data: [DONE]\n\n"];
const STREAM = PARTS.join("");

afterEach(() => vi.unstubAllGlobals());

it("gives the same frames wherever the stream was cut, each when it was whole", () => {
  for (let cut = 0; cut <= STREAM.length; cut += 1) {
    const frames = framesOf([{ at: 1, text: STREAM.slice(0, cut) }, { at: 2, text: STREAM.slice(cut) }]);
    expect(frames.map((each) => each.raw)).toEqual(PARTS);
    let end = 0;
    expect(frames.map((each) => each.at)).toEqual(PARTS.map((part) => ((end += part.length) <= cut ? 1 : 2)));
  }
});

it("tells which tokens a frame brings, its text and its bytes", () => {
  const frames = framesOf([{ at: 0, text: STREAM }]);
  expect(frames.map((each) => [each.text, each.tokens])).toEqual([["", []], ["\u00e9", [0]], [" b", [1]], ["", []], ["", []]]);
  expect(frames[1]!.bytes).toBe(PARTS[1]!.length + 2); // its text stands there twice, with a character of two bytes
  expect(framesOf([{ at: 0, text: "data: half" }])).toEqual([]);
});

it("is noted as it comes, byte for byte", async () => {
  const bytes = new TextEncoder().encode(STREAM);
  const body = new ReadableStream<Uint8Array>({
    start(to) {
      for (let at = 0; at < bytes.length; at += 7) to.enqueue(bytes.slice(at, at + 7));
      to.close();
    },
  });
  vi.stubGlobal("fetch", () => Promise.resolve(new Response(body)));
  const pieces: Arrived[] = [];
  const texts: string[] = [];
  const question = { model: "m", messages: [] };
  for await (const news of ask(question, new AbortController().signal, (text) => pieces.push({ at: pieces.length, text }))) texts.push(news.text);
  expect(texts.join("")).toBe("\u00e9 b");
  expect(pieces.length).toBe(Math.ceil(bytes.length / 7));
  expect(pieces.map((each) => each.text).join("")).toBe(STREAM);
  expect(framesOf(pieces).map((each) => each.raw)).toEqual(PARTS);
});
