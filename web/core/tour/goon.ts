// The reader's prompt sent anew, as ids and by a request of its own: what a lever does with it.
import type { Reach } from "./chapter";

/** What came. Units of timings: tokens and milliseconds. */
export interface Went {
  text: string;
  tokens: readonly string[];
  timings: { cache_n: number; prompt_n: number; prompt_ms: number; predicted_n: number; predicted_ms: number; draft_n?: number; draft_n_accepted?: number };
}

/** The ids of the reader's prompt, and those of the answer. */
export async function saidIn(reach: Reach): Promise<{ prompt: number[]; answer: number[] }> {
  const { token_ids, num_prompt } = await reach.see("tokens");
  return { prompt: token_ids.slice(0, num_prompt), answer: token_ids.slice(num_prompt) };
}

/** Go on from ids, by settings of the API. */
export async function goOn(reach: Reach, prompt: readonly number[], settings: object): Promise<Went> {
  const body = { model: reach.model, prompt, logprobs: 0, ...settings };
  type Told = { choices: { text: string; logprobs: { tokens: string[] } }[]; timings: Went["timings"] };
  const { choices, timings } = await reach.post<Told>("/v1/completions", body);
  return { text: choices[0]!.text, tokens: choices[0]!.logprobs.tokens, timings };
}
