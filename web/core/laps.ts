// One answer as laps through the pipeline: what stands on the way, with this run's times.
import type { Cost, Timeline } from "./payloads";

export interface Part {
  id: string;
  name: string; // in plain words
  view: string; // the station that shows it
  seconds: number; // of the whole answer
  isLap: boolean; // passed for every token, not once
}

const LAP: Record<string, [string, string]> = {
  embedding: ["row of the table", "embeddings"],
  attention: ["attention", "attention"],
  mlp: ["feed-forward", "feedforward"],
  unembedding: ["scores for all tokens", "logits"],
  sampling: ["the draw", "sampling"],
};
// Phases of the timeline that every answer passes once, before its laps and after them.
const ONCE: Record<string, [name: string, view: string, isBefore: boolean]> = {
  "template and tokenizer": ["text to ids", "tokens", true],
  queue: ["waiting", "timeline", true],
  "tokens to text": ["ids to text", "detokenization", false],
};

/** What an answer passed, in order: once before, then every token's lap, and what else the time went into. */
export function partsOf(cost: Cost, timeline: Timeline | null): Part[] {
  const lap = cost.stages.flatMap(({ name, seconds }): Part[] => {
    const [told, view] = LAP[name] ?? [name, "cost"];
    return name in ONCE ? [] : [{ id: name, name: told, view, seconds, isLap: true }];
  });
  const known = lap.reduce((sum, each) => sum + each.seconds, 0);
  const once = (timeline?.phases ?? []).flatMap(({ name, before, after }) => {
    const told = ONCE[name];
    return told ? [{ id: name, name: told[0], view: told[1], seconds: before + after, isLap: false, isBefore: told[2] }] : [];
  });
  const [first, last] = [true, false].map((isBefore) => once.filter((each) => each.isBefore === isBefore).map(({ isBefore: _, ...part }): Part => part));
  const rest = (timeline?.total ?? 0) - known - once.reduce((sum, each) => sum + each.seconds, 0);
  return [...first!, ...lap, ...last!, ...(rest > 0 ? [{ id: "rest", name: "all else", view: "timeline", seconds: rest, isLap: false }] : [])];
}

/** How long each part of a lap stands in a film of so many seconds; what takes nearly nothing is seen all the same. */
export function standsOf(parts: readonly Part[], seconds: number, least = 0.35): number[] {
  const all = parts.reduce((sum, each) => sum + each.seconds, 0);
  return parts.map((each) => Math.max(least, all ? (seconds * each.seconds) / all : 0));
}
