// Follows the events of one answer while it is made; docs/events.md has their fields.
import { EventReader } from "./events";

/** One event. Fields beyond these are passed over. */
export interface Happening {
  schema: number;
  type: string;
  index?: number;
  number?: number;
  count?: number;
  kernel?: string;
  came?: number; // by the server's clock
  began?: number;
  ended?: number;
  flops?: number;
  bytes?: number;
  at?: number;
  text?: string;
  id?: number;
  u?: number | null;
  pages?: [number, number]; // that a step fills: the first, and the one behind the last
  num_layers?: number;
  probability?: number;
  reason?: string;
}

/** Events until the answer's end. Ends quietly where the server tells none of this answer. */
export async function* happenings(trace: string, signal: AbortSignal): AsyncGenerator<Happening> {
  const response = await fetch(`/cutaway/v1/traces/${encodeURIComponent(trace)}/events`, { signal });
  if (!response.ok || !response.body) return;
  const events = new EventReader();
  const decoder = new TextDecoder();
  const reader = response.body.getReader();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      for (const data of events.add(decoder.decode(value, { stream: true }))) {
        const event = JSON.parse(data) as Happening;
        if (event.schema === 1) yield event;
      }
    }
  } finally {
    reader.cancel().catch(() => undefined);
  }
}
