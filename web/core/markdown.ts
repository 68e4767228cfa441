// Markdown as blocks of HTML, block by block while it is written. Raw HTML in it stays text.
import { Marked, type TokenizerAndRendererExtension, type Tokens } from "marked";

/** A block of the text. Its HTML still has to be made safe. */
export interface Block {
  start: number; // where it begins in the text
  raw: string;
  html: string;
}

const MARKS: Record<string, string> = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" };
const escaped = (text: string): string => text.replace(/[&<>"]/g, (mark) => MARKS[mark] ?? mark);

const LINKS = /^(https?:\/\/|mailto:)/i;

// Pandoc's rule for single dollars: no space within the signs and no digit behind them, so that
// "$5 and $6" stays prices.
const INLINE = /^(?:\\\((.+?)\\\)|\$\$([^$]+?)\$\$|\$(?!\s)((?:[^$`\n\\]|\\.)+?)(?<!\s)\$(?!\d))/s;
const DISPLAY = /^(?:\\\[(.+?)\\\]|\$\$(.+?)\$\$)[ \t]*(?:\n|$)/s;

function formula(name: string, level: "inline" | "block", rule: RegExp): TokenizerAndRendererExtension {
  return {
    name,
    level,
    start: (source) => {
      const found = source.search(level === "inline" ? /\$|\\\(/ : /(^|\n)(\$\$|\\\[)/);
      return found < 0 ? undefined : found;
    },
    tokenizer: (source) => {
      const found = rule.exec(source);
      return found ? { type: name, raw: found[0], tex: found[1] ?? found[2] ?? found[3] } : undefined;
    },
    renderer: (token) => {
      const tag = level === "block" ? "div" : "span";
      const isWide = level === "block" || token.raw.startsWith("$$");
      const kind = isWide ? "formula wide" : "formula";
      return `<${tag} class="${kind}" data-tex="${escaped(String(token.tex))}">${escaped(token.raw.trim())}</${tag}>`;
    },
  };
}

const markdown = new Marked({
  gfm: true,
  renderer: {
    html: ({ text }: Tokens.HTML | Tokens.Tag) => escaped(text),
    image: ({ href, text }: Tokens.Image) => linkTo(href, escaped(text || href)),
    link(token: Tokens.Link) {
      return linkTo(token.href, this.parser.parseInline(token.tokens));
    },
    checkbox: ({ checked }: Tokens.Checkbox) => (checked ? "\u2611 " : "\u2610 "),
    code: ({ text, lang }: Tokens.Code) => {
      const language = /^[\w+#.-]{1,24}/.exec(lang ?? "")?.[0] ?? "";
      return `<pre data-language="${escaped(language)}"><code>${escaped(text)}</code></pre>`;
    },
  },
});
markdown.use({ extensions: [formula("formula", "inline", INLINE), formula("display", "block", DISPLAY)] });

/** A link where it leads to the web or to a letter; elsewhere its words alone. Pictures become links. */
function linkTo(href: string, words: string): string {
  if (!LINKS.test(href)) return words;
  return `<a href="${escaped(href)}" target="_blank" rel="noopener noreferrer nofollow">${words}</a>`;
}

/** The blocks of a text that grows at its end: only its last one is read anew. */
export class Blocks {
  #settled: Block[] = [];
  #end = 0; // where the settled blocks end in the text
  #text = "";

  /** All blocks of the text. Those that can change no more are the same objects as before. */
  of(text: string): Block[] {
    if (!text.startsWith(this.#text.slice(0, this.#end))) [this.#settled, this.#end] = [[], 0];
    this.#text = text;
    const tokens = markdown.lexer(text.slice(this.#end).replace(/\r/g, " "));
    const last = tokens.findLastIndex((token) => token.type !== "space");
    const open: Block[] = [];
    let start = this.#end;
    tokens.forEach((token, index) => {
      const single = Object.assign([token], { links: tokens.links });
      const block = { start, raw: token.raw, html: markdown.parser(single) };
      start += token.raw.length;
      if (index < last) {
        this.#end = start;
        if (token.type !== "space") this.#settled.push(block);
      } else if (token.type !== "space") {
        open.push(block);
      }
    });
    return [...this.#settled, ...open];
  }
}

/** Where the characters of a rendered block stand in its source: an offset for each, in order. */
export class Aligner {
  #at: number;

  /** A fence's own line is in no rendered text, but has its letters. */
  constructor(readonly source: string) {
    this.#at = /^[ ]{0,3}(```|~~~)/.test(source) ? source.indexOf("\n") + 1 : 0;
  }

  /** Offsets of the next stretch of rendered text; what cannot be found stays where it is. */
  next(text: string): number[] {
    const whole = this.source.indexOf(text, this.#at);
    if (text.trim() && whole >= 0 && whole - this.#at <= MOST_MARKUP) {
      this.#at = whole + text.length;
      return Array.from({ length: text.length }, (_, index) => whole + index);
    }
    const offsets: number[] = [];
    for (let index = 0; index < text.length; index += 1) {
      const found = this.source.indexOf(text[index]!, this.#at);
      if (found >= 0 && found - this.#at <= MOST_SKIPPED) this.#at = found + 1;
      offsets.push(Math.max(0, this.#at - 1));
    }
    return offsets;
  }
}

const MOST_MARKUP = 600; // characters of markup between two stretches: a table's rule, a link's address
const MOST_SKIPPED = 40; // within one: the start of a quoted line, an entity
