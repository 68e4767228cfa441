// Colours for code. Fetched when an answer first has code in a language that is known here.
import highlighter from "highlight.js/lib/core";
import bash from "highlight.js/lib/languages/bash";
import cpp from "highlight.js/lib/languages/cpp";
import css from "highlight.js/lib/languages/css";
import javascript from "highlight.js/lib/languages/javascript";
import json from "highlight.js/lib/languages/json";
import python from "highlight.js/lib/languages/python";
import rust from "highlight.js/lib/languages/rust";
import sql from "highlight.js/lib/languages/sql";
import typescript from "highlight.js/lib/languages/typescript";
import xml from "highlight.js/lib/languages/xml";

import { safe } from "./safe";

const LANGUAGES = { bash, cpp, css, javascript, json, python, rust, sql, typescript, xml };
for (const [name, language] of Object.entries(LANGUAGES)) highlighter.registerLanguage(name, language);

const MOST = 20_000; // characters; longer code stays plain, since colours would hold the page up

/** The code in colours; null where the language is not known or the code is too long. */
export function coloured(text: string, language: string): DocumentFragment | null {
  if (text.length > MOST || !highlighter.getLanguage(language)) return null;
  return safe(highlighter.highlight(text, { language, ignoreIllegals: true }).value);
}
