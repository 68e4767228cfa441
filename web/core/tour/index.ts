// The chapters of the tour in their order, and what a browser remembers of it.
import type { Tokens } from "../payloads";
import { A } from "./a";
import { B } from "./b";
import { C } from "./c";
import type { Chapter } from "./chapter";
import { D } from "./d";
import { E } from "./e";
import { F } from "./f";
import { G } from "./g";
import { H } from "./h";
import { I } from "./i";
import { J } from "./j";
import { K } from "./k";
import { L } from "./l";
import { M } from "./m";
import { N } from "./n";
import { O } from "./o";
import { P } from "./p";
import { Q } from "./q";
import { R } from "./r";

export const CHAPTERS: readonly Chapter[] = [A, B, C, D, E, F, G, H, I, J, K, L, M, N, O, P, Q, R];

/** How far a reader is: by chapter, whether its question was answered, and rightly. */
export type Progress = Readonly<Record<string, "right" | "wrong">>;

/** Progress as the browser kept it; what it does not understand it leaves out. */
export function progressOf(kept: string | null): Progress {
  try {
    const told: unknown = JSON.parse(kept ?? "{}");
    const entries = Object.entries((told ?? {}) as object);
    return Object.fromEntries(entries.filter(([, how]) => how === "right" || how === "wrong"));
  } catch {
    return {};
  }
}

/** The chapter of a letter; the first where there is none. */
export function chapterOf(id: string | null): Chapter {
  return CHAPTERS.find((each) => each.id === id) ?? CHAPTERS[0]!;
}

/** Where the longest word of what was asked stands in the prompt; where none is found, the prompt's last token. */
export function placeOfWord({ texts, num_prompt }: Tokens, asked: string): number {
  let [best, size] = [Math.max(0, num_prompt - 1), 0];
  for (let at = num_prompt - 1; at >= 0; at -= 1) {
    const word = /^\u00b7?(\p{L}+)$/u.exec(texts[at]!)?.[1] ?? "";
    if (word.length > size && asked.includes(word)) [best, size] = [at, word.length];
  }
  return best;
}
