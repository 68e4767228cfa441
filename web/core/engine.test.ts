// Pages as bricks, and answers as lanes of time.
import { describe, expect, it } from "vitest";

import { bricksOf, engineOf, placedOf, readingOf, seamsOf, secondsLeft, Watch, whyOf, type Moment, type Running } from "./engine";

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

describe("engines of a fleet", () => {
  const member = (name: string, engine: Moment | null) => ({
    name,
    state: engine ? "ready" : "starting",
    starts: 1,
    bound: 0,
    requests: 0,
    waiting_tokens: 0,
    prompt_rate: 0,
    step_seconds: 0,
    numeric_class: "",
    refused: null,
    engine,
  });

  it("are shown one at a time, the first that tells anything where none is chosen", () => {
    const [one, two] = [moment([running(1, 2)]), moment([running(2, 3)])];
    const whole = { ...one, fleet: { waiting: 0, resumed: {}, members: [member("0", null), member("1", one), member("2", two)] } };
    expect(engineOf(whole, "2")).toBe(two);
    expect(engineOf(whole, null)).toBe(one);
    expect(engineOf(one, null)).toBe(one);
    expect(engineOf(whole, "0")).toBe(whole);
  });

  it("tell in words how many answers went on, and how well", () => {
    const told = (resumed: Record<string, number>) => seamsOf({ waiting: 0, resumed, members: [] });
    expect(told({})).toBe("no answer had to go on elsewhere");
    expect(told({ true: 1 })).toBe("1 answer went on in another engine, to the bit");
    expect(told({ true: 3, false: 1 })).toBe("4 answers went on in another engine, 1 not to the bit");
  });
});

describe("where an answer was computed", () => {
  const route = (member: string, why: string) => ({ member, why, estimated: 64, missing: 16 });
  const answer = (routes: string[], is_exact: boolean | null, is_done = true) => ({
    trace_id: "a",
    is_done,
    num_tokens: 3,
    is_exact,
    routes: routes.map((member) => route(member, "idle")),
  });

  it("is told with the reason, and with what was thought to be there", () => {
    expect(whyOf(route("0", "cache"))).toBe("it was thought to have its beginning, 64 of 80 tokens");
    expect(whyOf(route("0", "idle"))).toBe("it had nothing to do");
    expect(whyOf(route("0", "later"))).toBe("later");
  });

  it("says what became of it between two engines", () => {
    expect(placedOf(answer(["0"], null))).toBe("whole in one");
    expect(placedOf(answer(["0"], null, false))).toBe("being computed");
    expect(placedOf(answer(["0", "1"], true))).toBe("went on once, to the bit");
    expect(placedOf(answer(["0", "1", "0"], false))).toBe("went on 2 times, not to the bit");
    expect(placedOf(answer(["0", "1"], null))).toBe("went on once, before it had said anything");
  });
});

describe("pages", () => {
  it("are bricks, each as the busiest page that it stands for", () => {
    expect(bricksOf(".uuf", 10).map((brick) => brick.state)).toEqual([".", "u", "u", "f"]);
    const few = bricksOf(".ucffsuf", 4);
    expect(few.map((brick) => brick.state)).toEqual(["u", "c", "s", "u"]);
    expect(few.reduce((sum, brick) => sum + brick.count, 0)).toBe(8);
    expect(bricksOf("", 4)).toEqual([]);
  });

  it("are each their own where free ones alone are too many for the picture", () => {
    const bricks = bricksOf(`.uc${"f".repeat(9000)}s${"f".repeat(5)}`, 16);
    expect(bricks.slice(0, 5)).toEqual([
      { state: ".", first: 0, count: 1 },
      { state: "u", first: 1, count: 1 },
      { state: "c", first: 2, count: 1 },
      { state: "f", first: 3, count: 9000 },
      { state: "s", first: 9003, count: 1 },
    ]);
    expect(bricks).toHaveLength(10);
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

  it("that still run are kept, however many there are", () => {
    const watch = new Watch(60, 2);
    watch.add(moment([running(1, 9), running(2, 9), running(3, 9)]), 0);
    watch.add(moment([running(1, 10), running(3, 10), running(4, 9)]), 1);
    expect([...watch.lanes.keys()]).toEqual([1, 3, 4]);
    expect(watch.lanes.get(1)?.spans).toEqual([{ state: "decode", from: 0, to: 1 }]);
  });

  it("stay as many as are allowed in ten minutes of answers", () => {
    const watch = new Watch(60, 24);
    for (let at = 0; at < 1200; at += 1) {
      watch.add(moment(Array.from({ length: 20 }, (_, index) => running(at * 3 + index, 9))), at / 2);
      expect(watch.lanes.size).toBeLessThanOrEqual(24);
    }
  });
});

describe("a prompt that is read", () => {
  it("is one's own, and told only where it is clear which", () => {
    expect(readingOf(moment([running(1, 4), running(2, 2)]))).toEqual({ done: 4, all: 8 });
    expect(readingOf(moment([running(1, 9)]))).toBeNull();
    expect(readingOf(moment([running(1, 4), running(1, 2)]))).toBeNull();
  });

  it("takes as long as what is left at the speed so far", () => {
    expect(secondsLeft({ at: 10, done: 100 }, { at: 12, done: 300, all: 1000 })).toBe(7);
    expect(secondsLeft({ at: 10, done: 100 }, { at: 10, done: 100, all: 1000 })).toBeNull();
  });
});
