// Talks to the server's chat API: what is sent, what comes back, event by event.
import { EventReader } from "./events";

export interface Message {
  role: "system" | "user" | "assistant";
  content: string;
}

/** One entry of the API's logprobs: a token with its exact bytes. Units: natural logarithm. */
export interface Scored {
  token: string;
  bytes: number[];
  logprob: number;
  top_logprobs?: Scored[];
}

/** Times of one answer in milliseconds, as the server measured them. */
export interface Timings {
  queue_ms: number;
  prompt_n: number;
  prompt_ms: number;
  cache_n: number;
  predicted_n: number;
  predicted_ms: number;
  predicted_per_second: number;
}

/** What one event says. */
export interface News {
  text: string;
  tokens: Scored[];
  finish: string | null;
  timings: Timings | null;
}

interface Chunk {
  choices: {
    delta: { content?: string };
    logprobs: { content: Scored[] } | null;
    finish_reason: string | null;
  }[];
  timings?: Timings;
  error?: { message: string };
}

const ALTERNATIVES = 8;

/** The body of a request. */
export function bodyOf(model: string, messages: readonly Message[]): string {
  const fields = { stream: true, logprobs: true, top_logprobs: ALTERNATIVES };
  return JSON.stringify({ model, messages, ...fields });
}

/** What is new, event by event. Throws an Error in the server's own words. */
export async function* ask(
  model: string,
  messages: readonly Message[],
  signal: AbortSignal,
): AsyncGenerator<News> {
  const response = await fetch("/v1/chat/completions", {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: bodyOf(model, messages),
    signal,
  });
  if (!response.ok || !response.body) throw new Error(await faultOf(response));
  const events = new EventReader();
  const decoder = new TextDecoder();
  let isDone = false;
  const reader = response.body.getReader();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) break;
      for (const data of events.add(decoder.decode(value, { stream: true }))) {
        if (data === "[DONE]") isDone = true;
        else yield newsOf(data);
      }
    }
  } finally {
    reader.cancel().catch(() => undefined);
  }
  if (!isDone) throw new Error("the server closed the stream before the answer's end.");
}

/** What one event's data says. Throws an Error when it tells of a fault. */
export function newsOf(data: string): News {
  const chunk = JSON.parse(data) as Chunk;
  if (chunk.error) throw new Error(chunk.error.message);
  const choice = chunk.choices[0];
  return {
    text: choice?.delta.content ?? "",
    tokens: choice?.logprobs?.content ?? [],
    finish: choice?.finish_reason ?? null,
    timings: chunk.timings ?? null,
  };
}

/** The server's words on a request that it refused. */
export async function faultOf(response: Response): Promise<string> {
  const body: unknown = await response.json().catch(() => null);
  const message = (body as { error?: { message?: unknown } } | null)?.error?.message;
  return typeof message === "string" ? message : `the server answered ${response.status}.`;
}
