// Which characters stand first: what a person typed, before what was written around it.

export interface Stretch {
  name: string; // "" where all is one
  start: number;
  end: number;
}

/** What was typed, what was sent before it and behind it: at most so many characters of each. signs: of the whole text, by code point. */
export function stretchesOf(signs: readonly string[], typed: string, most: number): Stretch[] {
  const own = [...typed];
  const last = signs.length - own.length;
  let start = -1;
  for (let at = last; own.length && at >= 0 && start < 0; at -= 1) if (own.every((sign, place) => signs[at + place] === sign)) start = at;
  if (start < 0 || own.length === signs.length) return [{ name: "", start: 0, end: Math.min(most, signs.length) }];
  const end = start + own.length;
  return [
    { name: "What you typed", start, end: Math.min(end, start + most) },
    ...(start ? [{ name: "What was sent before it", start: 0, end: Math.min(start, most) }] : []),
    ...(end < signs.length ? [{ name: "And behind it", start: end, end: Math.min(signs.length, end + most) }] : []),
  ];
}
