// The Python that shows the same: it runs the answer anew in one's own process and opens it there.
import type { Query } from "./views";

/** What has to be known of an answer to have it again. */
export interface Made {
  model: string;
  prompt: readonly number[]; // token ids
  numTokens: number; // of the answer
  settings: Readonly<Record<string, number>>;
  seed: string | null; // of 64 bits: more than a number holds
}

const NAMES = ["position", "token", "layer", "head", "expert", "top", "text"] as const;

/** Lines that give the answer anew. */
function againOf(made: Made): string {
  const given = Object.entries(made.settings).map(([name, value]) => `${name}=${value}`);
  const seed = made.seed === null ? [] : [`seed=${made.seed}`];
  const params = [...given, ...seed, `max_tokens=${made.numTokens}`].join(", ");
  return `llm = LLM(${JSON.stringify(made.model)})
prompt = [${made.prompt.join(", ")}]
llm.generate([prompt], SamplingParams(${params}))`;
}

/** A program that changes one thing of an answer and prints what that did. */
export function comparePythonOf(change: string, runs: number, made: Made): string {
  return `from cutaway import LLM, SamplingParams
from cutaway.compare.compare import compare
from cutaway.compare.levers import change_of

${againOf(made)}
answer = list(llm.engine.ledger.answers)[-1]
change = change_of(${JSON.stringify(change)})
found = compare(llm.engine, answer, change, name=${JSON.stringify(made.model)}, num_runs=${runs})
print(found.draw().text())
`;
}

/** A program that prints a view's picture; `shown.payload` has its numbers. */
export function pythonOf(query: Query, made: Made): string {
  const places = NAMES.filter((name) => query[name] !== undefined);
  const asked = places.map((name) => `${name}=${JSON.stringify(query[name])}`).join(", ");
  return `from cutaway import LLM, SamplingParams
from cutaway.replay.look import Look
from cutaway.views import view_of
from cutaway.views.parts.query import Query

${againOf(made)}
look = Look(llm.engine, list(llm.engine.ledger.answers)[-1])
shown = view_of(${JSON.stringify(query.view)}).show(look.subject, Query(${asked}))
print(shown.proof)
print(shown.payload)
`;
}
