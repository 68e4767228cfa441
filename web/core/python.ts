// The Python that shows the same: it runs the answer anew in one's own process and opens it there.
import type { Query } from "./views";

/** What has to be known of an answer to have it again. */
export interface Made {
  model: string;
  prompt: readonly number[]; // token ids
  numTokens: number; // of the answer
  build: Readonly<Record<string, string>>; // settings of its engine that decide numbers and are not the default
  settings: Readonly<Record<string, number>>;
  seed: string | null; // of 64 bits: more than a number holds
}

const NAMES = ["position", "token", "layer", "head", "expert", "top", "text"] as const;

/** Lines that give the answer anew. */
function againOf(made: Made): string {
  const given = Object.entries(made.settings).map(([name, value]) => `${name}=${value}`);
  const seed = made.seed === null ? [] : [`seed=${made.seed}`];
  const params = [...given, ...seed, `max_tokens=${made.numTokens}`].join(", ");
  const build = Object.entries(made.build).map(([name, value]) => `, ${name}=${JSON.stringify(value)}`);
  return `llm = LLM(${JSON.stringify(made.model)}${build.join("")})  # a name, or where its files are
prompt = [${made.prompt.join(", ")}]
answer = llm.generate(prompt, SamplingParams(${params}))[0]`;
}

/** A program that changes one thing of an answer and prints what that did. */
export function comparePythonOf(change: string, runs: number, made: Made): string {
  return `from cutaway import LLM, SamplingParams
from cutaway.compare.compare import compare
from cutaway.compare.levers import change_of
from cutaway.service.looking import record_of

${againOf(made)}
record = record_of(llm.engine, answer, choice=0)
change = change_of(${JSON.stringify(change)})
found = compare(llm.engine, record, change, name=${JSON.stringify(made.model)}, num_runs=${runs})
print(found.draw().text())
`;
}

/** A program that makes the answer again, proves it, and prints a view's picture. */
export function pythonOf(query: Query, made: Made): string {
  const places = NAMES.filter((name) => query[name] !== undefined);
  const asked = places.map((name) => `, ${name}=${JSON.stringify(query[name])}`).join("");
  return `from cutaway import LLM, SamplingParams

${againOf(made)}
print(llm.verify(answer))
shown = llm.view(answer, ${JSON.stringify(query.view)}${asked})
print(shown)  # the picture; shown.payload has its numbers
`;
}
