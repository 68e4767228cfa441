// Numbers as people read them, with units; never more digits than they bear.

// One for all: toLocaleString makes one at each call, and a picture may have hundreds of numbers.
const WRITER = new Intl.NumberFormat("en-GB", { maximumFractionDigits: 8 });

/** A number by itself: 0.0123, 1.23, 12.3, 1,234. */
export function figure(value: number | null | undefined, digits = 3): string {
  if (value === null || value === undefined || Number.isNaN(value)) return "none";
  if (!isFinite(value)) return value < 0 ? "\u2212\u221e" : "\u221e";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (Number.isInteger(value) && size < 1e15) return signed(WRITER.format(value));
  if (size >= 1e6 || size < 1e-4) return signed(powers(value, digits));
  const places = Math.max(0, digits - 1 - Math.floor(Math.log10(size)));
  return signed(WRITER.format(Number(value.toFixed(Math.min(places, 8)))));
}

function powers(value: number, digits: number): string {
  const [front, power] = value.toExponential(digits - 1).split("e");
  const small = [...power!.replace("+", "")].map((sign) => (sign === "-" ? "\u207b" : RAISED[Number(sign)]));
  return `${front}\u00d710${small.join("")}`;
}

const RAISED = ["\u2070", "\u00b9", "\u00b2", "\u00b3", "\u2074", "\u2075", "\u2076", "\u2077", "\u2078", "\u2079"];

const signed = (text: string): string => text.replace(/^-/, "\u2212");

/** A share of 1 in percent; what is small is not told as nothing. */
export function share(value: number): string {
  const percent = 100 * value;
  if (percent === 0) return "0 %";
  if (percent < 0.001) return `${figure(percent, 2)} %`;
  if (percent > 99.95 && percent < 100) return "> 99.9 %";
  return `${percent >= 10 ? percent.toFixed(percent === 100 ? 0 : 1) : Number(percent.toPrecision(2))} %`;
}

function scaled(value: number, step: number, units: readonly string[]): string {
  let index = 0;
  let left = value;
  while (left >= step && index + 1 < units.length) {
    left /= step;
    index += 1;
  }
  return `${figure(left)} ${units[index]}`;
}

/** Bytes by powers of 1,024. */
export const bytes = (value: number): string => scaled(value, 1024, ["B", "KiB", "MiB", "GiB", "TiB"]);

/** Operations, or what else is counted by thousands. */
export const operations = (value: number): string =>
  scaled(value, 1000, ["FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP"]);

/** Seconds. */
export function seconds(value: number): string {
  if (value < 0.001) return `${figure(value * 1e6)} \u00b5s`;
  return value < 1 ? `${figure(value * 1e3)} ms` : `${figure(value)} s`;
}

/** Round numbers between two, three to six of them: what an axis tells. */
export function roundWithin(low: number, high: number): number[] {
  const most = (high - low) / 2;
  const power = 10 ** Math.floor(Math.log10(most));
  const step = power * ([5, 2, 1].find((each) => each * power <= most) ?? 1);
  const [first, last] = [Math.ceil(low / step - 1e-9), Math.floor(high / step + 1e-9)];
  return Array.from({ length: last - first + 1 }, (_, index) => (first + index) * step);
}

/** What the engine did, in words for somebody who has not met its terms. */
const WORDS: Readonly<Record<string, string>> = {
  queue: "waiting for a turn",
  forward: "going through the model",
  sampling: "choosing the next piece",
  "tokens to text": "turning numbers back into text",
  "between steps": "planning and sending in between",
};
export const named = (phase: string): string => WORDS[phase] ?? phase;
