// Texts of token ids that a view did not tell, as the server's tokenizer reads them.
import { faultOf } from "../../core/chat";
import { visible } from "../../core/words";

const MOST = 32; // asked for at once

/** The text of one id, as it would be read. Throws where the server does not say. */
export async function textOf(id: number): Promise<string> {
  const body = JSON.stringify({ tokens: [id] });
  const headers = { "content-type": "application/json" };
  const response = await fetch("/detokenize", { method: "POST", headers, body });
  if (!response.ok) throw new Error(await faultOf(response));
  return ((await response.json()) as { prompt: string }).prompt;
}

/** The texts of ids with every character visible; what cannot be asked is left out. */
export async function named(ids: readonly number[]): Promise<[number, string][]> {
  const all = ids.slice(0, MOST).map(async (id): Promise<[number, string][]> => [[id, visible(await textOf(id))]]);
  const found = await Promise.all(all.map((each) => each.catch(() => [])));
  return found.flat();
}
