import { describe, expect, it } from "vitest";

import { partsOf, standsOf } from "./laps";
import type { Cost, Timeline } from "./payloads";

const stage = (name: string, seconds: number): Cost["stages"][number] => ({ name, seconds, num_bytes: 0, flops: 0, intensity: 0 });
const cost = { stages: [stage("embedding", 0.001), stage("attention", 0.5), stage("mlp", 1), stage("unembedding", 0.4), stage("sampling", 0.1)] } as unknown as Cost;
const phases = [
  { name: "template and tokenizer", before: 0.002, after: 0 },
  { name: "queue", before: 0.01, after: 0 },
  { name: "forward", before: 0.2, after: 1.9 },
  { name: "tokens to text", before: 0.001, after: 0.002 },
];
const timeline = { phases, total: 2.4 } as unknown as Timeline;

describe("the whole way with its times", () => {
  it("goes from text through every lap to text, and adds up to all of the time", () => {
    const parts = partsOf(cost, timeline);
    expect(parts.map((each) => each.name)).toEqual(["text to ids", "waiting", "row of the table", "attention", "feed-forward", "scores for all tokens", "the draw", "ids to text", "all else"]);
    expect(parts.reduce((sum, each) => sum + each.seconds, 0)).toBeCloseTo(timeline.total, 12);
    expect(parts.filter((each) => each.isLap).map((each) => each.id)).toEqual(cost.stages.map((each) => each.name));
  });

  it("has its laps where a file tells no more", () => {
    expect(partsOf(cost, null).map((each) => each.id)).toEqual(cost.stages.map((each) => each.name));
  });

  it("stands longer at what took longer", () => {
    const laps = partsOf(cost, null);
    const [row, attention, mlp] = standsOf(laps, 8);
    expect(row).toBe(0.35);
    expect(mlp! / attention!).toBeCloseTo(2, 12);
  });
});
