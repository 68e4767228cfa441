// Raw streams of the last answers, until the page is loaded anew: nothing else is done with them.
import type { Painted } from "../../core/way";
import type { Arrived } from "../../core/wire";

/** A stream, and when its tokens were painted. began: when the question was sent, in milliseconds of this page's clock. */
export interface Wire {
  began: number;
  pieces: readonly Arrived[];
  painted: readonly Painted[];
}

const MOST = 4_000_000; // characters in all: about 5,000 tokens with their alternatives
const kept = new Map<string, Wire>();

/** Keep a stream under its answer's id; the oldest go where all take too much. */
export function keepWire(trace: string, wire: Wire): void {
  kept.set(trace, wire);
  const size = (): number => [...kept.values()].flatMap((each) => each.pieces).reduce((sum, each) => sum + each.text.length, 0);
  while (kept.size > 1 && size() > MOST) kept.delete(kept.keys().next().value!);
}

/** The stream of an answer; null where it did not come to this page, or is gone. */
export const wireOf = (trace: string): Wire | null => kept.get(trace) ?? null;
