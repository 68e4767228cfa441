import { describe, expect, it } from "vitest";

import { stretchesOf } from "./characters";

const told = (text: string, typed: string, most = 99): string[] => stretchesOf([...text], typed, most).map(({ name, start, end }) => `${name}|${[...text].slice(start, end).join("")}`);

describe("characters of what was sent", () => {
  it("begin with what was typed, also beyond the first plane and where it was said before", () => {
    expect(told("user\nhi \u{1f600}\nassistant\n", "hi \u{1f600}")).toEqual(["What you typed|hi \u{1f600}", "What was sent before it|user\n", "And behind it|\nassistant\n"]);
    expect(told("hi you: hi", "hi")).toEqual(["What you typed|hi", "What was sent before it|hi you: "]);
  });

  it("are one where nothing else was sent, or nothing was found", () => {
    expect(told("hello", "hello")).toEqual(["|hello"]);
    expect(told("hello", "")).toEqual(["|hello"]);
    expect(told("hello", "other", 3)).toEqual(["|hel"]);
  });
});
