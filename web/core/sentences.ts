// An answer for ears while it streams: sentence by sentence, never token by token.

const END = /[.!?\u3002\uff01\uff1f\u061f:;][)\]"'\u201d\u2019*]*\s|\n/g;

/** Tells what has become a whole sentence since it was asked last. */
export class Sentences {
  #told = 0;

  /** The sentences that this text, which grows, has newly completed; empty when none. */
  next(text: string): string {
    const from = this.#told;
    for (const end of text.slice(from).matchAll(END)) this.#told = from + end.index + end[0].length;
    return text.slice(from, this.#told).trim();
  }

  /** What is left when the text has ended. */
  rest(text: string): string {
    const from = this.#told;
    this.#told = text.length;
    return text.slice(from).trim();
  }
}
