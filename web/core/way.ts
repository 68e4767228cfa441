// A token's way from the engine to the screen: four moments by two clocks, and how far those are known to agree.
import { happenings } from "./live";
import type { WireFrame } from "./wire";

/** A question for the server's time, asked and answered by this browser's clock. Unit: milliseconds. */
export interface Trip {
  asked: number;
  answered: number;
  server: number;
}

/** How far the server's clock is ahead of this browser's, and how far that may be wrong. Unit: milliseconds. */
export interface Offset {
  ahead: number;
  within: number;
  trip: number; // the quickest
}

/** So many tokens were on the screen. at: milliseconds since the question was sent. */
export interface Painted {
  tokens: number;
  at: number;
}

/** What each part of the way took, token by token; NaN where it is not known. Unit: milliseconds. */
export interface Way {
  wire: number[]; // from the engine's choice
  browser: number[]; // from there
  paint: number[]; // from there
}

const TRIPS = 7;
const DRIFT = 1e-4; // clocks of two machines part by less

/** What the quickest trip tells. The server's time lay between question and answer, nobody knows where. moment: which is asked about. */
export function offsetOf(trips: readonly Trip[], moment: number): Offset {
  const [best] = [...trips].sort((one, other) => one.answered - one.asked - (other.answered - other.asked));
  const { asked, answered, server } = best!;
  const trip = answered - asked;
  // Browsers tell time in steps: Chromium of 0.1 ms or finer, others of 1 ms.
  const step = trips.every((each) => Number.isInteger(each.asked)) ? 1 : 0.1;
  return { ahead: server - (asked + answered) / 2, within: trip / 2 + step + DRIFT * Math.abs(answered - moment), trip };
}

/** The way of each token. began: when the question was sent, by this browser; chosen: by the server's clock. Unit: milliseconds. */
export function wayOf(
  frames: readonly WireFrame[],
  painted: readonly Painted[],
  { began, chosen, ahead }: { began: number; chosen: readonly number[]; ahead: number },
): Way {
  const way: Way = { wire: [], browser: [], paint: [] };
  let next = 0;
  for (const { at, sent, tokens } of frames) {
    for (const token of tokens) {
      while (next < painted.length && painted[next]!.tokens <= token) next += 1;
      way.wire.push(sent - (chosen[token] ?? NaN));
      way.browser.push(began + at - (sent - ahead));
      way.paint.push((painted[next]?.at ?? NaN) - at);
    }
  }
  return way;
}

/** The middle and the largest of what is known; NaN where nothing is. */
export function middleOf(values: readonly number[]): { middle: number; most: number } {
  const known = values.filter(isFinite).sort((one, other) => one - other);
  const half = known.length >> 1;
  const middle = known.length % 2 ? known[half]! : (known[half - 1]! + known[half]!) / 2;
  return { middle, most: known.at(-1) ?? NaN };
}

/** Ask the server for its time, a few times over. Throws an Error where it does not tell. */
export async function tripsMade(signal: AbortSignal): Promise<Trip[]> {
  const trips: Trip[] = [];
  while (trips.length < TRIPS) {
    const asked = performance.now();
    const response = await fetch("/cutaway/v1/clock", { signal, cache: "no-store" });
    const answered = performance.now();
    if (!response.ok) throw new Error(`the server answered ${response.status}.`);
    const { now } = (await response.json()) as { now: number };
    trips.push({ ...onTheWire(response.url, asked, answered), server: 1000 * now });
  }
  return trips;
}

/** When a question left and its answer's first byte came, as the browser noted it: a busy page hears of it later. */
function onTheWire(url: string, asked: number, answered: number): Omit<Trip, "server"> {
  const noted = performance.getEntriesByName(url).at(-1) as PerformanceResourceTiming | undefined;
  if (!noted || noted.responseStart <= asked) return { asked, answered }; // of a trip before: its store is full
  return { asked: Math.max(asked, noted.requestStart), answered: Math.min(answered, noted.responseStart) };
}

/** When the engine chose each token of an answer, by the server's clock. Unit: milliseconds. */
export async function chosenAt(trace: string, signal: AbortSignal): Promise<number[]> {
  let came = NaN;
  const chosen: number[] = [];
  for await (const event of happenings(trace, signal)) {
    if (event.type === "start") came = event.came ?? NaN;
    else if (event.type === "token") chosen.push(1000 * (came + (event.at ?? NaN)));
  }
  return chosen;
}
