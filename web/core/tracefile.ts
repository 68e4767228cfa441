// Opens a trace file (docs/trace.md) in the browser: a zip of a stranger, so sizes and names are bounded.
import { arraysOf, filled, type Tensor, type Value } from "./frame";
import { KNOBS } from "./lab";
import type { Happening } from "./live";
import type { Made } from "./python";
import { PLACES, Refused, Views, type Query, type Seen } from "./views";

const MAX_FILE_BYTES = 64 * 2 ** 20;
const MAX_TOTAL_BYTES = 256 * 2 ** 20; // of all entries, unpacked
const MAX_ENTRIES = 256;
const PIECE_BYTES = 2 ** 16; // that are unpacked at once
const SCHEMA = 1;
const NAME = /^(manifest\.json|events\.ndjson|views\/[a-z][a-z_]{0,40}\.json|tensors\/[a-z][a-z_]{0,40}\.safetensors)$/;
const [STORED, DEFLATED] = [0, 8];

export interface Manifest {
  schema: number;
  cutaway?: string;
  model?: { name?: string };
  engine?: Record<string, unknown>;
  sampling?: Record<string, unknown>;
  answer?: { num_prompt_tokens?: number; num_tokens?: number; finish_reason?: string };
  left_out?: { view: string; reason: string }[];
}

/** What a file holds: what the page shows at once, and the rest when it is asked for. */
export interface TraceFile {
  manifest: Manifest;
  numEvents: number;
  views: readonly string[]; // names
  events: (type: string) => Record<string, unknown>[];
  saved: (view: string) => Promise<Saved[]>; // a view at each place that it was saved at
}

/** A view at one place. values: read when they are wanted. */
export interface Saved {
  query: Query;
  seen: () => Seen;
}

interface Entry {
  name: string;
  method: number;
  checksum: number; // of what it unpacks to
  packed: number;
  start: number;
}

/** Throws an Error that says what is wrong with the file; one that is too large is not read at all. */
export async function openTrace(given: ArrayBuffer | Blob): Promise<TraceFile> {
  const size = given instanceof Blob ? given.size : given.byteLength;
  if (size > MAX_FILE_BYTES) throw new Error(`The file has ${size} bytes; at most ${MAX_FILE_BYTES} are read here.`);
  const bytes = given instanceof Blob ? await given.arrayBuffer() : given;
  const entries = new Map(entriesOf(bytes).map((entry) => [entry.name, entry]));
  const budget = { left: MAX_TOTAL_BYTES };
  const unpacked = async (name: string): Promise<ArrayBuffer | null> => {
    const entry = entries.get(name);
    return entry ? unpack(bytes, entry, budget) : null;
  };
  const manifest = textOf(await unpacked("manifest.json"));
  const told = manifest && (JSON.parse(manifest) as Manifest & { format?: string });
  if (!told || told.format !== "cutaway trace") throw new Error("The file is no trace of Cutaway: its manifest is missing.");
  if (told.schema > SCHEMA) throw new Error(`The file has schema ${told.schema}, newer than ${SCHEMA}: open it with a newer Cutaway.`);
  const events = (textOf(await unpacked("events.ndjson")) ?? "").split("\n").filter(Boolean);
  const read = new Map<string, Promise<Saved[]>>();
  const saved = async (view: string): Promise<Saved[]> =>
    savedOf(view, textOf(await unpacked(`views/${view}.json`)) ?? "", await unpacked(`tensors/${view}.safetensors`));
  return {
    manifest: told,
    numEvents: events.length,
    views: [...entries.keys()].flatMap((name) => /^views\/(.*)\.json$/.exec(name)?.[1] ?? []),
    // At once: half the time of one after the other.
    events: (type) => JSON.parse(`[${events.filter((line) => line.includes(`"type":"${type}"`)).join()}]`) as Record<string, unknown>[],
    saved: (view) => {
      const known = read.get(view) ?? saved(view);
      read.set(view, known);
      return known;
    },
  };
}

type Values = Record<string, Value>;
type Place = Omit<Query, "view">;

/** A view as it was written: at the first place whole, at others what differs from it. */
interface Written {
  question: string;
  proof: string | null;
  values: Values;
  query?: Place; // missing in files before places came: the values tell some of it
  places?: { query: Place; proof: string | null; values: Values; is_whole: boolean }[];
}

function savedOf(view: string, text: string, arrays: ArrayBuffer | null): Saved[] {
  const first = JSON.parse(text) as Written;
  const tensors = arrays ? arraysOf(arrays).arrays : new Map<string, Tensor>();
  const own = { proof: first.proof, query: first.query ?? told(first.values), values: first.values, is_whole: true };
  const all = [own, ...(first.places ?? [])];
  const numBytes = Math.round((text.length + (arrays?.byteLength ?? 0)) / all.length);
  const shared = once(() => filled(first.values, tensors) as Values);
  return all.map((each) => {
    const query: Query = { ...each.query, view };
    const { proof } = each;
    const seen = once((): Seen => ({
      view,
      stage: "",
      question: String(first.question),
      proof,
      isExact: proof === null ? null : proof.startsWith("exact"),
      values: each === own ? shared() : { ...(each.is_whole ? {} : shared()), ...(filled(each.values, tensors) as Values) },
      query,
      numBytes,
      seconds: null,
    }));
    return { query, seen };
  });
}

/** What is made when it is first wanted, and stays. */
function once<Made>(make: () => Made): () => Made {
  let made: { is: Made } | null = null;
  return () => (made ??= { is: make() }).is;
}

/** The place that values name. */
function told(values: Values): Place {
  return Object.fromEntries(PLACES.filter((name) => typeof values[name] === "number").map((name) => [name, values[name]])) as Place;
}

const textOf = (bytes: ArrayBuffer | null): string | null => bytes && new TextDecoder("utf-8", { fatal: true }).decode(bytes);

/** The zip's directory. Names that no trace file has, and names that come twice, are refused. */
function entriesOf(bytes: ArrayBuffer): Entry[] {
  const data = new DataView(bytes);
  const end = endOf(data);
  const count = data.getUint16(end + 10, true);
  if (count > MAX_ENTRIES) throw new Error(`The file has ${count} entries; at most ${MAX_ENTRIES} are read.`);
  const entries: Entry[] = [];
  let at = data.getUint32(end + 16, true);
  for (let index = 0; index < count; index += 1) {
    if (at + 46 > bytes.byteLength || data.getUint32(at, true) !== 0x02014b50) throw new Error("The file's directory is damaged.");
    const size = data.getUint16(at + 28, true);
    const name = new TextDecoder().decode(new Uint8Array(bytes, at + 46, size));
    if (!NAME.test(name) || entries.some((each) => each.name === name)) {
      throw new Error(`An entry ${JSON.stringify(name.slice(0, 80))} belongs in no trace file, or is there twice.`);
    }
    const header = data.getUint32(at + 42, true);
    const own = data.getUint16(header + 26, true);
    const start = header + 30 + own + data.getUint16(header + 28, true);
    const [method, checksum, packed] = [data.getUint16(at + 10, true), data.getUint32(at + 16, true), data.getUint32(at + 20, true)];
    if (new TextDecoder().decode(new Uint8Array(bytes, header + 30, own)) !== name) throw new Error("The file's directory is damaged.");
    entries.push({ name, method, checksum, packed, start });
    at += 46 + size + data.getUint16(at + 30, true) + data.getUint16(at + 32, true);
  }
  const names = new Set(entries.map((entry) => entry.name));
  const isLost = (name: string): boolean => name.startsWith("tensors/") && !names.has(name.replace("tensors/", "views/").replace(".safetensors", ".json"));
  if ([...names].some(isLost)) throw new Error("The file's directory is damaged: arrays belong to no view.");
  return entries;
}

/** Where the directory's end record stands; a comment may follow it. */
function endOf(data: DataView): number {
  for (let at = data.byteLength - 22; at >= Math.max(0, data.byteLength - 22 - 65535); at -= 1) {
    if (data.getUint32(at, true) === 0x06054b50) return at;
  }
  throw new Error("The file is no zip, so it is no trace of Cutaway.");
}

/** An entry's bytes, as long as all of them together stay within the budget. */
async function unpack(bytes: ArrayBuffer, entry: Entry, budget: { left: number }): Promise<ArrayBuffer> {
  if (entry.start + entry.packed > bytes.byteLength) throw new Error(`The entry ${entry.name} is cut short.`);
  const packed = new Uint8Array(bytes, entry.start, entry.packed);
  if (entry.method !== STORED && entry.method !== DEFLATED) throw new Error(`The entry ${entry.name} is packed in a way that is not read.`);
  const spend = (count: number): void => {
    budget.left -= count;
    if (budget.left < 0) throw new Error(`The file unpacks to more than ${MAX_TOTAL_BYTES} bytes.`);
  };
  const whole = (sum: number, data: ArrayBuffer): ArrayBuffer => {
    if (sum !== entry.checksum) throw new Error(`The entry ${entry.name} is damaged: its checksum differs.`);
    return data;
  };
  if (entry.method === STORED) {
    spend(packed.length);
    return whole(crc32(packed), packed.slice().buffer);
  }
  const parts: Uint8Array[] = [];
  let sum = 0;
  const reader = inPieces(packed).pipeThrough(new DecompressionStream("deflate-raw")).getReader();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return whole(sum, joined(parts));
      spend(value.byteLength);
      sum = crc32(value, sum);
      parts.push(value);
    }
  } finally {
    await reader.cancel();
  }
}

const REMAINDERS = Uint32Array.from({ length: 256 }, (_, byte) => {
  let left = byte;
  for (let bit = 0; bit < 8; bit += 1) left = left & 1 ? (left >>> 1) ^ 0xedb88320 : left >>> 1;
  return left;
});

/** The checksum of a zip's entry. before: that of the bytes in front of these. */
function crc32(bytes: Uint8Array, before = 0): number {
  let sum = ~before;
  for (const byte of bytes) sum = REMAINDERS[(sum ^ byte) & 255]! ^ (sum >>> 8);
  return ~sum >>> 0;
}

/** Bytes as they are asked for: few at a time may unpack to very many. Not a Blob, which is kept by another process. */
function inPieces(bytes: Uint8Array<ArrayBuffer>): ReadableStream<Uint8Array<ArrayBuffer>> {
  let at = 0;
  return new ReadableStream({
    pull(controller) {
      if (at < bytes.length) controller.enqueue(bytes.subarray(at, (at += PIECE_BYTES)));
      else controller.close();
    },
  });
}

function joined(parts: readonly Uint8Array[]): ArrayBuffer {
  const all = new Uint8Array(parts.reduce((sum, each) => sum + each.length, 0));
  let at = 0;
  for (const part of parts) {
    all.set(part, at);
    at += part.length;
  }
  return all.buffer;
}

/** Of some places the nearest to a question: of the same kind, then by token, position, layer and head. */
export function nearest<Found extends { query: Query }>(all: readonly Found[], asked: Query): Found {
  const far = ({ query }: Found): number[] => [
    Number((query.head === undefined) !== (asked.head === undefined)),
    // A view of its own choice tells no place: one that tells it is nearer.
    PLACES.filter((name) => asked[name] !== undefined && query[name] === undefined).length,
    ...PLACES.map((name) => Math.abs((query[name] ?? asked[name] ?? 0) - (asked[name] ?? query[name] ?? 0))),
  ];
  const isNearer = (one: number[], other: number[]): boolean => {
    const at = one.findIndex((gap, index) => gap !== other[index]);
    return at >= 0 && one[at]! < other[at]!;
  };
  return all.reduce((best, each) => (isNearer(far(each), far(best)) ? each : best));
}

/** Views of a file in the place of a server's: each as it was saved, at the nearest place to the one asked for. */
export class SavedViews extends Views {
  constructor(readonly file: TraceFile) {
    super("");
  }

  override async see(query: Query): Promise<Seen> {
    if (!this.file.views.includes(query.view)) throw new Refused(404, this.#missing(query.view));
    const all = await this.file.saved(query.view);
    return nearest(all, query).seen();
  }

  override async held(view: string): Promise<readonly Query[]> {
    return this.file.views.includes(view) ? (await this.file.saved(view)).map((each) => each.query) : [];
  }

  override drawnTokens(): Promise<Happening[]> {
    return Promise.resolve(this.file.events("token") as unknown as Happening[]);
  }

  override async made(): Promise<Made> {
    const { model, answer, engine } = this.file.manifest;
    const prompt = this.file.events("prompt")[0]?.ids as number[] | undefined;
    if (!prompt) throw new Error("The file is redacted: it has no ids to make the answer again.");
    const build = (engine?.settings ?? {}) as Record<string, string>; // files of before have none
    return { ...(await this.drawn()), model: model?.name ?? "", build, prompt, numTokens: answer?.num_tokens ?? 0 };
  }

  /** As the manifest tells; a seed that nobody chose is told by the draw. */
  protected override async drawn(): Promise<Pick<Made, "settings" | "seed">> {
    const told = this.file.manifest.sampling ?? {};
    const known = KNOBS.map(({ name }) => [name, told[name]]).filter(([, value]) => typeof value === "number");
    const isWhole = Number.isSafeInteger(told.seed); // beyond, reading JSON has rounded it
    const seed = isWhole ? String(told.seed) : await super.drawn().then((drawn) => drawn.seed, () => null);
    return { settings: Object.fromEntries(known) as Record<string, number>, seed };
  }

  #missing(view: string): string {
    const reason = this.file.manifest.left_out?.find((each) => each.view === view)?.reason;
    return `The file does not hold the view ${view}${reason ? `: ${reason}` : ""}.`;
  }
}
