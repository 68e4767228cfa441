// Any view's numbers as tables: the form of a figure that everybody can read.
import { Tensor, type Value } from "./frame";
import { figure } from "./numbers";

export interface Table {
  name: string;
  head: string[];
  rows: string[][];
  left: number; // rows that are not shown
}

const ROWS = 200;
const COLUMNS = 24;

/** Tables of all values: single ones first, then lists of equal length side by side, then the rest. */
export function tablesOf(values: { [name: string]: Value }): Table[] {
  const single: string[][] = [];
  const lists = new Map<number, [string, readonly (Value | number)[]][]>();
  const rest: Table[] = [];
  for (const [name, value] of Object.entries(values)) {
    const list = listOf(value);
    if (list && list.length) {
      const alike = lists.get(list.length) ?? [];
      alike.push([worded(name), list]);
      lists.set(list.length, alike);
    } else if (value instanceof Tensor && value.shape.length === 2) rest.push(matrix(worded(name), value));
    else if (isRecords(value)) rest.push(records(worded(name), value));
    else if (value && typeof value === "object" && !Array.isArray(value) && !(value instanceof Tensor)) {
      rest.push(...tablesOf(value).map((each) => ({ ...each, name: `${worded(name)}: ${each.name}` })));
    } else if (value === null || typeof value !== "object") single.push([worded(name), cell(value)]);
  }
  const first: Table[] = single.length ? [{ name: "values", head: ["field", "value"], rows: single, left: 0 }] : [];
  return [...first, ...[...lists.values()].map(together), ...rest];
}

/** What a name of a field says: num_tokens is the number of tokens. */
export const worded = (name: string): string => name.replace(/^num_/, "number of ").replaceAll("_", " ");

function listOf(value: Value): readonly (Value | number)[] | null {
  if (value instanceof Tensor) return value.shape.length === 1 ? value.list() : null;
  if (!Array.isArray(value)) return null;
  return value.every((each) => each === null || typeof each !== "object") ? value : null;
}

const isRecords = (value: Value): value is { [name: string]: Value }[] =>
  Array.isArray(value) &&
  value.length > 0 &&
  value.every((each) => each !== null && typeof each === "object" && !Array.isArray(each) && !(each instanceof Tensor));

function together(lists: [string, readonly (Value | number)[]][]): Table {
  const length = lists[0]![1].length;
  const shown = Math.min(length, ROWS);
  const rows = Array.from({ length: shown }, (_, index) => [
    String(index),
    ...lists.map(([, list]) => cell(list[index] ?? null)),
  ]);
  return { name: lists.map(([name]) => name).join(", "), head: ["place", ...lists.map(([name]) => name)], rows, left: length - shown };
}

function matrix(name: string, tensor: Tensor): Table {
  const width = Math.min(tensor.shape[1] ?? 0, COLUMNS);
  const shown = Math.min(tensor.length, ROWS);
  const rows = Array.from({ length: shown }, (_, index) => [
    String(index),
    ...Array.from({ length: width }, (_, column) => cell(tensor.at(index, column))),
  ]);
  const head = ["row", ...Array.from({ length: width }, (_, column) => String(column))];
  const cut = width < (tensor.shape[1] ?? 0) ? `, the first ${width} of ${tensor.shape[1]} columns` : "";
  return { name: name + cut, head, rows, left: tensor.length - shown };
}

function records(name: string, list: { [name: string]: Value }[]): Table {
  const names = Object.keys(list[0]!);
  const shown = list.slice(0, ROWS);
  const rows = shown.map((each) => names.map((key) => cell(each[key] ?? null)));
  return { name, head: names.map(worded), rows, left: list.length - shown.length };
}

function cell(value: Value | number): string {
  if (value === null) return "none";
  if (typeof value === "number") return figure(value, 5);
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (typeof value === "string") return value;
  if (value instanceof Tensor) return value.list().slice(0, 8).map((each) => figure(each)).join(" ");
  if (Array.isArray(value)) return value.map(cell).join(" \u2502 ");
  return Object.values(value).map(cell).join(" \u2502 ");
}
