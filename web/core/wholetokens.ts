// Tokens of a very long text, which the server tells page by page, put together again.
import type { Tokens } from "./payloads";

/** Where the page of a size before tokens begins; null where nothing is left out. */
export function before({ start = 0 }: Tokens, size: number): number | null {
  return start > 0 ? Math.max(0, start - size) : null;
}

/** A page and the one behind it, as one. The page may reach into the one behind. */
export function joined(earlier: Tokens, later: Tokens): Tokens {
  const start = earlier.start ?? 0;
  const count = (later.start ?? 0) - start;
  const both = <Item>(name: (tokens: Tokens) => Item[]): Item[] => [...name(earlier).slice(0, count), ...name(later)];
  return {
    ...later,
    texts: both((each) => each.texts),
    token_ids: both((each) => each.token_ids),
    num_bytes: both((each) => each.num_bytes),
    is_control: both((each) => each.is_control),
    is_part: both((each) => each.is_part),
    num_letters: both((each) => each.num_letters),
    num_prompt: count + later.num_prompt,
    start,
  };
}
