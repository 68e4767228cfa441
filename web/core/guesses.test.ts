import { describe, expect, it } from "vitest";

import { beatsOf, givenBy, lookOf } from "./guesses";
import type { Guess, VerifiedStep } from "./payloads";
import { GUESSED } from "./recorded";

const guess = (text: string, verdict: Guess["verdict"], came = text): Guess => ({
  ...{ token_id: 1, text, verdict, came },
  ...{ probability: null, chance: null, u: null, q: null, residual: null },
});
const step = (guesses: Guess[], last: string, given: number): VerifiedStep => ({ number: 0, token: 0, given, guesses, last });

describe("guesses as a film", () => {
  it("gives what stood and what the model drew, whatever came of the guesses", () => {
    expect(givenBy(step([], "The", 1))).toEqual(["The"]);
    expect(givenBy(step([guess("a", "accepted"), guess("b", "accepted")], "c", 3))).toEqual(["a", "b", "c"]);
    expect(givenBy(step([guess("a", "accepted"), guess("b", "refused", "x"), guess("c", "unused")], "x", 2))).toEqual(["a", "x"]);
    expect(givenBy(step([guess("a", "accepted"), guess("b", "accepted")], "b", 2)), "nothing behind the last").toEqual(["a", "b"]);
  });

  it("judges one guess after another, and nothing behind a wrong one", () => {
    const beats = beatsOf([step([], "The", 1), step([guess("a", "accepted"), guess("b", "refused", "x"), guess("c", "unused")], "x", 2)]);
    const looks = beats.map((beat) => beat.step.guesses.map((each, place) => lookOf(each, place, beat)));
    expect(looks).toEqual([
      [],
      ["guessed", "guessed", "guessed"],
      ["accepted", "guessed", "guessed"],
      ["accepted", "refused", "unused"],
      ["accepted", "refused", "unused"],
    ]);
    expect(beats.map((beat) => beat.stands.join(" "))).toEqual(["The", "The", "The a", "The a", "The a x"]);
  });

  it("ends a recorded run with the tokens that it counts", () => {
    const beats = beatsOf(GUESSED.steps);
    expect(beats.at(-1)!.stands.length).toBe(GUESSED.steps.reduce((sum, each) => sum + each.given, 0));
    const verdicts = new Set(GUESSED.steps.flatMap((each) => each.guesses.map((one) => one.verdict)));
    expect(verdicts.has("accepted") && verdicts.has("refused")).toBe(true);
  });
});
