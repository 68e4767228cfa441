// Pairs turn as the engine turns them, to the last digits of a double.
import { describe, expect, it } from "vitest";

import golden from "./golden_rotary.json";
import { SCALINGS, speedsOf, wave } from "./rotary";

function near(found: number[], wanted: readonly number[]): void {
  expect(found.length).toBe(wanted.length);
  found.forEach((each, index) => expect(Math.abs(each - wanted[index]!)).toBeLessThanOrEqual(1e-12 * Math.max(1e-3, Math.abs(wanted[index]!))));
}

describe("pairs", () => {
  it("turn at the engine's speeds under every scaling", () => {
    expect(golden.turnings.length).toBe(4);
    for (const { speeds, ...turning } of golden.turnings) for (const { id } of SCALINGS) near(speedsOf(id, turning), speeds[id]);
  });

  it("are the engine's waves where they are added", () => {
    for (const { position, width, values } of golden.waves) near(wave(position, width), values);
  });
});
