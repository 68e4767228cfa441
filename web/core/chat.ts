// Talks to the server's chat API: what is sent, what comes back, event by event.
import { EventReader } from "./events";

/** A call of a tool as the model wrote it. arguments: JSON in a string, which may be cut short. */
export interface Call {
  id: string;
  name: string;
  arguments: string;
}

export interface Message {
  role: "system" | "user" | "assistant" | "tool";
  content: string | null;
  tool_calls?: { id: string; type: "function"; function: { name: string; arguments: string } }[];
  tool_call_id?: string;
}

/** One entry of the API's logprobs: a token with its exact bytes. Units: natural logarithm. */
export interface Scored {
  token: string;
  token_id?: number; // where the request asked for it
  bytes: number[];
  logprob: number;
  top_logprobs?: Scored[];
}

/** Times of one answer in milliseconds, as the server measured them. */
export interface Timings {
  tokenize_ms?: number; // older servers do not tell
  queue_ms: number;
  prompt_n: number;
  prompt_ms: number;
  cache_n: number;
  predicted_n: number;
  predicted_ms: number;
}

/** A part of a call: its name comes first, then its arguments piece by piece. */
export interface CallPart {
  index: number;
  id?: string;
  function?: { name?: string; arguments?: string };
}

/** What one event says. */
export interface News {
  id: string; // of the answer: its trace has the same
  text: string;
  reasoning: string;
  calls: CallPart[];
  tokens: Scored[];
  finish: string | null;
  timings: Timings | null;
  sent: number; // when the server gave it to the socket, in milliseconds of its clock; NaN where it does not tell
}

interface Chunk {
  id?: string;
  choices: {
    delta: { content?: string; reasoning_content?: string; tool_calls?: CallPart[] };
    logprobs: { content: Scored[] } | null;
    finish_reason: string | null;
  }[];
  timings?: Timings;
  cutaway?: { sent?: number };
  error?: { message: string };
}

const ALTERNATIVES = 8;

/** A request: what was said, and further fields of the API. */
export interface Question {
  model: string;
  messages: readonly Message[];
  fields?: Readonly<Record<string, unknown>>;
  begun?: readonly number[]; // ids of the tokens that the answer begins with
}

/** The body of a request. */
export function bodyOf({ model, messages, fields, begun }: Question): string {
  const always = { stream: true, logprobs: true, top_logprobs: ALTERNATIVES };
  const cutaway = { token_ids: true, times: true, ...(begun?.length && { answer_token_ids: begun }) };
  return JSON.stringify({ model, messages, ...always, ...fields, cutaway });
}

/** What is new, event by event; note gets the raw stream. Throws an Error in the server's own words. */
export async function* ask(question: Question, signal: AbortSignal, note?: (piece: string) => void): AsyncGenerator<News> {
  const response = await fetch("/v1/chat/completions", {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: bodyOf(question),
    signal,
  }).catch(gone);
  if (!response.ok || !response.body) throw new Error(await faultOf(response));
  const events = new EventReader();
  const decoder = new TextDecoder();
  let isDone = false;
  const reader = response.body.getReader();
  try {
    for (;;) {
      const { done, value } = await reader.read().catch(gone);
      if (done) break;
      const piece = decoder.decode(value, { stream: true });
      note?.(piece);
      for (const data of events.add(piece)) {
        if (data === "[DONE]") isDone = true;
        else yield newsOf(data);
      }
    }
  } finally {
    reader.cancel().catch(() => undefined);
  }
  if (!isDone) throw new Error("the server closed the stream before the answer's end.");
}

/** Browsers' own words for a server that is gone are "Failed to fetch" and "network error". */
function gone(error: unknown): never {
  throw error instanceof TypeError ? new Error("The server does not answer.") : error;
}

/** What one event's data says. Throws an Error when it tells of a fault. */
export function newsOf(data: string): News {
  const chunk = JSON.parse(data) as Chunk;
  if (chunk.error) throw new Error(chunk.error.message);
  const choice = chunk.choices[0];
  return {
    id: chunk.id ?? "",
    text: choice?.delta.content ?? "",
    reasoning: choice?.delta.reasoning_content ?? "",
    calls: choice?.delta.tool_calls ?? [],
    tokens: choice?.logprobs?.content ?? [],
    finish: choice?.finish_reason ?? null,
    timings: chunk.timings ?? null,
    sent: 1000 * (chunk.cutaway?.sent ?? NaN),
  };
}

/** The server's words on a request that it refused. */
export async function faultOf(response: Response): Promise<string> {
  const body: unknown = await response.json().catch(() => null);
  const message = (body as { error?: { message?: unknown } } | null)?.error?.message;
  return typeof message === "string" ? message : `the server answered ${response.status}.`;
}

/** Calls with the parts that came joined to them. */
export function joined(calls: readonly Call[], parts: readonly CallPart[]): Call[] {
  const all = [...calls];
  for (const part of parts) {
    const before = all[part.index] ?? { id: "", name: "", arguments: "" };
    all[part.index] = {
      id: part.id ?? before.id,
      name: part.function?.name ?? before.name,
      arguments: before.arguments + (part.function?.arguments ?? ""),
    };
  }
  return all.filter(Boolean);
}
