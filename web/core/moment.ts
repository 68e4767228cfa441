// What the map draws of one token: from the record and from what was looked at, never made up.
import type { Happening } from "./live";
import type { Embeddings, Pages, Probabilities, Residual, Tokens } from "./payloads";

interface Piece {
  text: string;
  index: number; // its place, for its colour
  id: number;
}

export interface Moment {
  read: Piece[]; // the last tokens that were read
  made: Piece | null; // what came of them
  vector: number[] | null; // null: not looked at
  norms: number[] | null; // of the stream after each layer
  layer: number | null;
  numLayers: number;
  chances: { text: string; share: number; isOwn: boolean }[];
  u: number | null; // from 0 to 1
  pages: string[]; // who wrote each
}

/** Of an answer that is looked at: its tokens, the chosen place, and what was seen of it. */
interface Looked {
  tokens: Tokens | null;
  position: number;
  step: number;
  isDrawn: boolean;
  drawn: readonly Happening[]; // each token of the answer, as it was recorded
  latest: Record<string, unknown>; // values of each view as it was seen last
  numLayers: number;
}

const MOST_READ = 6;
const MOST_PAGES = 24;
const NONE: Moment = { read: [], made: null, vector: null, norms: null, layer: null, numLayers: 0, chances: [], u: null, pages: [] };

/** The token that is looked at. */
export function chosen(look: Looked, layer: number | null): Moment {
  const tokens = look.tokens;
  if (!tokens) return NONE;
  const piece = (index: number): Piece => ({ text: tokens.texts[index] ?? "", index, id: tokens.token_ids[index] ?? -1 });
  const at = look.position;
  const drawn = look.isDrawn ? look.drawn[look.step] : undefined;
  const seen = <Values>(view: string): Values | undefined => look.latest[view] as Values | undefined;
  const [embedding, residual] = [seen<Embeddings>("embeddings"), seen<Residual>("residual")];
  const probabilities = seen<Probabilities>("probabilities");
  const isTop = probabilities && look.isDrawn && probabilities.token === look.step;
  return {
    read: Array.from({ length: Math.min(MOST_READ, at + 1) }, (_, index) => piece(Math.max(0, at + 1 - MOST_READ) + index)),
    made: look.isDrawn ? piece(at + 1) : null,
    vector: embedding?.position === at ? embedding.strip.row(1).list() : null,
    norms: residual?.position === at ? residual.stream.list() : null,
    layer,
    numLayers: look.numLayers,
    chances: isTop
      ? probabilities.top.slice(0, 5).map((each) => ({ text: each.text, share: each.probability, isOwn: each.token_id === probabilities.chosen.token_id }))
      : chanceOf(drawn),
    u: uOf(drawn),
    pages: (seen<Pages>("pages")?.groups[0]?.runs ?? []).flatMap((run) => Array<string>(run.count).fill(run.origin)).slice(0, MOST_PAGES),
  };
}

/** The token that came last, while the answer is being written. */
export function coming(live: { tokens: readonly Happening[]; last: Happening | null; numLayers: number }): Moment {
  const piece = (each: Happening): Piece => ({ text: each.text ?? "", index: each.index ?? 0, id: each.id ?? -1 });
  const made = live.tokens.at(-1);
  return {
    ...NONE,
    read: live.tokens.slice(-MOST_READ - 1, -1).map(piece),
    made: made ? piece(made) : null,
    numLayers: live.numLayers,
    chances: chanceOf(made),
    u: uOf(made),
    pages: Array<string>(Math.min(MOST_PAGES, live.last?.pages?.[1] ?? 0)).fill("answer"),
  };
}

const chanceOf = (token: Happening | undefined): Moment["chances"] =>
  token?.probability === undefined ? [] : [{ text: token.text ?? "", share: token.probability, isOwn: true }];

const uOf = (token: Happening | undefined): number | null => (typeof token?.u === "number" ? token.u / 2 ** 32 : null);
