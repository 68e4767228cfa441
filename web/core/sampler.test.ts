// The page's sampler is the engine's: hash, weights and draws, and a thousand rows with everything set.
import { describe, expect, it } from "vitest";

import cases from "./golden_draws.json";
import { choose, exponential, heaviest, NEUTRAL, NOTHING_BEFORE, uniform, weigh, type Before, type Setting } from "./sampler";

interface Draw {
  logits: number[];
  settings: Partial<Setting>;
  u: number;
  weights: number[];
  total: number;
  target: number;
  cumulative: number;
  token_id: number;
}

interface Specified {
  uniform: { seed: string; choice: number; position: number; purpose: number; u: number }[];
  exponential: { logit: number; peak: number; result: number; weight: number }[];
  draw: Draw[];
}

// The file that every twin of the sampler is held to; tests/sampling/plain_sampler.py writes it.
const files = import.meta.glob<Specified>("../../tests/sampling/golden/draw.json", { eager: true, import: "default" });
const specified = Object.values(files)[0]!;

const fromBits = (words: number[]): Float32Array => new Float32Array(Uint32Array.from(words).buffer);

describe("the specification", () => {
  it("gives the same random numbers", () => {
    for (const { seed, choice, position, purpose, u } of specified.uniform) {
      expect(uniform(BigInt(seed), choice, position, purpose)).toBe(u);
    }
  });

  it("gives the same exponentials, to the bit", () => {
    for (const { logit, peak, result, weight } of specified.exponential) {
      const [own, highest, wanted] = fromBits([logit, peak, result]) as unknown as [number, number, number];
      expect(exponential(own, highest)).toBe(wanted);
      expect(weigh(Float32Array.of(own, highest))[0]).toBe(weight);
    }
  });

  it("gives the same draws", () => {
    for (const { logits, settings, u, ...wanted } of specified.draw) {
      const { stages, token, draw } = choose(fromBits(logits), { ...NEUTRAL, ...settings }, NOTHING_BEFORE, u);
      expect([...stages.at(-1)!.weights]).toEqual(wanted.weights);
      expect([token, draw?.target, draw?.high, draw?.total]).toEqual([
        wanted.token_id,
        wanted.target,
        wanted.cumulative,
        wanted.total,
      ]);
    }
  });
});

const word = (number: number, kind: number, at: number): number => uniform(BigInt(number), kind, at);

function logitsOf(number: number, size: number): Float32Array {
  const row = new Float32Array(size);
  for (let at = 0; at < size; at += 1) {
    row[at] = at % 7 === 3 ? row[at - 1]! : (word(number, 1, at) + word(number, 2, at)) / 2 ** 28 - 16;
  }
  return row;
}

function beforeOf(number: number, size: number): Before {
  const ids = Array.from({ length: 9 }, (_, at) => word(number, 4, at) % size);
  const bias = new Map([0, 1, 2].map((at) => [word(number, 5, at) % size, (at - 1) * 2.6] as const));
  const counts = new Map<number, number>();
  for (const id of [...ids.slice(4), ids.at(-1)!]) counts.set(id, (counts.get(id) ?? 0) + 1);
  return {
    said: [...new Set(ids)],
    output: [...counts.keys()],
    counts: [...counts.values()],
    biased: number % 3 ? [] : [...bias.keys()],
    bias: [...bias.values()],
    banned: number % 5 ? [] : [word(number, 7, 0) % size],
    allowed: Uint8Array.from({ length: number % 4 ? 0 : Math.ceil(size / 8) }, (_, at) => word(number, 6, at) | 1),
  };
}

describe("a thousand rows of the engine", () => {
  it("keep the same tokens and give the same one", () => {
    const names = ["temperature", "min_p", "top_k", "top_p", "repetition_penalty", "presence_penalty", "frequency_penalty"];
    expect(cases.length).toBe(1000);
    cases.forEach((row, number) => {
      const size = row[0]!;
      const setting = Object.fromEntries(names.map((name, at) => [name, row[at + 1]])) as unknown as Setting;
      const u = uniform(BigInt(number) * 2n ** 40n - 7n * BigInt(number), number % 3, 17 + number);
      const { stages, token, draw } = choose(logitsOf(number, size), setting, beforeOf(number, size), u);
      const kept = [...stages.at(-1)!.weights.keys()].filter((id) => stages.at(-1)!.weights[id]! > 0);
      const hash = kept.reduce((sum, id) => (Math.imul(sum, 31) + id + 1) >>> 0, 0);
      expect([number, token, ...(draw ? [kept.length, hash] : [0, 0])]).toEqual([number, ...row.slice(8)]);
    });
  }, 60_000); // it is a second of computing, which a busy machine stretches
});

describe("the likeliest", () => {
  it("come in order, the smaller id first among equals", () => {
    expect(heaviest(Float64Array.of(3, 9, 0, 9, 1), 3)).toEqual([1, 3, 0]);
    expect(heaviest(Float64Array.of(3, 9), 5)).toEqual([1, 0]);
  });
});
