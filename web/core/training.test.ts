// Curves of training: no peak is lost, a run that begins anew begins anew, and numbers that are none are left out.
import { describe, expect, it } from "vitest";

import { against, samplesOf, extentOf, heatOf, join, meaningOf, namesIn, pathOf, runsOf, samePrompts, seriesOf, smooth, stateOf, strengthOf, stretches, thin, ticksOf, type Run, type RunPart, type Update } from "./training";

const row = (update: number, loss: number | null, more: Partial<Update> = {}): Update => ({
  update, loss, norm: 1, rate: 0.1, seconds: 1, figures: {}, norms: {}, measured: {}, ...more,
});
const part = (start: number, rows: Update[]): RunPart => ({ name: "a", is_over: false, idle_seconds: 0, schema: 1, start, end: start + rows.length, size: 9, rows });

describe("a run that is followed", () => {
  it("grows by parts, and begins anew where a part begins at 0", () => {
    const first = join({ rows: [], end: 0 }, part(0, [row(0, 5), row(1, 4)]));
    const more = join(first, part(2, [row(2, 3)]));
    expect([more.rows.map((each) => each.update), more.end]).toEqual([[0, 1, 2], 3]);
    expect(join(more, part(0, [row(0, 5)])).rows.length).toBe(1);
    const told = join({ rows: [], end: 0 }, { ...part(0, [row(0, 5)]), example: [[["a", true]]] });
    expect(join(told, part(1, [row(1, 4)])).example).toEqual([[["a", true]]]); // it comes once
  });

  it("is running while it writes at its pace, and stopped long after", () => {
    const run = { name: "a", is_over: false, idle_seconds: 59, last: row(3, 1) };
    expect(stateOf(run)).toBe("running");
    expect(stateOf({ ...run, idle_seconds: 61 })).toContain("stopped");
    expect(stateOf({ ...run, idle_seconds: 61, last: row(3, 1, { seconds: 10 }) })).toBe("running");
    expect(stateOf({ ...run, is_over: true })).toBe("done");
    expect(stateOf({ ...run, fault: "x" })).toBe("cannot be read");
  });
});

describe("runs beside one another", () => {
  const run = (name: string, samples?: [string, string][]): Run => ({ name, is_over: true, idle_seconds: 0, last: row(3, 1, samples && { samples }) });

  it("are told for prompts to which more than one wrote", () => {
    const runs = [run("base", [["a", "1"], ["b", "2"]]), run("tuned", [["a", "3"]]), run("score"), { ...run("new"), last: null }];
    expect(samePrompts(runs)).toEqual([{ prompt: "a", texts: [{ run: "base", text: "1" }, { run: "tuned", text: "3" }] }]);
  });

  it("are one lesson's by its name, in the order of its stages", () => {
    const runs = ["lesson-2-sft", "lesson-sft", "lesson-pretrain", "lesson-data", "other"].map((name) => run(name));
    expect(runsOf("lesson", runs).map((each) => each.name)).toEqual(["lesson-pretrain", "lesson-sft"]);
    expect(runsOf("", [run("-sft")])).toEqual([]);
  });

  it("show what is scored in stretches", () => {
    expect(stretches([["a", false], ["b", false], ["c", true], ["d", false]])).toEqual([
      { text: "ab", isScored: false }, { text: "c", isScored: true }, { text: "d", isScored: false },
    ]);
    expect(stretches([])).toEqual([]);
  });
});

describe("curves", () => {
  it("leave out what was no number or not told", () => {
    const rows = [row(0, null), row(1, 4, { measured: { bits: 2 } }), row(2, 3)];
    expect(seriesOf(rows, "loss")).toEqual([{ x: 2, y: 4 }, { x: 3, y: 3 }]);
    expect(seriesOf(rows, "bits", "measured")).toEqual([{ x: 2, y: 2 }]);
    expect(namesIn(rows, "measured")).toEqual(["bits"]);
  });

  it("set one figure against another where both are told", () => {
    const rows = [row(0, 1, { figures: { a: 1 } }), row(1, 1, { figures: { a: 2, b: 5 } })];
    expect(against(rows, "a", "b")).toEqual([{ x: 2, y: 5 }]);
  });

  it("keep the least and the greatest of every stretch when they are thinned, in order", () => {
    const points = Array.from({ length: 10_000 }, (_, x) => ({ x, y: x === 4321 ? 99 : x === 77 ? -99 : Math.sin(x) }));
    const few = thin(points, 400);
    expect(few.length).toBeLessThanOrEqual(400);
    expect(few).toContainEqual({ x: 4321, y: 99 });
    expect(few).toContainEqual({ x: 77, y: -99 });
    expect(few.map(({ x }) => x)).toEqual(few.map(({ x }) => x).sort((a, b) => a - b));
    expect(thin(points.slice(0, 5), 400)).toEqual(points.slice(0, 5));
  });

  it("are smoothed by means that stay within the curve", () => {
    expect(smooth([0, 3, 6].map((y, x) => ({ x, y })), 1).map(({ y }) => y)).toEqual([1.5, 3, 4.5]);
  });

  it("fill their box, the greatest at the top", () => {
    const points = [{ x: 1, y: 2 }, { x: 3, y: 4 }];
    expect(pathOf(points, { low: 1, high: 3 }, { low: 2, high: 4 }, 100, 50)).toBe("M0.0 50.0L100.0 0.0");
  });

  it("have room even where all numbers are equal, or none is there", () => {
    expect(extentOf([2, 2])).toEqual({ low: 1.9, high: 2.1 });
    expect(extentOf([0])).toEqual({ low: -1, high: 1 });
    expect(extentOf([])).toEqual({ low: 0, high: 1 });
  });

  it("have round marks within their ends", () => {
    expect(ticksOf({ low: 0, high: 60 }, 4)).toEqual([0, 20, 40, 60]);
    expect(ticksOf({ low: 0.13, high: 0.47 }, 4)).toEqual([0.2, 0.3, 0.4]);
    expect(ticksOf({ low: 4e-4, high: 3e-3 }, 3)).toEqual([0.001, 0.002, 0.003]);
  });
});

it("what the model wrote comes last first", () => {
  const rows = [row(0, 1, { samples: [["A", " b"]] }), row(1, 1), row(2, 1, { samples: [["A", " c"]] })];
  expect(samplesOf(rows).map((each) => [each.update, each.samples[0]![1]])).toEqual([[3, " c"], [1, " b"]]);
});

describe("norms by part", () => {
  it("are means of stretches, by part in the model's order", () => {
    const rows = [1, 3, 5].map((value, at) => row(at, 1, { norms: { a: value, b: at === 2 ? null : 1 } }));
    const heat = heatOf(rows, 2);
    expect(heat.names).toEqual(["a", "b"]);
    expect(heat.columns).toEqual([
      { from: 1, to: 2, values: [2, 1] },
      { from: 3, to: 3, values: [5, null] },
    ]);
  });

  it("are told apart by powers of ten", () => {
    const all = { low: 0.01, high: 1 };
    expect([0.01, 0.1, 1].map((value) => strengthOf(value, all))).toEqual([0, 0.5, 1]);
    expect([strengthOf(null, all), strengthOf(0, all)]).toEqual([0, 0]);
  });
});

it("a number that this page does not know keeps its name", () => {
  expect(meaningOf("entropy_of_answers").title).toBe("entropy of answers");
  expect(meaningOf("bits_per_byte").says).toContain("8 is blind");
});

describe("odd records", () => {
  it("have no two marks that are one, and rows without figures", () => {
    const marks = ticksOf(extentOf([0.9999999999999999, 1, 1.0000000000000002]), 3);
    expect(new Set(marks).size).toBe(marks.length);
    expect(marks.length).toBeGreaterThan(1);
    expect(against([{ update: 0 } as unknown as Update], "a", "b")).toEqual([]);
  });
});
