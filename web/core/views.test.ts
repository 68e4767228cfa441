// The client of views: each question once, the last of a slot alone, refusals in the server's words.
import { afterEach, describe, expect, it, vi } from "vitest";

import frames from "./golden.json";
import { Dear, isDear, priceOf, Refused, Views } from "./views";

const FRAME = Uint8Array.from(atob(frames.probabilities), (sign) => sign.charCodeAt(0));

function answering(make: (signal: AbortSignal) => Promise<Response>): ReturnType<typeof vi.fn> {
  const fake = vi.fn((_url: string, init: RequestInit) => make(init.signal!));
  vi.stubGlobal("fetch", fake);
  return fake;
}

afterEach(() => vi.unstubAllGlobals());

describe("views", () => {
  it("are asked for once", async () => {
    const fake = answering(() => Promise.resolve(new Response(FRAME)));
    const views = new Views("an/id");
    const first = await views.see({ view: "probabilities", token: 1 });
    expect(await views.see({ token: 1, view: "probabilities" })).toBe(first);
    await views.see({ view: "probabilities", token: 2 });
    expect(fake).toHaveBeenCalledTimes(2);
    expect(fake.mock.calls[0]![0]).toBe("/cutaway/v1/traces/an%2Fid/views");
    expect(first).toMatchObject({ view: "probabilities", numBytes: FRAME.length, query: { token: 1 } });
  });

  it("end the question before them in their slot, and no other", async () => {
    const ended: string[] = [];
    answering(
      (signal) => new Promise((_, fail) => signal.addEventListener("abort", () => (ended.push("one"), fail(signal.reason)))),
    );
    const views = new Views("id");
    const first = views.see({ view: "lens", position: 1 }, "shown");
    const other = views.see({ view: "tokens" }, "open");
    const second = views.see({ view: "lens", position: 2 }, "shown");
    await expect(first).rejects.toMatchObject({ name: "AbortError" });
    expect(ended).toEqual(["one"]);
    views.stop("open");
    views.stop("shown");
    await Promise.allSettled([other, second]);
  });

  it("tell a refusal in the server's words and forget it", async () => {
    const body = JSON.stringify({ error: { message: "layer is 99; it must be from 0 to 3." } });
    const fake = answering(() => Promise.resolve(new Response(body, { status: 400 })));
    const views = new Views("id");
    await expect(views.see({ view: "lens", layer: 99 })).rejects.toThrow("layer is 99");
    await expect(views.see({ view: "lens", layer: 99 })).rejects.toBeInstanceOf(Refused);
    expect(fake).toHaveBeenCalledTimes(2);
  });

  it("ask for the price first, where somebody cares, and compute nothing that is too dear", async () => {
    const bodies: { only_cost?: boolean }[] = [];
    const price = { num_tokens: 42, flops: 5.21e9, num_bytes: 8, seconds: 2.9123 };
    vi.stubGlobal("fetch", (_: string, init: RequestInit) => {
      bodies.push(JSON.parse(init.body as string) as object);
      return Promise.resolve(bodies.at(-1)!.only_cost ? Response.json(price) : new Response(FRAME));
    });
    const views = new Views("id");
    const query = { view: "lens", position: 41, layer: 3 };
    const refused = await views.see(query, "shown", (cost) => !isDear(cost)).catch((error: unknown) => error);
    expect(refused).toBeInstanceOf(Dear);
    expect(refused).toMatchObject({ query, cost: price });
    expect(bodies).toEqual([{ ...query, only_cost: true }]);
    expect((await views.see(query, "shown", () => true)).cost).toEqual(price);
    expect(await views.see(query, "shown", () => false)).toMatchObject({ cost: price });
    expect(bodies.length).toBe(3);
    expect(priceOf("Lens", query, price)).toBe(
      "Lens at position 41, layer 3: 42 tokens go through the model again, about 5.2 GFLOP, about 2.9 s on this machine.",
    );
    expect([{ ...price, seconds: 1.9 }, { ...price, flops: 1e6 }].map(isDear)).toEqual([false, false]);
  });
});
