// Pages of tokens are one again, whatever their size.
import { describe, expect, it } from "vitest";

import type { Tokens } from "./payloads";
import { before, joined } from "./wholetokens";

const NUM_PROMPT = 11;
const all = Array.from({ length: 14 }, (_, index) => index);

/** A page as the server tells it: so many tokens from one on. */
function page(start: number, size: number): Tokens {
  const ids = all.slice(start, start + size);
  return {
    texts: ids.map(String),
    token_ids: ids,
    num_bytes: ids.map((id) => id + 1),
    is_control: ids.map((id) => id === 0),
    is_part: ids.map((id) => id === 3),
    num_letters: ids.map((id) => id % 2),
    letters: null,
    num_words: [4, 1],
    num_prompt: Math.max(0, Math.min(ids.length, NUM_PROMPT - start)),
    start,
  };
}

describe("tokens", () => {
  it("are put together from pages", () => {
    for (const size of [3, 4, 8, 13]) {
      let tokens = page(Math.min(NUM_PROMPT, all.length - size), size);
      for (let at = before(tokens, size); at !== null; at = before(tokens, size)) tokens = joined(page(at, size), tokens);
      expect(tokens).toEqual(page(0, all.length));
    }
    expect(before(page(0, 14), 14)).toBe(null);
  });
});
