// Recorded runs of training: each stage is there, each number has its update, and each run learned.
import { describe, expect, it } from "vitest";

import { RECORDED_RUNS } from "./recorded_runs";
import { namesIn, samePrompts, samplesOf, seriesOf, stretches } from "./training";

describe("recorded runs", () => {
  it("are those of all stages, whole, and small enough to be fetched", () => {
    expect(RECORDED_RUNS.map((each) => each.run.stage)).toEqual(["pretrain", "sft", "reward", "ppo", "dpo"]);
    for (const { run, rows } of RECORDED_RUNS) {
      const every = Number(run.settings!.updates) / rows.length;
      expect(every, run.name).toBe(run.stage === "pretrain" ? 5 : 2);
      expect(rows.map((each) => each.update), run.name).toEqual(rows.map((_, index) => every * (index + 1) - 1));
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
    expect(failed - fails).toBeGreaterThan(0.2);
    expect(samplesOf(sft!).length).toBeGreaterThan(1);
    const same = samePrompts(RECORDED_RUNS.map((each) => each.run));
    expect(same.map((each) => each.texts.map(({ run }) => run))).toEqual([["pretrain", "sft"], ["pretrain", "sft"]]);
    expect(same[0]!.texts[0]!.text).toMatch(/^ last: /); // a base model goes on with the text
    expect(same[0]!.texts[1]!.text).not.toMatch(/^ last: /);
  });

  it("show of conversations that the answer alone is learned, and of a pair both answers", () => {
    const [, sft, , , dpo] = RECORDED_RUNS.map((each) => each.example);
    for (const example of [...sft!, ...dpo!]) {
      const parts = stretches(example);
      expect(parts[0]).toMatchObject({ isScored: false });
      expect(parts[0]!.text).toMatch(/Which word is last/);
      expect(parts[1]).toMatchObject({ isScored: true });
      expect(parts[1]!.text).toMatch(/<\|im_end\|>$/); // that it ends is learned too
    }
    expect(dpo!.length).toBe(2);
  });
});
