// The tour's frame: guesses are judged, progress is remembered, and chapters have their addresses.
import { describe, expect, it, vi } from "vitest";

import { chapterIn, hashOfChapter, hashOfRoom, roomOf } from "../rooms";
import { placeOf } from "../route";
import { isKnown } from "../findings";
import type { Tokens } from "../payloads";
import { Views } from "../views";
import { isRight } from "./chapter";
import { chapterOf, CHAPTERS, placeOfWord, progressOf } from ".";
import { reachOf } from "./reach";

describe("a guess", () => {
  it("is right where it is what was measured, a number within its slack", () => {
    const said = "";
    expect([isRight("forward", { right: "forward", said }), isRight("queue", { right: "forward", said })]).toEqual([true, false]);
    const exact = ["8", "8.0", "9", "", " "].map((each) => isRight(each, { right: 8, said }));
    expect(exact).toEqual([true, true, false, false, false]);
    const near = ["90", "110", "89"].map((each) => isRight(each, { right: 100, slack: 0.1, said }));
    expect(near).toEqual([true, true, false]);
    expect([isRight("", { right: 0, said }), isRight("0", { right: 0, said })]).toEqual([false, true]);
  });
});

describe("chapters", () => {
  it("are each there once, short, and draw a station of this page", () => {
    expect(new Set(CHAPTERS.map((each) => each.id)).size).toBe(CHAPTERS.length);
    for (const chapter of CHAPTERS) {
      expect(isKnown(chapter.view), chapter.id).toBe(true);
      expect(chapter.does.split(" ").length, chapter.id).toBeLessThanOrEqual(75);
      expect(chapterOf(chapter.id)).toBe(chapter);
    }
    expect([chapterOf(null), chapterOf("?")]).toEqual([CHAPTERS[0], CHAPTERS[0]]);
  });

  it("look first at the longest word of what was asked", () => {
    const prompt = { texts: ["assistant", "What", "\u00b7is", "\u00b7gravity", "?", "\u00b7assistance"], num_prompt: 5 } as Tokens;
    expect(placeOfWord(prompt, "What is gravity?")).toBe(3);
    expect(placeOfWord(prompt, "??")).toBe(4);
  });

  it("have an address that keeps the room and the place behind it", () => {
    const hash = hashOfChapter("e", "#/room/tour-a/c/x/t/1");
    expect(hash).toBe("#/room/tour-e/c/x/t/1");
    expect([chapterIn(hash), roomOf(hash), chapterIn("#/room/tour/c/x"), chapterIn("#/room/tour-ab")]).toEqual(["e", "tour", null, null]);
    expect(placeOf(hash)).toMatchObject({ chat: "x", turn: 1 });
    expect(hashOfRoom(null, hash)).toBe("#/c/x/t/1");
  });

  it("are remembered, and what a browser has garbled is forgotten", () => {
    expect(progressOf('{"a":"right","b":"wrong","c":"maybe","d":1}')).toEqual({ a: "right", b: "wrong" });
    expect([progressOf(null), progressOf("{"), progressOf("null")]).toEqual([{}, {}, {}]);
  });
});

describe("reach", () => {
  it("asks routes, and throws in the server's words", async () => {
    const body = { count: 4 };
    const answers = [Response.json(body), Response.json({ error: { message: "text has 0 bytes." } }, { status: 400 })];
    const fake = vi.fn((_path: string, _init: RequestInit) => Promise.resolve(answers.shift()!));
    vi.stubGlobal("fetch", fake);
    const reach = reachOf(new Views("id"), "m");
    expect(await reach.post("/tokenize", { prompt: "x" })).toEqual(body);
    expect(fake.mock.calls[0]![1].body).toBe('{"prompt":"x"}');
    await expect(reach.post("/cutaway/v1/learn", {})).rejects.toThrow("text has 0 bytes.");
    vi.unstubAllGlobals();
  });
});
