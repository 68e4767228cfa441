// Numbers and tokens in words, the same wherever they are shown.
import type { Scored, Timings } from "./chat";

/** A probability in percent: 42 %, 3.1 %, 0.04 %, or less than the least that is shown. */
export function percent(logprob: number): string {
  const value = 100 * Math.exp(logprob);
  if (value >= 99.95 && value < 100) return "> 99.9 %";
  if (value < 0.01) return "< 0.01 %";
  return `${value >= 99.5 && value < 100 ? value.toFixed(1) : value >= 10 ? value.toFixed(0) : value >= 0.1 ? value.toFixed(1) : value.toFixed(2)} %`;
}

/** Milliseconds as a person reads them. */
export function duration(ms: number): string {
  if (ms < 10) return `${ms.toFixed(1)} ms`;
  return ms < 1000 ? `${ms.toFixed(0)} ms` : `${(ms / 1000).toFixed(ms < 10_000 ? 2 : 1)} s`;
}

/** A token with what cannot be seen made visible. */
export function visible(token: string): string {
  const marks: Record<string, string> = { " ": "\u00b7", "\n": "\u21b5", "\t": "\u21e5", "\r": "\u240d" };
  return token.replace(/[ \n\t\r]/g, (mark) => marks[mark] ?? mark) || "(no text)";
}

const MOST_TOLD = 64; // tokens among which the most telling one is looked for

/**
 * The token of an answer that what is opened is best about: it came after a whole word, and others could have come.
 * chances: how likely each was, where that is known. 0 where no sign came before another.
 */
export function tellingStep(tokens: readonly string[], chances: readonly (number | undefined)[] = []): number {
  const steps = tokens.map((_, step) => step).slice(1);
  const isRead = (step: number, kind: RegExp): boolean => kind.test(tokens[step - 1]!) && !/^<\|?[\w:-]+\|?>$/.test(tokens[step - 1]!);
  const whole = steps.filter((step) => isRead(step, /\p{L}{4}/u) && (step === 1 || /^[\s\u00b7]/.test(tokens[step - 1]!)) && !/^\p{L}/u.test(tokens[step]!));
  const open = (most: number): number | undefined =>
    whole.find((step) => step < MOST_TOLD && /\p{L}{3}/u.test(tokens[step]!) && (chances[step] ?? 0) > 0.1 && chances[step]! < most);
  // Else a part of a word, a letter, as of a script without blanks, or a sign that one sees.
  const parts = [/\p{L}{3}/u, /\p{L}/u, /[^\s\u00b7\u21b5\u21e5\u240d]/u].map((kind) => steps.find((step) => isRead(step, kind)));
  return open(0.7) ?? open(0.85) ?? [whole[0], ...parts].find((step) => step !== undefined) ?? 0;
}

/** Shades of tokens by how likely they were, the likeliest first. least: a probability. */
export const SHADES = [
  { level: 4, least: 0.9, words: "90 % or more" },
  { level: 3, least: 0.6, words: "60 to 90 %" },
  { level: 2, least: 0.3, words: "30 to 60 %" },
  { level: 1, least: 0.1, words: "10 to 30 %" },
  { level: 0, least: 0, words: "below 10 %" },
] as const;

/** How likely a token was, from 0 (least) to 4, for its shade. */
export function shade(logprob: number): number {
  const value = Math.exp(logprob);
  return SHADES.find(({ least }) => value >= least)?.level ?? 0;
}

/** The place of a token among the alternatives that are known; null when it is below them all. */
export function rank(token: Scored): number | null {
  const above = (token.top_logprobs ?? []).filter((other) => other.logprob > token.logprob);
  const isKnown = token.top_logprobs?.some((other) => other.logprob <= token.logprob);
  return isKnown ? above.length + 1 : null;
}

/** One sentence on a token, for ears as for eyes. */
export function sentence(token: Scored): string {
  const place = rank(token);
  const where = place === null ? "below the alternatives" : `choice ${place}`;
  return `${visible(token.token)}: ${percent(token.logprob)}, ${where}`;
}

/** The stages of an answer in their order, with their share of the whole time. */
export function stages(timings: Timings): { name: string; ms: number; share: number }[] {
  const parts = [
    ...(timings.tokenize_ms === undefined ? [] : [{ name: "tokenize", ms: timings.tokenize_ms }]),
    { name: "queue", ms: timings.queue_ms },
    { name: "prefill", ms: timings.prompt_ms },
    { name: "decode", ms: timings.predicted_ms },
  ];
  const whole = parts.reduce((sum, part) => sum + part.ms, 0) || 1;
  return parts.map((part) => ({ ...part, share: part.ms / whole }));
}

/** What an answer cost at a price of the whole machine per hour: for the time that it was computed, as if alone. */
export function cost(timings: Timings, perHour: number): string {
  const value = ((timings.prompt_ms + timings.predicted_ms) / 3_600_000) * perHour;
  return value >= 1 ? value.toFixed(2) : value === 0 ? "0" : value.toFixed(Math.min(9, 2 - Math.floor(Math.log10(value))));
}

/** A count with a unit's prefix: 1.2 G, 34 M, 5.0 k. */
export function counted(value: number): string {
  const prefixes = ["", "k", "M", "G", "T", "P"];
  const power = value >= 1 ? Math.min(5, Math.floor(Math.log10(value) / 3)) : 0;
  const shown = value / 1000 ** power;
  return `${shown >= 100 || power === 0 ? shown.toFixed(0) : shown.toFixed(1)} ${prefixes[power]}`.trimEnd();
}

/** How long ago a conversation changed, in a word or two. */
export function ago(then: number, now: number): string {
  const minutes = Math.max(0, (now - then) / 60_000);
  if (minutes < 1) return "now";
  if (minutes < 60) return `${Math.floor(minutes)} min`;
  if (minutes < 24 * 60) return `${Math.floor(minutes / 60)} h`;
  return `${Math.floor(minutes / 1440)} d`;
}
