// Writes a trace file (docs/trace.md) in the browser: an answer's events, and views at the places they were seen.
import { Tensor, type Value } from "./frame";
import { placeOf, type Seen } from "./views";

export type Told = Record<string, unknown> & { type: string };

/** The bytes of a file. events: as the server tells them (docs/events.md). line: a view's finding in words. */
export async function traceFile(events: readonly Told[], seen: readonly Seen[], version: string, line: (seen: Seen) => string): Promise<Uint8Array<ArrayBuffer>> {
  const entries: [string, Uint8Array<ArrayBuffer>][] = [
    ["manifest.json", json(manifestOf(events, version))],
    ["events.ndjson", encoded(eventsOf(events).map((event) => `${JSON.stringify(event)}\n`).join(""))],
  ];
  for (const view of new Set(seen.map((each) => each.view))) {
    const places = seen.filter((each) => each.view === view);
    const arrays = new Map<string, Tensor>();
    const written = places.map((each, index) => ({
      query: placeOf(each.query),
      proof: each.proof,
      values: parted(each.values, `${index}`, arrays),
      is_whole: true,
    }));
    const first = places[0]!;
    entries.push([`views/${view}.json`, json({ question: first.question, lines: [[[line(first), ""]]], ...written[0], places: written.slice(1) })]);
    if (arrays.size) entries.push([`tensors/${view}.safetensors`, packed(arrays)]);
  }
  return zipped(entries);
}

/** What ran, as far as the events tell. */
function manifestOf(events: readonly Told[], version: string): object {
  const [start, end] = ["start", "end"].map((type) => events.find((event) => event.type === type) ?? ({ type } as Told));
  const usage = (end!.usage ?? {}) as Record<string, number>;
  const { model, sampling, seed, schema: _, type: __, trace_id: ___, ...engine } = start!;
  return {
    format: "cutaway trace",
    schema: 1,
    cutaway: version,
    model: { name: model },
    engine,
    sampling: { ...(sampling as object), seed },
    answer: {
      num_prompt_tokens: start!.num_prompt_tokens,
      num_tokens: usage.completion_tokens,
      num_cached: usage.cached_tokens,
      finish_reason: end!.reason,
    },
    timings: end!.timings ?? {},
    privacy: { redacted: false },
    left_out: [],
  };
}

/** Events as a file has them: the prompt in one, the whole text at the end. */
function eventsOf(events: readonly Told[]): Told[] {
  const parts = events.filter((event) => event.type === "prompt");
  const ids = parts.flatMap((part) => part.ids as number[]);
  const prompt = { type: "prompt", count: ids.length, ids, texts: parts.flatMap((part) => part.texts as string[]) };
  const shown = events.filter((event) => event.type === "token").map((event) => (event.shows as string | undefined) ?? "");
  const others = events.filter((event) => event.type !== "prompt");
  return [prompt, ...others.map((event) => (event.type === "end" ? { ...event, text: shown.join("") + ((event.rest as string | undefined) ?? "") } : event))];
}

/** Values with each array put aside under a name. */
function parted(value: Value, path: string, arrays: Map<string, Tensor>): unknown {
  if (value instanceof Tensor) {
    arrays.set(path, value);
    return { array: path };
  }
  if (Array.isArray(value)) return value.map((each, index) => parted(each, `${path}.${index}`, arrays));
  if (value === null || typeof value !== "object") return value;
  return Object.fromEntries(Object.entries(value).map(([name, each]) => [name, parted(each, `${path}.${name}`, arrays)]));
}

const encoded = (text: string): Uint8Array<ArrayBuffer> => new TextEncoder().encode(text);
const json = (value: unknown): Uint8Array<ArrayBuffer> => encoded(JSON.stringify(value));

/** Named arrays in the layout of safetensors. */
function packed(arrays: ReadonlyMap<string, Tensor>): Uint8Array<ArrayBuffer> {
  let at = 0;
  const parts: Uint8Array<ArrayBuffer>[] = [];
  const header: Record<string, unknown> = {};
  for (const [name, { data, shape }] of arrays) {
    const raw = data instanceof Float64Array ? BigInt64Array.from(data, BigInt) : data;
    parts.push(new Uint8Array(raw.buffer as ArrayBuffer, raw.byteOffset, raw.byteLength));
    header[name] = { dtype: raw instanceof BigInt64Array ? "I64" : raw instanceof Float32Array ? "F32" : "U8", shape, data_offsets: [at, (at += raw.byteLength)] };
  }
  const text = JSON.stringify(header);
  const front = encoded(text + " ".repeat((8 - (encoded(text).length % 8)) % 8));
  return joined([number(8, front.length), front, ...parts]);
}

async function zipped(entries: readonly [string, Uint8Array<ArrayBuffer>][]): Promise<Uint8Array<ArrayBuffer>> {
  const files: Uint8Array<ArrayBuffer>[] = [];
  const directory: Uint8Array<ArrayBuffer>[] = [];
  let at = 0;
  for (const [name, data] of entries) {
    const stream = new Blob([data]).stream().pipeThrough(new CompressionStream("deflate-raw"));
    const deflated = new Uint8Array(await new Response(stream).arrayBuffer());
    const path = encoded(name);
    // Version 2.0, no flags, deflated, the zip's first day, sums and sizes, no extra field.
    const facts = [number(2, 20), number(2, 0), number(2, 8), number(2, 0), number(2, 33), number(4, checksum(data)),
      number(4, deflated.length), number(4, data.length), number(2, path.length), number(2, 0)];
    const file = joined([number(4, 0x04034b50), ...facts, path, deflated]);
    directory.push(joined([number(4, 0x02014b50), number(2, 20), ...facts, number(2, 0), number(2, 0), number(2, 0), number(4, 0), number(4, at), path]));
    files.push(file);
    at += file.length;
  }
  const names = joined(directory);
  const count = number(2, entries.length);
  const end = [number(4, 0x06054b50), number(2, 0), number(2, 0), count, count, number(4, names.length), number(4, at), number(2, 0)];
  return joined([...files, names, ...end]);
}

/** A whole number in so many bytes, the lowest first. */
function number(size: number, value: number): Uint8Array<ArrayBuffer> {
  return Uint8Array.from({ length: size }, (_, index) => Math.floor(value / 256 ** index) % 256);
}

function joined(parts: readonly Uint8Array<ArrayBuffer>[]): Uint8Array<ArrayBuffer> {
  const all = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
  let at = 0;
  for (const part of parts) {
    all.set(part, at);
    at += part.length;
  }
  return all;
}

/** CRC-32 as zip has it. */
function checksum(data: Uint8Array): number {
  let sum = ~0;
  for (const byte of data) {
    sum ^= byte;
    for (let bit = 0; bit < 8; bit += 1) sum = (sum >>> 1) ^ (sum & 1 ? 0xedb88320 : 0);
  }
  return ~sum >>> 0;
}
