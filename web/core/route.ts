// The address bar holds where one looks: #/c/<chat>/t/<turn>/s/<step>/v/<view>/l/<layer>/h/<head>.
// A token that was not drawn, as those of the prompt, is chosen by /p/<position>.

/** A place of the page. What is null is not chosen; without a step the cutaway is closed. */
export interface Place {
  chat: string | null;
  turn: number | null; // of the chat, from 0
  step: number | null; // a token of the answer, from 0
  view: string | null;
  layer: number | null;
  head: number | null;
  pin: string | null; // a view beside the shown one, as pins.ts writes it
  position: number | null; // in prompt and answer together; null: where the step reads
}

export const NOWHERE: Place = {
  chat: null,
  turn: null,
  step: null,
  view: null,
  layer: null,
  head: null,
  pin: null,
  position: null,
};

const KEYS = { c: "chat", t: "turn", s: "step", v: "view", l: "layer", h: "head", p: "position", x: "pin" } as const;

/** The place that a hash names. What it does not understand it leaves out. */
export function placeOf(hash: string): Place {
  const words = hash.replace(/^#?\/?/, "").split("/");
  const place: Place = { ...NOWHERE };
  for (let index = 0; index + 1 < words.length; index += 2) {
    const name = KEYS[words[index] as keyof typeof KEYS];
    const value = decoded(words[index + 1] ?? "");
    if (name === "chat" || name === "view" || name === "pin") place[name] = value || null;
    else if (name && /^\d{1,9}$/.test(value)) place[name] = Number(value);
  }
  return place;
}

/** The hash that names a place; empty for nowhere. */
export function hashOf(place: Place): string {
  const words = Object.entries(KEYS)
    .filter(([, name]) => place[name] !== null)
    .map(([key, name]) => `${key}/${encodeURIComponent(String(place[name]))}`);
  return words.length ? `#/${words.join("/")}` : "";
}

function decoded(word: string): string {
  try {
    return decodeURIComponent(word);
  } catch {
    return "";
  }
}
