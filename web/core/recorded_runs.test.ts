// Recorded runs of training: each stage is there, each number has its update, and each run learned.
import { describe, expect, it } from "vitest";

import { RECORDED_RUNS } from "./recorded_runs";
import { namesIn, samplesOf, seriesOf } from "./training";

describe("recorded runs", () => {
  it("are those of all stages, whole, and small enough to be fetched", () => {
    expect(RECORDED_RUNS.map((each) => each.run.stage)).toEqual(["pretrain", "sft", "reward", "ppo", "dpo"]);
    for (const { run, rows } of RECORDED_RUNS) {
      expect(rows.map((each) => each.update), run.name).toEqual(rows.map((_, index) => 2 * index + 1));
      expect(2 * rows.length).toBe(run.settings!.updates);
      expect(seriesOf(rows, "loss").length).toBe(rows.length);
      expect(rows.some((each) => Object.keys(each.measured).length > 0 || each.samples), run.name).toBe(true);
      expect(run.last).toBe(rows.at(-1));
    }
    expect(namesIn(RECORDED_RUNS[0]!.rows, "norms").length).toBeGreaterThan(1);
    expect(RECORDED_RUNS[0]!.rows.at(-1)!.weight!.after).not.toBeUndefined();
  });

  it("learned what their stages are for", () => {
    const [pretrain, sft, reward, ppo, dpo] = RECORDED_RUNS.map((each) => each.rows);
    const ends = (rows: (typeof pretrain), name: string, part: "measured" | "figures" | null = null): [number, number] => {
      const points = seriesOf(rows!, name, part);
      return [points[0]!.y, points.at(-1)!.y];
    };
    for (const [first, last] of [ends(pretrain, "loss"), ends(sft, "loss")]) expect(last).toBeLessThan(first);
    const [failed, fails] = ends(ppo, "failed", "measured");
    expect(fails).toBeLessThan(failed);
    for (const [first, last] of [ends(reward, "accuracy", "measured"), ends(dpo, "accuracy", "measured")]) expect(last).toBeGreaterThan(first);
    expect(ends(dpo, "margin", "figures")[1]).toBeGreaterThan(0);
    expect(ends(ppo, "k3_of_answer", "figures")[1]).toBeGreaterThan(0); // the leash is measured
    expect(samplesOf(sft!).length).toBeGreaterThan(1);
  });
});
