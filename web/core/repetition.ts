// How much an answer says again: the twin of src/cutaway/views/parts/repetition.py, for tokens not yet said.

export const SIZES = [1, 2, 3, 4] as const;
const MOST_AGAIN = 64; // as there

/** Stretches of so many tokens: all of them, and those that are not for the first time. */
export interface Repeats {
  size: number;
  num_all: number;
  num_again: number;
}

/** Each stretch of so many tokens, overlapping ones too. */
export function repeatsOf(ids: readonly number[], size: number): Repeats {
  const all = Array.from({ length: Math.max(0, ids.length - size + 1) }, (_, start) => ids.slice(start, start + size).join());
  return { size, num_all: all.length, num_again: all.length - new Set(all).size };
}

/** How many tokens at the end stood, in this order, further ahead. */
export function saidAgain(ids: readonly number[]): number {
  let longest = 0;
  for (let end = ids.length - 1; end > 0; end -= 1) {
    const most = Math.min(end, MOST_AGAIN);
    let size = 0;
    while (size < most && ids[end - 1 - size] === ids[ids.length - 1 - size]) size += 1;
    longest = Math.max(longest, size);
  }
  return longest;
}

/** What the end of an answer is, in words. */
export const endOf = (again: number): string =>
  again ? `ends a stretch of ${again} ${again === 1 ? "token that stood" : "tokens that stood"} there before` : "is new in the answer";
