// Opens a trace file (docs/trace.md) in the browser: a zip of a stranger, so sizes and names are bounded.
import { arraysOf, filled, type Tensor, type Value } from "./frame";
import { Refused, Views, type Query, type Seen } from "./views";

const MAX_FILE_BYTES = 64 * 2 ** 20;
const MAX_TOTAL_BYTES = 256 * 2 ** 20; // of all entries, unpacked
const MAX_ENTRIES = 256;
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

/** All that the page shows of a file. views: in the order of the pipeline. */
export interface TraceFile {
  manifest: Manifest;
  numEvents: number;
  views: Seen[];
}

interface Entry {
  name: string;
  method: number;
  packed: number;
  start: number;
}

/** Throws an Error that says what is wrong with the file. */
export async function openTrace(bytes: ArrayBuffer): Promise<TraceFile> {
  if (bytes.byteLength > MAX_FILE_BYTES) {
    throw new Error(`The file has ${bytes.byteLength} bytes; at most ${MAX_FILE_BYTES} are read here.`);
  }
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
  const events = textOf(await unpacked("events.ndjson")) ?? "";
  const views: Seen[] = [];
  for (const name of entries.keys()) {
    const stem = /^views\/(.*)\.json$/.exec(name)?.[1];
    if (stem) views.push(seenOf(stem, textOf(await unpacked(name)) ?? "", await unpacked(`tensors/${stem}.safetensors`)));
  }
  return { manifest: told, numEvents: events.split("\n").filter(Boolean).length, views };
}

interface Saved {
  question: string;
  proof: string | null;
  values: Value;
}

function seenOf(view: string, text: string, arrays: ArrayBuffer | null): Seen {
  const saved = JSON.parse(text) as Saved;
  const tensors = arrays ? arraysOf(arrays).arrays : new Map<string, Tensor>();
  return {
    view,
    stage: "",
    question: String(saved.question),
    proof: saved.proof,
    isExact: saved.proof === null ? null : saved.proof.startsWith("exact"),
    values: filled(saved.values, tensors) as Seen["values"],
    query: { view },
    numBytes: text.length + (arrays?.byteLength ?? 0),
    seconds: 0,
  };
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
    const start = header + 30 + data.getUint16(header + 26, true) + data.getUint16(header + 28, true);
    entries.push({ name, method: data.getUint16(at + 10, true), packed: data.getUint32(at + 20, true), start });
    at += 46 + size + data.getUint16(at + 30, true) + data.getUint16(at + 32, true);
  }
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
  const source = new Blob([packed]).stream();
  const stream = entry.method === STORED ? source : source.pipeThrough(new DecompressionStream("deflate-raw"));
  const parts: Uint8Array<ArrayBuffer>[] = [];
  const reader = stream.getReader();
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return new Blob(parts).arrayBuffer();
    budget.left -= value.byteLength;
    if (budget.left < 0) {
      await reader.cancel();
      throw new Error(`The file unpacks to more than ${MAX_TOTAL_BYTES} bytes.`);
    }
    parts.push(value);
  }
}

/** Views of a file in the place of a server's: each as it was saved, whatever place is asked for. */
export class SavedViews extends Views {
  constructor(readonly file: TraceFile) {
    super("");
  }

  override see(query: Query): Promise<Seen> {
    const found = this.file.views.find((each) => each.view === query.view);
    return found ? Promise.resolve(found) : Promise.reject(new Refused(404, `The file does not hold the view ${query.view}.`));
  }
}
