// Conversations as a file: written whole, read with every field checked.
import type { Call, Timings } from "./chat";
import { NOTHING_SET, type Form, type Settings } from "./sampling";
import type { Kept, Role } from "./tree";

/** A conversation as it is kept. leaf: where the path that is shown ends. */
export interface KeptChat {
  id: string;
  title: string;
  changed: number; // milliseconds since 1970
  leaf: string | null;
  settings: Settings;
  turns: Kept[];
}

/** What two tabs know of one conversation: every turn of either, each as far as it came; the rest is the first's. */
export function merged(mine: KeptChat, other: KeptChat | undefined): KeptChat {
  if (!other) return mine;
  const own = new Map(mine.turns.map((turn) => [turn.id, turn]));
  const turns = other.turns.map((turn) => {
    const same = own.get(turn.id);
    own.delete(turn.id);
    return same && (hasEnded(same) || (!hasEnded(turn) && same.text.length >= turn.text.length)) ? same : turn;
  });
  return { ...mine, turns: [...turns, ...own.values()] };
}

function hasEnded(turn: Kept): boolean {
  return turn.role !== "assistant" || Boolean(turn.finish || turn.fault);
}

const KIND = "cutaway-chats";
const VERSION = 1;
const ROLES: readonly string[] = ["user", "assistant", "tool"];
const FORMS: readonly string[] = ["none", "json", "schema", "regex", "choice"];
const MOST_TURNS = 20_000;

/** Conversations as the text of a file. */
export function written(chats: readonly KeptChat[]): string {
  return JSON.stringify({ kind: KIND, version: VERSION, chats }, null, 1);
}

/** The conversations of a file. Throws an Error that says what is wrong with it. */
export function readChats(text: string): KeptChat[] {
  let file: unknown;
  try {
    file = JSON.parse(text);
  } catch {
    throw new Error("This file is not JSON. Choose one that this page exported.");
  }
  const { kind, version, chats } = objectOf(file);
  if (kind !== KIND || !Array.isArray(chats)) {
    throw new Error("This file holds no conversations of Cutaway. Choose one that this page exported.");
  }
  if (typeof version !== "number" || version > VERSION) {
    throw new Error(`This file has version ${String(version)}; this page reads up to ${VERSION}.`);
  }
  return chats.map(chatOf);
}

function chatOf(value: unknown): KeptChat {
  const chat = objectOf(value);
  const turns = (Array.isArray(chat.turns) ? chat.turns.slice(0, MOST_TURNS) : []).flatMap(turnOf);
  const known = new Set(turns.map((turn) => turn.id));
  const leaf = typeof chat.leaf === "string" && known.has(chat.leaf) ? chat.leaf : null;
  return {
    id: textIn(chat.id) || newId(),
    title: textIn(chat.title),
    changed: typeof chat.changed === "number" ? chat.changed : 0,
    leaf: leaf ?? turns.at(-1)?.id ?? null,
    settings: settingsOf(chat.settings),
    turns: turns.map((turn) => ({ ...turn, parent: known.has(turn.parent ?? "") ? turn.parent : null })),
  };
}

function turnOf(value: unknown): Kept[] {
  const turn = objectOf(value);
  if (typeof turn.id !== "string" || !ROLES.includes(String(turn.role))) return [];
  const kept: Kept = {
    id: turn.id,
    parent: typeof turn.parent === "string" ? turn.parent : null,
    role: turn.role as Role,
    text: textIn(turn.text),
  };
  if (typeof turn.reasoning === "string") kept.reasoning = turn.reasoning;
  if (Array.isArray(turn.calls)) kept.calls = turn.calls.map(callOf);
  if (typeof turn.call === "string") kept.call = turn.call;
  if (typeof turn.finish === "string") kept.finish = turn.finish;
  if (typeof turn.trace === "string") kept.trace = turn.trace;
  if (typeof turn.fault === "string") kept.fault = turn.fault;
  if (Number.isInteger(turn.forkedAt)) kept.forkedAt = Number(turn.forkedAt);
  if (typeof turn.timings === "object" && turn.timings) kept.timings = timingsOf(turn.timings);
  return [kept];
}

function callOf(value: unknown): Call {
  const call = objectOf(value);
  return { id: textIn(call.id), name: textIn(call.name), arguments: textIn(call.arguments) };
}

function timingsOf(value: unknown): Timings {
  const given = objectOf(value);
  const number = (name: keyof Timings): number => (Number.isFinite(given[name]) ? Number(given[name]) : 0);
  return {
    ...(Number.isFinite(given.tokenize_ms) && { tokenize_ms: number("tokenize_ms") }),
    queue_ms: number("queue_ms"),
    prompt_n: number("prompt_n"),
    prompt_ms: number("prompt_ms"),
    cache_n: number("cache_n"),
    predicted_n: number("predicted_n"),
    predicted_ms: number("predicted_ms"),
  };
}

function settingsOf(value: unknown): Settings {
  const given = objectOf(value);
  const numbers = Object.entries(objectOf(given.numbers)).filter(([, number]) => Number.isFinite(number));
  const stop = Array.isArray(given.stop) ? given.stop.filter((each) => typeof each === "string") : [];
  return {
    system: textIn(given.system),
    numbers: Object.fromEntries(numbers) as Record<string, number>,
    stop,
    form: FORMS.includes(String(given.form)) ? (given.form as Form) : NOTHING_SET.form,
    formText: textIn(given.formText),
    tools: textIn(given.tools),
  };
}

function objectOf(value: unknown): Record<string, unknown> {
  return typeof value === "object" && value !== null ? (value as Record<string, unknown>) : {};
}

function textIn(value: unknown): string {
  return typeof value === "string" ? value : "";
}

/** A name that no other conversation or turn has. */
export function newId(): string {
  return [...crypto.getRandomValues(new Uint8Array(9))].map((byte) => byte.toString(36).padStart(2, "0")).join("");
}
