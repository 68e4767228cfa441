// When an answer does nothing but repeat itself: a stretch of tokens said again and again, to the letter.

const LONGEST = 160; // tokens of a stretch
const LEAST_AGAIN = 4; // times that it stands at the end, one behind the other
const LEAST_TOKENS = 96; // that these make together: lists and rhymes repeat short things for a while

/** How long the stretch is that the ids end on, if they are a loop by now; 0 if they are none. */
export function loopOf(ids: readonly number[]): number {
  const last = ids.length - 1;
  for (let size = 1; size <= LONGEST; size += 1) {
    const tokens = Math.max(LEAST_TOKENS, LEAST_AGAIN * size);
    if (tokens > ids.length) return 0;
    let same = 0;
    while (same < tokens - size && ids[last - same] === ids[last - same - size]) same += 1;
    if (same === tokens - size) return size;
  }
  return 0;
}
