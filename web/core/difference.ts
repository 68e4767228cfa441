// Two traces side by side: what was set otherwise, and where the answers part. As `cutaway trace diff` tells it.
import type { TraceFile } from "./tracefile";

const SECTIONS = ["model", "engine", "machine", "sampling", "answer"];

export interface Difference {
  settings: [name: string, one: string, other: string][];
  isPrompt: boolean | null; // whether the same was asked; null: a redacted file does not tell
  first: number | null; // the token from which the answers differ; null: none, or not told
  texts: [string, string];
}

/** What two files have otherwise. */
export function differenceOf(one: TraceFile, other: TraceFile): Difference {
  const both = [one, other] as const;
  const [left, right] = both.map((file) => file.manifest as unknown as Record<string, Record<string, unknown> | undefined>);
  const settings = SECTIONS.flatMap((section) => {
    const [mine, yours] = [left![section] ?? {}, right![section] ?? {}];
    return [...new Set([...Object.keys(mine), ...Object.keys(yours)])].flatMap((name): Difference["settings"] => {
      const [a, b] = [mine, yours].map((each) => JSON.stringify(each[name]) ?? "\u2013");
      return a === b ? [] : [[`${section} ${name}`, a!, b!]];
    });
  });
  const prompts = both.map((file) => file.events("prompt").map((each) => each.ids));
  const tokens = both.map((file) => file.events("token")) as [Record<string, unknown>[], Record<string, unknown>[]];
  const [shorter, most] = [Math.min(...tokens.map((each) => each.length)), Math.max(...tokens.map((each) => each.length))];
  const isTold = tokens.flat().every((each) => "id" in each);
  const parts = tokens[0].findIndex((each, at) => at < shorter && each.id !== tokens[1][at]!.id);
  const first = !isTold ? null : parts >= 0 ? parts : shorter < most ? shorter : null;
  return {
    settings,
    isPrompt: prompts.some((each) => !each.length || each.includes(undefined)) ? null : JSON.stringify(prompts[0]) === JSON.stringify(prompts[1]),
    first,
    texts: tokens.map((each) => (first === null ? "" : ((each[first]?.text as string | undefined) ?? "(the end)"))) as [string, string],
  };
}
