// Raw streams of the last answers, until the page is loaded anew: nothing else is done with them.
import type { Arrived } from "../../core/wire";

const MOST = 4_000_000; // characters in all: about 5,000 tokens with their alternatives
const kept = new Map<string, Arrived[]>();

/** Keep a stream under its answer's id; the oldest go where all take too much. */
export function keepWire(trace: string, pieces: Arrived[]): void {
  kept.set(trace, pieces);
  const size = (): number => [...kept.values()].flat().reduce((sum, each) => sum + each.text.length, 0);
  while (kept.size > 1 && size() > MOST) kept.delete(kept.keys().next().value!);
}

/** The stream of an answer; null where it did not come to this page, or is gone. */
export const wireOf = (trace: string): readonly Arrived[] | null => kept.get(trace) ?? null;
