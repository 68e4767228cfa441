// A view that was pinned, in one word of the address: <trace>~<view>~<step>~<position>~<layer>~<head>.
import { NOWHERE, type Place } from "./route";

/** An answer, and where one looks in it. */
export interface Pin {
  trace: string; // empty in a file
  place: Place;
}

const NUMBERS = ["step", "position", "layer", "head"] as const;

/** The word of a pin. */
export function wordOf({ trace, place }: Pin): string {
  return [trace, place.view ?? "", ...NUMBERS.map((name) => place[name] ?? "")].join("~");
}

/** The pin of a word; null for none, or where it is not understood. */
export function pinOf(word: string | null): Pin | null {
  const parts = word?.split("~") ?? [];
  if (parts.length !== 2 + NUMBERS.length || !parts.slice(2).every((each) => /^\d{0,9}$/.test(each))) return null;
  const [trace, view] = parts as [string, string];
  const numbers = NUMBERS.map((name, index) => [name, parts[2 + index] ? Number(parts[2 + index]) : null]);
  return { trace, place: { ...NOWHERE, view: view || null, ...Object.fromEntries(numbers) } };
}
