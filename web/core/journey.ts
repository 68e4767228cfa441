// The journey of one token: its scenes on a clock, and what each shows of this run. Nothing in it is made up.
import { beginOf } from "./film";
import type { Happening } from "./live";
import { figure, share } from "./numbers";
import type { Embeddings, Lens, Probabilities, Residual, Sampling, Tokens } from "./payloads";

export const SCENES = [
  { id: "text", name: "Text", seconds: 4.5 },
  { id: "pieces", name: "Pieces", seconds: 4.5 },
  { id: "ids", name: "Ids", seconds: 4.5 },
  { id: "row", name: "Row", seconds: 5.5 },
  { id: "layers", name: "Layers", seconds: 9 },
  { id: "chances", name: "Chances", seconds: 4.5 },
  { id: "draw", name: "Draw", seconds: 4 },
  { id: "again", name: "Again", seconds: 6 },
] as const;

export type SceneId = (typeof SCENES)[number]["id"];

/** When a scene begins, in seconds. */
export const startOf = (id: SceneId): number => beginOf(SCENES, SCENES.findIndex((each) => each.id === id));

/** Views that a scene is made of; it waits for them. */
export const NEEDS: Readonly<Record<SceneId, readonly string[]>> = {
  text: ["tokens"],
  pieces: ["tokens"],
  ids: ["tokens"],
  row: ["embeddings"],
  layers: ["residual", "lens"],
  chances: ["probabilities"],
  draw: ["sampling"],
  again: [],
};

export interface Piece {
  text: string;
  id: number;
  index: number; // in prompt and answer together, for its colour; -1 for what stands for several
  isMany?: true; // stands for tokens that nobody typed
}

/** What was found of one run; null where it is not here, or not yet. */
export interface Found {
  tokens: Tokens;
  embeddings: Embeddings | null;
  residual: Residual | null;
  lens: Lens | null;
  probabilities: Probabilities | null;
  sampling: Sampling | null;
  drawn: readonly Happening[];
}

/** Where the token of a step is read: the position before it. */
export const positionOf = (tokens: Tokens, step: number): number => Math.max(0, tokens.num_prompt + step - 1);

const ROLE = /^\s*(user|human|assistant|model|system|tool)\s*:?\s*$/i;

/** The tokens that a person typed, by what stands between control tokens: the last words that are no role. */
export function typedIn(tokens: Tokens): [number, number] {
  const words = (from: number, to: number): string => spoken(tokens.texts.slice(from, to).join(""));
  let end = tokens.num_prompt;
  while (end > 0) {
    let start = end;
    while (start > 0 && !tokens.is_control[start - 1]) start -= 1;
    if (words(start, end).trim() && !ROLE.test(words(start, end))) {
      // A role's name that is written in plain words, and the line's end behind it.
      const role = Array.from({ length: Math.min(6, end - start) }, (_, at) => start + at + 1).find((at) => ROLE.test(words(start, at)) && /[\n:]/.test(words(start, at)));
      let first = role ?? start;
      while (first < end - 1 && !words(first, first + 1).trim()) first += 1;
      return [first, end];
    }
    end = start - 1;
  }
  return [0, 0]; // nothing was typed
}

/** Tokens as they are read: spaces and lines' ends are signs in a view. */
export const spoken = (text: string): string => text.replaceAll("\u00b7", " ").replaceAll("\u21b5", "\n");

/** What a person said last. */
export function typedOf(tokens: Tokens): string {
  const [start, end] = typedIn(tokens);
  return spoken(tokens.texts.slice(start, end).join("")).trim();
}

const MOST_TYPED = 12;
const MOST_ANSWERED = 3; // more would push what was typed out of sight

/** The line as it stands when the model reads: what was typed, what stands around it as one, the answer so far. */
export function lineOf(tokens: Tokens, step: number): Piece[] {
  const piece = (index: number): Piece => ({ text: tokens.texts[index] ?? "", id: tokens.token_ids[index] ?? -1, index });
  const many = (count: number): Piece[] => (count > 0 ? [{ text: `+${count}`, id: -1, index: -1, isMany: true }] : []);
  const end = positionOf(tokens, step) + 1;
  const run = (from: number, to: number): Piece[] => Array.from({ length: Math.max(0, to - from) }, (_, at) => piece(from + at));
  const [from, to] = typedIn(tokens);
  const answered = Math.max(tokens.num_prompt, end - MOST_ANSWERED);
  const [first, last] = [Math.max(from, to - MOST_TYPED), Math.min(to, end)];
  if (end <= tokens.num_prompt) return [...many(first), ...run(first, last), ...many(end - last - 1), ...run(Math.max(last, end - 1), end)];
  return [...many(first), ...run(first, last), ...many(answered - last), ...run(answered, end)];
}

const MOST_NEXT = 7;

/** The tokens that followed the chosen one, for as long as the film lasts. */
export const nextOf = (tokens: Tokens, step: number): Piece[] =>
  tokens.texts.slice(tokens.num_prompt + step + 1).slice(0, MOST_NEXT).map((text, at) => {
    const index = tokens.num_prompt + step + 1 + at;
    return { text, id: tokens.token_ids[index] ?? -1, index };
  });

const quoted = (text: string): string => `\u201c${text.replaceAll("\u00b7", " ").trim() || text}\u201d`;

/** One sentence a scene, with one number: what a voice would say. */
export function captionOf(id: SceneId, step: number, found: Found): string {
  const { tokens, embeddings, residual, probabilities, sampling } = found;
  const position = positionOf(tokens, step);
  const [read, made] = [tokens.texts[position] ?? "", tokens.texts[tokens.num_prompt + step] ?? ""];
  const typed = typedOf(tokens);
  switch (id) {
    case "text":
      return typed
        ? `You typed ${figure([...typed].length)} characters. The model cannot read letters.`
        : "The answer begins from nothing that was typed. The model cannot read letters.";
    case "pieces":
      return `So the text is cut into pieces that it knows, called tokens: ${figure(position + 1)} up to here, with what the chat program put around your words.`;
    case "ids":
      return `Each piece has a number. ${quoted(read)} is number ${figure(tokens.token_ids[position])}. The numbers are all that the model gets.`;
    case "row":
      return embeddings
        ? `The number is a line in a big table. Out comes a row of ${figure(embeddings.width)} values: the piece's meaning, as far as the model knows it.`
        : "The number is a line in a big table. That line is not to be had here.";
    case "layers": {
      if (!residual) return "The row passes every layer. They are not to be had for this token here.";
      return `The row climbs ${figure(residual.stream.length)} layers. Each takes from the earlier words, adds what it has learned, and hands the row on.`;
    }
    case "chances":
      return probabilities
        ? `At the top the row becomes a chance for each of ${figure(probabilities.vocab_size)} pieces. ${quoted(made)} has ${share(probabilities.chosen.probability)}.`
        : "At the top the row becomes a chance for each piece that there is.";
    case "draw":
      return sampling?.draw_effect
        ? `${sharpened(found)}A random number falls. It lands on ${quoted(made)}: a piece with a larger chance is a wider target.`
        : `No dice here: the likeliest piece, ${quoted(made)}, is taken.`;
    case "again": {
      const rest = tokens.texts.length - tokens.num_prompt - step - 1;
      return rest
        ? `${quoted(made)} joins the line, and everything starts again for the next piece: ${figure(tokens.texts.length - tokens.num_prompt)} times for this answer.`
        : `${quoted(made)} joins the line. It was the last of ${figure(step + 1)} pieces: the answer is whole.`;
    }
  }
}

/** What the settings made of the chance before the draw, where that is not the same. */
function sharpened({ probabilities, sampling }: Found): string {
  const draw = drawOf(sampling);
  if (!draw || !probabilities) return "";
  const [before, after] = [share(probabilities.chosen.probability), share(draw.high - draw.low)];
  return before === after ? "" : `The settings first make ${after} of the ${before}. `;
}

/** What the row would say after some layers: the piece that is likeliest there. */
export function guessesOf(lens: Lens, position: number): { layer: number; text: string; share: number }[] {
  const column = Math.max(0, lens.positions.indexOf(position));
  return lens.layers.map((layer, row) => ({
    layer,
    text: lens.top_texts[row]?.[column]?.[0] ?? "",
    share: lens.top_probabilities.at(row, column, 0),
  }));
}

/** Where the draw's parts are, as shares of the whole; null where nothing was drawn. */
export function drawOf(sampling: Sampling | null): { target: number; low: number; high: number } | null {
  const drawn = sampling?.draw_effect;
  if (!drawn || !drawn.total) return null;
  return { target: drawn.target / drawn.total, low: drawn.low / drawn.total, high: drawn.high / drawn.total };
}
