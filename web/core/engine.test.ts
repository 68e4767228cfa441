// Pages as bricks, and answers as lanes of time.
import { describe, expect, it } from "vitest";

import { bricksOf, Watch, type Moment, type Running } from "./engine";

const running = (answer: number, computed: number): Running => ({
  answer,
  trace_id: answer === 1 ? "chatcmpl-1" : null,
  choice: 0,
  num_tokens: 10 + computed,
  num_computed: computed,
  num_prompt_tokens: 8,
  num_cached: 0,
  preemptions: 0,
  pages: [],
});

const moment = (running_: Running[], waiting: Running[] = []): Moment => ({
  schema: 1,
  steps: 1,
  running: running_,
  waiting,
  batch: null,
  groups: [],
  counts: {},
});

describe("pages", () => {
  it("are bricks, each as the busiest page that it stands for", () => {
    expect(bricksOf(".uuf", 10).map((brick) => brick.state)).toEqual([".", "u", "u", "f"]);
    const few = bricksOf(".ucffsuf", 4);
    expect(few.map((brick) => brick.state)).toEqual(["u", "c", "s", "u"]);
    expect(few.reduce((sum, brick) => sum + brick.count, 0)).toBe(8);
    expect(bricksOf("", 4)).toEqual([]);
  });
});

describe("lanes", () => {
  it("tell when an answer waited, read its prompt and wrote", () => {
    const watch = new Watch();
    watch.add(moment([], [running(1, 0)]), 0);
    watch.add(moment([running(1, 4)]), 1);
    watch.add(moment([running(1, 9)]), 2);
    watch.add(moment([running(1, 12)]), 3);
    const lane = watch.lanes.get(1)!;
    expect(lane.spans).toEqual([
      { state: "waiting", from: 0, to: 0 },
      { state: "prefill", from: 0, to: 1 },
      { state: "decode", from: 1, to: 3 },
    ]);
    expect([lane.isOwn, lane.tokens]).toEqual([true, 22]);
  });

  it("are forgotten, the oldest first", () => {
    const watch = new Watch(10, 2);
    watch.add(moment([running(1, 9)]), 0);
    watch.add(moment([running(2, 9), running(3, 9)]), 5);
    expect([...watch.lanes.keys()]).toEqual([2, 3]);
    watch.add(moment([running(3, 9)]), 20);
    expect([...watch.lanes.keys()]).toEqual([3]);
  });
});
