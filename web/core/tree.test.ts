// Branches of a conversation, what the server is told of a path, and files of conversations.
import { describe, expect, it } from "vitest";

import { joined } from "./chat";
import { NOTHING_SET } from "./sampling";
import { merged, readChats, written, type KeptChat } from "./transfer";
import { byParent, leafUnder, messagesOf, openCalls, pathTo, type Kept } from "./tree";

const turn = (id: string, parent: string | null, more: Partial<Kept> = {}): Kept => ({
  ...{ id, parent, role: "user" as const, text: id },
  ...more,
});
const TURNS = [
  turn("a", null),
  turn("b", "a", { role: "assistant" }),
  turn("c", "a", { role: "assistant" }),
  turn("d", "b"),
  turn("e", "b"),
];
const CALL = { id: "call_1", name: "weather", arguments: "{}" };

describe("a tree", () => {
  it("has a path to each leaf and branches beside each turn", () => {
    expect(pathTo(TURNS, "e").map(({ id }) => id)).toEqual(["a", "b", "e"]);
    expect(byParent(TURNS).get(TURNS[1]!.parent)?.map(({ id }) => id)).toEqual(["b", "c"]);
    expect([leafUnder(TURNS, "a"), leafUnder(TURNS, "b")]).toEqual(["c", "e"]);
    expect(pathTo(TURNS, null)).toEqual([]);
  });

  it("ends where a file made it a circle", () => {
    const circle = [turn("a", "b"), turn("b", "a")];
    expect(pathTo(circle, "a").length).toBe(2);
    expect(["a", "b"]).toContain(leafUnder(circle, "a"));
  });
});

describe("messages", () => {
  it("have the system prompt first and leave out empty turns", () => {
    const path = [turn("a", null), turn("", "a", { role: "assistant" })];
    expect(messagesOf(" be kind ", path)).toEqual([
      { role: "system", content: " be kind " },
      { role: "user", content: "a" },
    ]);
    expect(messagesOf(" ", path).length).toBe(1);
  });

  it("carry calls and their results, and know which are open", () => {
    const asked = [turn("a", null), turn("b", "a", { role: "assistant", text: "", calls: [CALL] })];
    expect(openCalls(asked)).toEqual([CALL]);
    const path = [...asked, turn("c", "b", { role: "tool", text: "sun", call: "call_1" })];
    expect(openCalls(path)).toEqual([]);
    expect(messagesOf("", path).slice(1)).toEqual([
      {
        role: "assistant",
        content: null,
        tool_calls: [{ id: "call_1", type: "function", function: { name: "weather", arguments: "{}" } }],
      },
      { role: "tool", content: "sun", tool_call_id: "call_1" },
    ]);
  });

  it("join the parts of calls", () => {
    const first = joined([], [{ index: 0, id: "x", function: { name: "f", arguments: '{"a"' } }]);
    const second = joined(first, [{ index: 0, function: { arguments: ":1}" } }]);
    expect(second).toEqual([{ id: "x", name: "f", arguments: '{"a":1}' }]);
  });
});

describe("files", () => {
  const chat: KeptChat = {
    ...{ id: "x", title: "One", changed: 5, leaf: "e" },
    settings: { ...NOTHING_SET, numbers: { temperature: 0.5 }, stop: ["END"] },
    turns: TURNS,
  };

  it("are read as they were written", () => {
    expect(readChats(written([chat]))).toEqual([chat]);
  });

  it("of ill will give plain data or a reason", () => {
    expect(() => readChats("{")).toThrow("not JSON");
    expect(() => readChats('{"kind": "x"}')).toThrow("no conversations");
    expect(() => readChats('{"kind": "cutaway-chats", "version": 2, "chats": []}')).toThrow("version 2");
    const bad = { turns: [{ id: 1 }, null, { id: "a", role: "user", text: {}, parent: "zz" }], leaf: 7, settings: [] };
    const read = readChats(JSON.stringify({ kind: "cutaway-chats", version: 1, chats: [bad, null] }));
    expect(read[0]?.turns).toEqual([turn("a", null, { text: "" })]);
    expect(read[0]?.leaf).toBe("a");
    expect(read[1]?.turns).toEqual([]);
  });

  it("of two tabs are joined: every turn of either, as far as it came", () => {
    const chat = (turns: Kept[]): KeptChat => ({ id: "c", title: "", changed: 1, leaf: null, settings: NOTHING_SET, turns });
    const said = (id: string, text: string, more: Partial<Kept> = {}): Kept => turn(id, null, { role: "assistant", text, ...more });
    const mine = chat([turn("q", null), said("a", "half"), said("b", "long", { finish: "stop" })]);
    const kept = chat([turn("q", null), said("a", "whole", { finish: "stop" }), said("b", "lo"), turn("z", "a")]);
    const texts = merged(mine, kept).turns.map(({ id, text }) => `${id} ${text}`);
    expect(texts).toEqual(["q q", "a whole", "b long", "z z"]);
    expect(merged(mine, undefined)).toBe(mine);
  });

  it("keep where they were forked, and what went wrong", () => {
    const kept = [turn("a", null, { role: "assistant", forkedAt: 3, fault: "no" })];
    const file = written([{ id: "c", title: "", changed: 1, leaf: "a", settings: NOTHING_SET, turns: kept }]);
    expect(readChats(file)[0]?.turns).toEqual(kept);
  });
});
