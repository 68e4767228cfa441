// Which of two answers was liked better, in the form that `cutaway train reward` and `train dpo` read.

import type { Message } from "./chat";

/** Two answers to one request, the better one first. prompt: all that the model was told. */
export interface Pair {
  prompt: Message[];
  chosen: string;
  rejected: string;
}

/** The pairs with one more; what was said of the same two answers before is taken back. */
export function rated(pairs: readonly Pair[], pair: Pair): Pair[] {
  const same = (each: Pair): boolean =>
    JSON.stringify(each.prompt) === JSON.stringify(pair.prompt) && [each.chosen, each.rejected].sort().join("\0") === [pair.chosen, pair.rejected].sort().join("\0");
  return [...pairs.filter((each) => !same(each)), pair];
}

/** A file of preferences: a line of JSON each. */
export const linesOf = (pairs: readonly Pair[]): string => pairs.map((each) => `${JSON.stringify(each)}\n`).join("");

/** What was kept of them; nothing where it is no list of pairs. */
export function pairsOf(text: string): Pair[] {
  try {
    const found: unknown = JSON.parse(text);
    return Array.isArray(found) ? found.filter(isPair).map(({ prompt, chosen, rejected }) => ({ prompt, chosen, rejected })) : [];
  } catch {
    return [];
  }
}

function isPair(value: unknown): value is Pair {
  if (typeof value !== "object" || value === null) return false;
  const { prompt, chosen, rejected } = value as Record<string, unknown>;
  return Array.isArray(prompt) && typeof chosen === "string" && typeof rejected === "string";
}
