// The arithmetic of two clocks, of the parts of a way, and of middles; and what the server is asked.
import { afterEach, expect, it, vi } from "vitest";

import { chosenAt, middleOf, offsetOf, tripsMade, wayOf, type Trip } from "./way";
import { framesOf } from "./wire";

afterEach(() => {
  vi.unstubAllGlobals();
  vi.restoreAllMocks();
});

it("holds the true offset within its bound, wherever in the trip the server looked at its clock", () => {
  const truth = 80_000;
  for (const share of [0, 0.1, 0.5, 0.9, 1]) {
    const trips = [9, 2, 30].map((length, index): Trip => {
      const asked = 1000 * index + 0.5;
      return { asked, answered: asked + length, server: asked + share * length + truth };
    });
    const { ahead, within, trip } = offsetOf(trips, 1002.5);
    expect(trip).toBe(2);
    expect(within).toBeCloseTo(1 + 0.1, 9);
    expect(Math.abs(ahead - truth)).toBeLessThanOrEqual(within);
    expect(ahead - truth).toBeCloseTo((share - 0.5) * 2, 9);
  }
});

it("is the less sure the longer the answer is past, and where the browser tells whole milliseconds", () => {
  const trips = [{ asked: 60_000, answered: 60_002, server: 0 }];
  expect(offsetOf(trips, 2).within).toBeCloseTo(1 + 1 + 6, 9);
  expect(offsetOf(trips, 60_002).within).toBe(1 + 1);
});

it("takes the browser's own note of a trip, where it is of that trip", async () => {
  const url = "http://here/cutaway/v1/clock";
  vi.stubGlobal("fetch", () => Promise.resolve(Object.defineProperty(Response.json({ now: 1 }), "url", { value: url })));
  const ticks = Array.from({ length: 14 }, (_, index) => 10 * index);
  vi.spyOn(performance, "now").mockImplementation(() => ticks.shift()!);
  const notes = vi.spyOn(performance, "getEntriesByName");
  notes.mockReturnValue([{ requestStart: 2, responseStart: 5 }] as unknown as PerformanceEntryList);
  const trips = await tripsMade(new AbortController().signal);
  expect(notes).toHaveBeenCalledWith(url);
  expect(trips.map(({ asked, answered }) => [asked, answered]).slice(0, 2)).toEqual([[2, 5], [20, 30]]);
});

const frame = (sent: number | null, ...tokens: string[]): string => {
  const content = tokens.map((token) => ({ token, bytes: [], logprob: -1 }));
  const choices = [{ delta: { content: tokens.join("") }, logprobs: content.length ? { content } : null, finish_reason: null }];
  return `data: ${JSON.stringify({ choices, ...(sent !== null && { cutaway: { sent } }) })}\n\n`;
};

it("takes each part of each token's way: of frames with several tokens, with none, and of those never painted", () => {
  const pieces = [
    { at: 10, text: frame(null) + frame(5.1, "a") },
    { at: 30, text: frame(5.12, "b", "c") + frame(5.125) },
    { at: 50, text: frame(null, "d") },
  ];
  const painted = [{ tokens: 0, at: 12 }, { tokens: 1, at: 18 }, { tokens: 3, at: 44 }];
  const chosen = [5099, 5117, 5118, 5140];
  const way = wayOf(framesOf(pieces), painted, { began: 100, chosen, ahead: 4995 });
  const round = (values: number[]): number[] => values.map((each) => Number(each.toFixed(6)));
  expect(round(way.wire)).toEqual([1, 3, 2, NaN]);
  expect(round(way.browser)).toEqual([5, 5, 5, NaN]);
  expect(round(way.paint)).toEqual([8, 14, 14, NaN]);
});

it("finds middles of odd and even counts, by size, passing over what is not known", () => {
  expect(middleOf([10, 9, NaN, 100])).toEqual({ middle: 10, most: 100 });
  expect(middleOf([4, 1, 3, 10])).toEqual({ middle: 3.5, most: 10 });
  expect(middleOf([NaN])).toEqual({ middle: NaN, most: NaN });
});

it("asks for the server's time one trip after the other, and says what it refused with", async () => {
  let [running, now] = [0, 7];
  vi.stubGlobal("fetch", async () => {
    expect(running++).toBe(0);
    await Promise.resolve();
    running -= 1;
    return Response.json({ schema: 1, now: now++ });
  });
  const trips = await tripsMade(new AbortController().signal);
  expect(trips.map((each) => each.server)).toEqual([7000, 8000, 9000, 10_000, 11_000, 12_000, 13_000]);
  for (const { asked, answered } of trips) expect(answered).toBeGreaterThanOrEqual(asked);
  vi.stubGlobal("fetch", () => Promise.resolve(new Response("", { status: 403 })));
  await expect(tripsMade(new AbortController().signal)).rejects.toThrow("the server answered 403");
});

it("reads when tokens were chosen from the answer's events", async () => {
  const events = [{ type: "start", came: 50.5 }, { type: "step", began: 0 }, { type: "token", at: 0.25 }, { type: "token", at: 0.5 }];
  const body = events.map((each) => `data: ${JSON.stringify({ schema: 1, ...each })}\n\n`).join("");
  vi.stubGlobal("fetch", () => Promise.resolve(new Response(body)));
  expect(await chosenAt("chatcmpl-1", new AbortController().signal)).toEqual([50_750, 51_000]);
});
