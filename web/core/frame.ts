// Reads what a view gave: the layout of safetensors, with plain values in its header.

/** Numbers row by row. 64-bit integers come as doubles: ids and counts are exact in them. */
export class Tensor {
  constructor(
    readonly data: Float32Array | Float64Array | Uint8Array,
    readonly shape: readonly number[],
  ) {}

  /** How many there are along the first axis. */
  get length(): number {
    return this.shape[0] ?? 0;
  }

  /** The number at a place; indices from the first axis on, all of them. */
  at(...index: number[]): number {
    const place = index.reduce((sum, each, axis) => sum * this.shape[axis]! + each, 0);
    return this.data[place] ?? NaN;
  }

  /** What stands at one place of the first axis. */
  row(index: number): Tensor {
    const shape = this.shape.slice(1);
    const size = shape.reduce((product, each) => product * each, 1);
    return new Tensor(this.data.subarray(index * size, (index + 1) * size), shape);
  }

  /** All numbers, in order. */
  list(): number[] {
    return Array.from(this.data);
  }
}

export type Value = null | boolean | number | string | Tensor | Value[] | { [name: string]: Value };

/** A view's answer. proof: in words, null where the numbers are the record's own. */
export interface Shown {
  view: string;
  stage: string;
  question: string;
  proof: string | null;
  isExact: boolean | null;
  values: { [name: string]: Value };
}

interface Entry {
  dtype: string;
  shape: number[];
  data_offsets: [number, number];
}

const SCHEMA = 1;
const MOST_SIDE = 2 ** 22; // more than any vocabulary has tokens
const SIZES: Record<string, number> = { F32: 4, I64: 8, U8: 1 };

/** Throws an Error that says what is wrong with the bytes. */
export function shownOf(bytes: ArrayBuffer): Shown {
  const { told, arrays } = opened(bytes);
  if (told.schema > SCHEMA) {
    throw new Error(`the server speaks schema ${told.schema}, this page ${SCHEMA}: load it anew.`);
  }
  return {
    view: told.view,
    stage: told.stage,
    question: told.question,
    proof: told.proof,
    isExact: told.is_exact,
    values: filled(told.values as Value, arrays) as Shown["values"],
  };
}

interface Told {
  schema: number;
  view: string;
  stage: string;
  question: string;
  proof: string | null;
  is_exact: boolean | null;
  values: unknown;
}

function opened(bytes: ArrayBuffer): { told: Told; arrays: Map<string, Tensor> } {
  const { metadata, arrays } = arraysOf(bytes);
  return { told: JSON.parse((metadata as { cutaway: string }).cutaway) as Told, arrays };
}

/** Named arrays in the layout of safetensors. Throws an Error that says what is wrong. */
export function arraysOf(bytes: ArrayBuffer): { metadata: unknown; arrays: Map<string, Tensor> } {
  if (bytes.byteLength < 8) throw new Error(`${bytes.byteLength} bytes are no view.`);
  const size = Number(new DataView(bytes).getBigUint64(0, true));
  const start = 8 + size;
  if (start > bytes.byteLength) throw new Error("the view's header is longer than the view.");
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(bytes, 8, size))) as Record<
    string,
    unknown
  >;
  const { __metadata__: metadata, ...entries } = header;
  const arrays = new Map<string, Tensor>();
  for (const [name, entry] of Object.entries(entries)) {
    arrays.set(name, tensorOf(name, entry as Entry, bytes, start));
  }
  return { metadata, arrays };
}

function tensorOf(name: string, entry: Entry, bytes: ArrayBuffer, start: number): Tensor {
  const [from, to] = entry.data_offsets;
  const size = SIZES[entry.dtype];
  const count = entry.shape.reduce((product, each) => product * each, 1);
  if (size === undefined) throw new Error(`${name} has the type ${entry.dtype}.`);
  // Beside one of no length a side has no bytes that bound it.
  const isWhole = entry.shape.every((side) => Number.isInteger(side) && side >= 0 && side <= MOST_SIDE);
  if (!isWhole || to - from !== size * count || start + to > bytes.byteLength) {
    throw new Error(`${name} does not fit into the view.`);
  }
  const data = bytes.slice(start + from, start + to); // aligned, whatever stood before it
  if (entry.dtype === "U8") return new Tensor(new Uint8Array(data), entry.shape);
  if (entry.dtype === "F32") return new Tensor(new Float32Array(data), entry.shape);
  return new Tensor(Float64Array.from(new BigInt64Array(data), Number), entry.shape);
}

/** Values with their arrays in place. */
export function filled(value: Value, arrays: ReadonlyMap<string, Tensor>): Value {
  if (Array.isArray(value)) return value.map((each) => filled(each, arrays));
  if (value === null || typeof value !== "object" || value instanceof Tensor) return value;
  const named = Object.entries(value);
  const array = named.length === 1 && typeof value.array === "string" && arrays.get(value.array);
  if (array) return array;
  return Object.fromEntries(named.map(([name, each]) => [name, filled(each, arrays)]));
}

/** The same as plain JSON, arrays as lists; what is not finite becomes null, as in the API. */
export function plain(value: Value): unknown {
  if (value instanceof Tensor) {
    if (value.shape.length < 2) return value.list().map((each) => (isFinite(each) ? each : null));
    return Array.from({ length: value.length }, (_, index) => plain(value.row(index)));
  }
  if (Array.isArray(value)) return value.map(plain);
  if (value === null || typeof value !== "object") return value;
  return Object.fromEntries(Object.entries(value).map(([name, each]) => [name, plain(each)]));
}
