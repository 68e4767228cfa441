// Lays tokens over the text of an answer: which characters each one brought.
import type { Scored } from "./chat";

/** A token of an answer and the part of the answer's text that is its own. */
export interface Piece {
  token: Scored;
  text: string; // empty for a token that is not shown: an ending, or part of a character
}

/** Where the division stands: tokens and characters that are dealt with, bytes of half a character. */
interface Place {
  token: number;
  end: number;
  half: number[];
}

const MOST_OPEN = 256; // tokens that are looked at again; a reader's text is never further behind

/** The text of an answer, divided among its tokens as they come. */
export class Pieces {
  readonly all: Piece[] = [];
  text = "";
  #settled: Place = { token: 0, end: 0, half: [] };
  #end = 0; // where the last token ends in the text

  /** Take in new text and new tokens. The server may hold text back: tokens can be ahead of it. */
  add(text: string, tokens: readonly Scored[]): void {
    this.text += text;
    for (const token of tokens) this.all.push({ token, text: "" });
    this.#divide();
  }

  /** Characters that no token accounts for; they are shown all the same. */
  get rest(): string {
    return this.text.slice(this.#end);
  }

  #divide(): void {
    let { end, half } = this.#settled;
    let index = this.#settled.token;
    for (; index < this.all.length && end < this.text.length; index += 1) {
      const { token } = this.all[index]!;
      const read = decoded([...half, ...token.bytes]);
      const own = shared(read.words, this.text.slice(end, end + read.words.length + 8), end === 0);
      // A token without a part is a control token, whose bytes are not in the text, or is ahead of it.
      if (own !== null) half = read.half;
      const part = own?.text ?? "";
      if (part !== this.all[index]!.text) this.all[index] = { token, text: part };
      end += part.length;
      const isWhole = own !== null && own.isWhole;
      const isOld = this.all.length - index > MOST_OPEN;
      // What came before a token that is in the text can change no more.
      if ((isWhole && (part || this.#settled.token === index)) || isOld) {
        this.#settled = { token: index + 1, end, half };
      }
    }
    this.#end = end;
  }
}

/** Bytes as text, and those at the end that are no whole character yet. */
function decoded(bytes: number[]): { words: string; half: number[] } {
  const decoder = new TextDecoder("utf-8", { ignoreBOM: true });
  const words = decoder.decode(Uint8Array.from(bytes), { stream: true });
  if (!decoder.decode()) return { words, half: [] };
  const lead = bytes.findLastIndex((byte) => byte >= 0xc2);
  return { words, half: bytes.slice(lead) };
}

/** What a token's words and the text to come have in common; null for nothing. */
function shared(
  words: string,
  rest: string,
  isFirst: boolean,
): { text: string; isWhole: boolean } | null {
  if (rest.startsWith(words)) return { text: words, isWhole: true };
  // Some tokenizers begin every text with a space that is not part of it.
  const bare = words.slice(1);
  if (isFirst && words.startsWith(" ") && bare && rest.startsWith(bare)) {
    return { text: bare, isWhole: true };
  }
  if (rest && words.startsWith(rest)) return { text: rest, isWhole: false };
  // Half a character that nothing completed stands in the text as this sign.
  const lost = rest.length - rest.replace(/^\ufffd+/, "").length;
  if (!lost || !words || !rest.startsWith(words, lost)) return null;
  return { text: rest.slice(0, lost + words.length), isWhole: true };
}

/** The token that is shown next after one, walking by 1 or -1, or that one at the end; -1 is none. */
export function walk(pieces: readonly Piece[], from: number, by: 1 | -1): number {
  for (let index = from + by; index >= 0 && index < pieces.length; index += by) {
    if (pieces[index]?.text) return index;
  }
  return pieces[from]?.text ? from : -1;
}
