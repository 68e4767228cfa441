// Lays tokens over the text of an answer: which characters each one brought.
import type { Scored } from "./chat";

/** A token of an answer and the part of the answer's text that is its own. */
export interface Piece {
  token: Scored;
  text: string; // empty for a token that is not shown: an ending, or part of a character
}

/** The text of an answer, divided among its tokens as they come. */
export class Pieces {
  readonly all: Piece[] = [];
  text = "";
  #decoder = new TextDecoder("utf-8", { ignoreBOM: true });
  #words: string[] = []; // what each token's bytes say
  #settled = 0; // tokens whose part cannot change any more
  #end = 0; // where the last settled token ends in the text

  /** Take in new text and new tokens. The server may hold text back: tokens can be ahead of it. */
  add(text: string, tokens: readonly Scored[]): void {
    this.text += text;
    for (const token of tokens) {
      this.all.push({ token, text: "" });
      this.#words.push(this.#decoder.decode(Uint8Array.from(token.bytes), { stream: true }));
    }
    this.#divide();
  }

  /** Characters that no token accounts for; they are shown all the same. */
  get rest(): string {
    return this.text.slice(this.all.reduce((sum, piece) => sum + piece.text.length, 0));
  }

  #divide(): void {
    let end = this.#end;
    for (let index = this.#settled; index < this.all.length; index += 1) {
      const rest = this.text.slice(end);
      const own = shared(this.#words[index] ?? "", rest, end === 0);
      this.all[index] = { token: this.all[index]!.token, text: own.text };
      end += own.text.length;
      if (own.isWhole && this.#settled === index) {
        this.#settled = index + 1;
        this.#end = end;
      }
    }
  }
}

/** What a token's words and the text to come have in common. */
function shared(words: string, rest: string, isFirst: boolean): { text: string; isWhole: boolean } {
  if (rest.startsWith(words)) return { text: words, isWhole: true };
  // Some tokenizers begin every text with a space that is not part of it.
  const bare = words.slice(1);
  if (isFirst && words.startsWith(" ") && bare && rest.startsWith(bare)) {
    return { text: bare, isWhole: true };
  }
  return { text: words.startsWith(rest) ? rest : "", isWhole: false };
}

/** The token that is shown next after one, walking by 1 or -1, or that one at the end; -1 is none. */
export function walk(pieces: readonly Piece[], from: number, by: 1 | -1): number {
  for (let index = from + by; index >= 0 && index < pieces.length; index += by) {
    if (pieces[index]?.text) return index;
  }
  return pieces[from]?.text ? from : -1;
}
