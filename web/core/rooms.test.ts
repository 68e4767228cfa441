// Rooms stand in front of the place that they keep.
import { describe, expect, it } from "vitest";

import { hashHere, hashOfRoom, roomOf, ROOMS } from "./rooms";
import { hashOf, placeOf } from "./route";

describe("a room's address", () => {
  it("is read, and an unknown one is none", () => {
    expect([roomOf("#/room/lab"), roomOf("#/room/lab/c/a/t/1"), roomOf("#/room/attic"), roomOf("#/c/room")]).toEqual([
      "lab",
      "lab",
      null,
      null,
    ]);
  });

  it("keeps the place behind it, which is read as before", () => {
    const hash = hashOfRoom("engine", "#/c/a/t/1/s/3");
    expect(hash).toBe("#/room/engine/c/a/t/1/s/3");
    expect(placeOf(hash)).toMatchObject({ chat: "a", turn: 1, step: 3 });
    expect(hashOfRoom("lab", hash)).toBe("#/room/lab/c/a/t/1/s/3");
    expect(hashOfRoom(null, hash)).toBe("#/c/a/t/1/s/3");
    expect([hashOfRoom(null, "#/room/lab"), hashOfRoom("lab", "")]).toEqual(["", "#/room/lab"]);
  });

  it("stays when the place behind it changes", () => {
    for (const { id } of ROOMS) {
      const hash = hashOfRoom(id, "#/c/a/t/1/s/3/v/attention/l/1/h/2");
      for (const change of [{ view: "lens" }, { step: 4 }, { layer: null, head: null }, { chat: "b" }]) {
        const there = hashHere(hashOf({ ...placeOf(hash), ...change }), hash);
        expect(roomOf(there)).toBe(id);
        expect(placeOf(there)).toEqual({ ...placeOf(hash), ...change });
      }
    }
    expect(hashHere("", "#/room/lab/c/a")).toBe("#/room/lab");
    expect(hashHere("#/c/a", "#/c/b")).toBe("#/c/a");
  });
});
