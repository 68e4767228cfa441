// A chapter of the tour as data: words, and functions that measure on the reader's own answer.
//
// One file per group of the checklist (a.ts, b.ts, ...) exports one Chapter; index.ts lists them in order.
// - Words are short and plain: what the stage does in at most 75 words, an everyday example first.
// - `view` is the station that is drawn, with layer, head and position to choose where it takes them.
// - `claims` puts right what is often told. A number is never typed in: it comes from a view or a route by
//   Reach. What cannot be measured here says where it is from (`from`); its numbers are computed all the same.
// - `lever` runs something now. Its result is a sentence, and what there is of bars, tokens and a station.
// - `question` is measured when the reader answers it, never before and never stored. Do not ask for what
//   the drawn station shows at first sight.
// A function that throws an Error shows its message; the server's refusals come that way.
import { figure } from "../numbers";
import type { Payloads } from "../payloads";
import type { Room } from "../rooms";
import type { Query } from "../views";

/** Where in the answer and in the model a view looks. */
export type Places = Omit<Query, "view">;

/** What chapters measure with: views of the reader's answer, and routes of the running server. */
export interface Reach {
  readonly model: string;
  readonly trace: string; // the id of the reader's answer
  readonly asked: string; // what the reader said last
  position: number; // the longest word of the question: where the drawn station looks at first
  see<Name extends keyof Payloads>(view: Name, places?: Places): Promise<Payloads[Name]>;
  /** The answer of a route to a body; `path` from the root, as "/tokenize". */
  post<Told>(path: string, body: object): Promise<Told>;
}

/** Where a number that was not measured here comes from. */
export type Origin = "arithmetic" | "published" | "recorded";

/** What is often told, and what this run says of it. Without told: a fact by itself. */
export interface Claim {
  told?: string;
  here: string;
  from?: Origin; // left out: measured on this answer and this model
}

export interface Bar {
  name: string;
  value: number; // what its length shows
  told: string;
  isOwn?: boolean;
}

/** What a lever or an answer shows: a sentence, and pictures below it in this order. */
export interface Outcome {
  said: string;
  bars?: readonly Bar[];
  tokens?: readonly { text: string; id: number }[];
  view?: Query; // a station, drawn
}

/** A control that runs something now. */
export interface Lever {
  label: string;
  kind: "text" | "number" | "choice";
  value: string; // at first
  choices?: readonly string[]; // of a choice, or examples of a text
  least?: number;
  most?: number;
  step?: number; // of a number; left out: 1
  run(reach: Reach, value: string): Promise<Outcome>;
}

/** What was measured. slack: how far a guess of a number may be off, as a share of it. */
export interface Answer extends Outcome {
  right: string | number;
  slack?: number;
}

/** A question: with choices one of them is right, without a number is guessed. */
export interface Question {
  text: string;
  choices?: readonly string[];
}

export interface Chapter {
  id: string; // the group's letter, as the address has it
  name: string;
  does: string;
  view: keyof Payloads;
  hasRuns?: boolean; // whether recorded runs of training stand below the station
  form?: string; // of the station's figure, where another chapter draws it too
  asks?: string; // what that figure answers, in the place of the station's question
  plays?: "first" | "last"; // the figure moves as the answer is played: the token that it stands at
  /** Where the figure looks; left out: where the view does by itself. */
  at?(reach: Reach): Promise<{ layer: number; head: number } | undefined>;
  claims(reach: Reach): Promise<Claim[]>;
  lever: Lever;
  /** Words and choices may need this run: whatever they tell, the right answer is not in them. */
  question(reach: Reach): Promise<Question>;
  answer(reach: Reach): Promise<Answer>;
  link?: { words: string; room: Room }; // where there is more
}

/** Whether a guess is right. */
export function isRight(guess: string, answer: Answer): boolean {
  if (typeof answer.right === "string") return guess === answer.right;
  if (!guess.trim()) return false;
  return Math.abs(Number(guess) - answer.right) <= Math.abs(answer.right) * (answer.slack ?? 0);
}

/** A bar that tells its own number. */
export const bar = (name: string, value: number, told = figure(value)): Bar => ({ name, value, told });

/** How many of what, as one says it. */
export const many = (count: number, one: string, more = `${one}s`): string => `${figure(count)} ${count === 1 ? one : more}`;

/** A word in its marks, as every chapter writes it. */
export const quoted = (text: string): string => `\u201c${text}\u201d`;
