// What attention keeps of each token in its four forms, worked out from what one model keeps.

/** What a model keeps. tokenBytes: of one token in all layers; window: of tokens, null where it sees all. */
export interface Kept {
  heads: number; // of queries
  groups: number; // of keys and values
  tokenBytes: number;
  isLatent: boolean;
  window: number | null;
}

export interface Form {
  id: "mha" | "gqa" | "mla" | "window";
  term: string;
  name: string; // in plain words
  boxes: number; // of keys and values that the heads read from
  tokenBytes: number;
  window: number | null;
  isOwn: boolean;
}

/** A latent row is 4.5 heads wide where keys and values of a group are 2: the rule of DeepSeek-V2. */
const LATENT_GROUPS = 4.5 / 2;

/** How many groups other models would make of so many heads: a quarter, or the next number that divides them. */
export function groupsOf(heads: number): number {
  const wanted = Math.max(1, Math.round(heads / 4));
  for (let groups = wanted; groups > 1; groups -= 1) if (heads % groups === 0) return groups;
  return 1;
}

/** All four forms, each with bytes a token by this model's own numbers. */
export function formsOf({ heads, groups, tokenBytes, isLatent, window }: Kept, otherWindow: number): Form[] {
  const group = isLatent ? tokenBytes / LATENT_GROUPS : tokenBytes / groups;
  const isGrouped = !isLatent && groups < heads;
  const shared = isGrouped ? groups : groupsOf(heads);
  const own = window ?? otherWindow;
  return [
    { id: "mha", term: "MHA", name: "Each head has its own", boxes: heads, tokenBytes: group * heads, window: null, isOwn: !isLatent && !isGrouped && window === null },
    { id: "gqa", term: "GQA", name: "Heads share in groups", boxes: shared, tokenBytes: group * shared, window: null, isOwn: isGrouped && window === null },
    { id: "mla", term: "MLA", name: "One short note for all", boxes: 1, tokenBytes: group * LATENT_GROUPS, window: null, isOwn: isLatent },
    { id: "window", term: "Window", name: "The last tokens alone", boxes: isLatent ? 1 : groups, tokenBytes, window: own, isOwn: !isLatent && window !== null },
  ];
}

/** Bytes that are kept of so many tokens. */
export const bytesOf = (form: Form, tokens: number): number => form.tokenBytes * Math.min(tokens, form.window ?? Infinity);

/** The keys that a query may look at, first and last, both included. */
export const seenBy = (query: number, window: number | null): [number, number] => [Math.max(0, query + 1 - (window ?? Infinity)), query];
