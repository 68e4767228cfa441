// A vocabulary as it was learned, merge by merge, and a text as any of its states would cut it.
import { visible } from "./words";

/** One merge: the pair that came most often became a token. pairs: the best [left, right, count]. */
export interface Step {
  pair: [number, number];
  token_id: number;
  count: number;
  num_tokens: number; // of the whole text, after it
  pairs: [number, number, number][];
}

/** What POST /cutaway/v1/learn answers. vocabulary, words: bytes in hex. */
export interface Learned {
  num_bytes: number;
  num_tokens: number;
  steps: Step[];
  vocabulary: string[];
  words: string[];
}

function bytesOf(hex: string): number[] {
  return Array.from({ length: hex.length / 2 }, (_, index) => Number.parseInt(hex.slice(2 * index, 2 * index + 2), 16));
}

/** Bytes as text of which every character shows; those that are no text as \xNN. */
export function shownBytes(hex: string): string {
  const bytes = bytesOf(hex);
  try {
    return visible(new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(Uint8Array.from(bytes)));
  } catch {
    return bytes.map((byte) => (byte < 0x80 ? visible(String.fromCharCode(byte)) : `\\x${byte.toString(16).padStart(2, "0")}`)).join("");
  }
}

/** A player's state: the shown text as a vocabulary of so many merges cuts it. */
export class Player {
  readonly texts: string[];
  #starts: number[][];

  constructor(readonly learned: Learned) {
    this.texts = learned.vocabulary.map(shownBytes);
    const ids = new Map(learned.vocabulary.map((hex, id) => [hex, id]));
    this.#starts = learned.words.map((word) => bytesOf(word).map((byte) => ids.get(byte.toString(16).padStart(2, "0")) ?? 0));
  }

  get numSteps(): number {
    return this.learned.steps.length;
  }

  /** Tokens of the shown text after so many merges, word by word. */
  words(step: number): number[][] {
    const merges = this.learned.steps.slice(0, step);
    return this.#starts.map((start) => merges.reduce(mergedBy, start));
  }

  /** Tokens of the whole text after so many merges. */
  length(step: number): number {
    return step ? this.learned.steps[step - 1]!.num_tokens : this.learned.num_tokens;
  }
}

/** A word with a merge's pair replaced from the left. */
function mergedBy(word: number[], { pair: [left, right], token_id }: Step): number[] {
  if (!word.includes(left)) return word;
  const merged: number[] = [];
  for (let at = 0; at < word.length; at += 1) {
    const isPair = word[at] === left && word[at + 1] === right;
    merged.push(isPair ? token_id : word[at]!);
    if (isPair) at += 1;
  }
  return merged;
}
