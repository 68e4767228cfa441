// Stations in words: numbers, findings, formulas, faults, colours, and the Python that is copied.
import { describe, expect, it } from "vitest";

import { css, diverging, inkOn, luminance, viridis } from "./colour";
import { findingOf, isKnown } from "./findings";
import { formulasOf, type Markup } from "./formulas";
import { shownOf } from "./frame";
import frames from "./golden.json";
import { headlineOf } from "./headlines";
import { binsOf, spreadOf } from "./lab";
import { bytes, figure, operations, roundWithin, seconds, share } from "./numbers";
import type { Drift, Probabilities, Weights } from "./payloads";
import { plainFindingOf } from "./plain_findings";
import { pythonOf } from "./python";
import { GROUPS, STATIONS, stationOf } from "./stations";
import { faultsOf } from "./wrong";

function values<Payload>(name: keyof typeof frames): Payload {
  const bytes = Uint8Array.from(atob(frames[name]), (sign) => sign.charCodeAt(0));
  return shownOf(bytes.buffer).values as unknown as Payload;
}

const textOf = (markup: Markup): string =>
  typeof markup === "string" ? markup : (markup.slice(1) as Markup[]).map(textOf).join("");

describe("numbers", () => {
  it("keep as many digits as they bear", () => {
    const shown = [0, 1234567, 0.012345, 12.345, -3.14159, 1.5e-9, -Infinity, NaN].map((each) => figure(each));
    expect(shown).toEqual(["0", "1,234,567", "0.0123", "12.3", "\u22123.14", "1.50\u00d710\u207b\u2079", "\u2212\u221e", "none"]);
  });

  it("do not tell small shares as none, nor large ones as all", () => {
    expect([0, 1, 0.9999, 0.9989, 0.5, 0.0123, 1e-9].map(share)).toEqual([
      "0 %", "100 %", "> 99.9 %", "99.9 %", "50.0 %", "1.2 %", "1.0\u00d710\u207b\u2077 %",
    ]);
  });

  it("mark an axis at round places within it", () => {
    const ends: [number, number][] = [[0, 1], [0, 846], [-1.1, 1.1], [-0.089, 1], [0, 4.2], [0, 3e-10], [2, 2.5]];
    expect(ends.map(([low, high]) => roundWithin(low, high).map((each) => figure(each)))).toEqual([
      ["0", "0.5", "1"], ["0", "200", "400", "600", "800"], ["\u22121", "0", "1"], ["0", "0.5", "1"], ["0", "2", "4"],
      ["0", "1.00\u00d710\u207b\u00b9\u2070", "2.00\u00d710\u207b\u00b9\u2070", "3.00\u00d710\u207b\u00b9\u2070"], ["2", "2.2", "2.4"],
    ]);
  });

  it("choose units", () => {
    expect([bytes(384), bytes(1536), operations(2.5e9), seconds(2e-6), seconds(0.0321), seconds(2)]).toEqual([
      "384 B", "1.5 KiB", "2.5 GFLOP", "2 \u00b5s", "32.1 ms", "2 s",
    ]);
  });
});

describe("stations", () => {
  it("are each known, in a group, and once", () => {
    const views = STATIONS.map((each) => each.view);
    expect(new Set(views).size).toBe(views.length);
    expect(views.every(isKnown)).toBe(true);
    const groups = new Set(GROUPS.map((each) => each.id as string));
    expect(STATIONS.every((each) => groups.has(each.group))).toBe(true);
    expect(stationOf("of another time").takes).toEqual([]);
  });

  it("say what they found, with its numbers", () => {
    const found = findingOf("probabilities", values<Probabilities>("probabilities"));
    expect(found).toBe(
      "\u201ca\u201d came with 75.0 %, choice 1 of 320. It hesitated as between 2 equally likely tokens.",
    );
    expect(findingOf("weights", values<Weights>("weights"))).toContain("3 \u00d7 2 numbers kept in 24 B: 32 bits each");
    expect(headlineOf("drift", values<Drift>("drift"))).toBe("cos 0.25");
    expect(faultsOf("weights", values<Weights>("weights"))[0]!.here).toBe("from \u22121 to 2, deviation 0.25");
  });

  it("say it in everyday words too, with one number a sentence", () => {
    const terms = /cosine|norm|logit|softmax|FLOP|[KMG]iB|byte|seed|entropy|layer \d+, head/i;
    const names = Object.keys(frames).filter(isKnown);
    const said = names.map((name) => plainFindingOf(name, values(name as keyof typeof frames)));
    expect(said.filter(Boolean).length).toBe(2);
    for (const sentence of said.flatMap((each) => each.replace(/\u201c.*?\u201d/g, "").split(/(?<=[.!])\s/))) {
      expect(sentence).not.toMatch(terms);
      expect(sentence.match(/\d[\d.,]*/g)?.length ?? 0).toBeLessThan(2);
    }
  });

  it("sort a row of logits into steps that hold all of it", () => {
    const row = [0, 1, 2, 4, -Infinity];
    const total = 1 + Math.E + Math.exp(2) + Math.exp(4);
    const spread = spreadOf(row);
    expect([spread.least, spread.most, spread.mean]).toEqual([0, 4, 1.75]);
    expect(1 / spread.mass).toBeCloseTo(Math.exp(4) / total, 12);
    const bins = binsOf(row, 4);
    expect(bins.map((bin) => bin.count)).toEqual([1, 1, 1, 1]);
    expect(bins[1]!.share).toBeCloseTo(Math.exp(2) / total, 12);
    expect(binsOf([3, 3], 2).map((bin) => bin.count)).toEqual([0, 2]);
  });

  it("put their numbers into their formulas", () => {
    const [formula] = formulasOf("weights", values<Weights>("weights"));
    expect(textOf(formula!)).toBe("bits\u00a0a\u00a0number=8\u00d7246=32");
    expect(textOf(formulasOf("probabilities", values<Probabilities>("probabilities"))[0]!)).toContain("e\u22120.2877=0.75");
  });

  it("give the Python that makes the answer again", () => {
    const query = { view: "lens", position: 3, text: 'a "b"' };
    const made = { model: "m", build: { dtype: "float32" }, prompt: [1, 2], numTokens: 5, settings: { temperature: 0.5 }, seed: "7" };
    const program = pythonOf(query, made);
    expect(program).toContain("prompt = [1, 2]\n");
    expect(program).toContain("SamplingParams(temperature=0.5, seed=7, max_tokens=5)");
    expect(program).toContain('LLM("m", dtype="float32")');
    expect(program).toContain('llm.view(answer, "lens", position=3, text="a \\"b\\"")');
    expect(pythonOf({ view: "cost" }, { ...made, seed: null })).not.toContain("seed");
  });
});

describe("colours", () => {
  it("bear text of 4.5:1 wherever it is written on them", () => {
    for (let step = 0; step <= 100; step += 1) {
      const colour = viridis(step / 100);
      const ground = luminance(...colour);
      const ink = inkOn(colour) === "#000" ? 0 : 1;
      const ratio = (Math.max(ground, ink) + 0.05) / (Math.min(ground, ink) + 0.05);
      expect(ratio).toBeGreaterThanOrEqual(4.5);
    }
  });

  it("begin and end where viridis does, and part signs", () => {
    expect([css(viridis(0)), css(viridis(1)), css(viridis(2))]).toEqual([
      "rgb(68 1 84)", "rgb(253 231 37)", "rgb(253 231 37)",
    ]);
    expect(diverging(0)[3]).toBe(0);
    expect(diverging(-2)[3]).toBe(255);
    expect(diverging(-1)[2]).toBeGreaterThan(diverging(1)[2]);
  });
});
