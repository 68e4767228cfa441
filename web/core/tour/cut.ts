// A text in the model's own tokens, with no template around it.
import { visible } from "../words";
import type { Reach } from "./chapter";

const SHOWN = 40; // tokens whose texts are asked for

export interface Cut {
  ids: readonly number[];
  tokens: readonly { text: string; id: number }[]; // the first of them, with their texts
}

/** The ids of a text. */
export async function idsOf(reach: Reach, text: string): Promise<number[]> {
  const body = { prompt: text, add_special_tokens: false };
  return (await reach.post<{ tokens: number[] }>("/tokenize", body)).tokens;
}

/** What ids spell together. */
export async function textOf(reach: Reach, tokens: readonly number[]): Promise<string> {
  return (await reach.post<{ prompt: string }>("/detokenize", { tokens })).prompt;
}

/** Each token of a text; a part of a character shows as a ring. */
export async function cut(reach: Reach, text: string): Promise<Cut> {
  const ids = await idsOf(reach, text);
  return { ids, tokens: await Promise.all(ids.slice(0, SHOWN).map((id) => tokenOf(reach, id))) };
}

/** A token by its id. */
export async function tokenOf(reach: Reach, id: number): Promise<{ text: string; id: number }> {
  return { text: visible(await textOf(reach, [id])).replaceAll("\ufffd", "\u25cc"), id };
}

/** How a text is cut, in a line. */
export const joined = (each: Cut): string => each.tokens.map((token) => token.text).join("|");
