// Q: training.
import { figure, share } from "../numbers";
import { choicesOf, type Update } from "../training";
import { bar, many, quoted, type Chapter, type Reach } from "./chapter";
import { cut } from "./cut";
import { saidIn } from "./goon";

const EXAMPLES = ["The sun rises in the east.", "The sun rises in the cheese.", "sun the in rises east The."] as const;

/** How little the model expected each of some ids behind others, in nats; the first of all it is given. */
async function surprises(reach: Reach, before: readonly number[], ids: readonly number[]): Promise<number[]> {
  const prompt = [...before, ...ids];
  const body = { model: reach.model, prompt, prompt_logprobs: 0, max_tokens: 1, temperature: 0 };
  type Told = { choices: { prompt_logprobs: (Record<string, { logprob: number }> | null)[] }[] };
  const rows = (await reach.post<Told>("/v1/completions", body)).choices[0]!.prompt_logprobs;
  const first = Math.max(1, before.length);
  return rows.slice(first).map((row, at) => -(row?.[prompt[first + at]!]?.logprob ?? 0));
}

const mean = (values: readonly number[]): number => values.reduce((sum, each) => sum + each, 0) / Math.max(1, values.length);
const unsure = (loss: number): string => `as unsure as between ${figure(choicesOf(loss))} equally likely tokens`;

/** What a run measured first and last. */
function ends(rows: readonly Update[], name: string): [number, number] {
  const told = rows.flatMap((row) => row.measured[name] ?? []);
  return [told[0] ?? 0, told.at(-1) ?? 0];
}

export const Q: Chapter = {
  id: "q",
  name: "Training",
  does:
    "As one learns to sing: sing a note, hear how far off it was, correct a little, a million times. A model begins " +
    "with random numbers, guesses the next token of texts that people wrote, and each number is moved so that the " +
    "right token gets a larger share. How wrong it is, is the loss. Then it learns answers, and which of them people " +
    "prefer. After that the numbers stay as they are.",
  view: "probabilities",
  asks: "What training made of it: how sure it was of its first piece",
  hasRuns: true,
  link: { words: "Train a model yourself and watch it: the room Training", room: "training" },
  async claims(reach) {
    const { prompt, answer } = await saidIn(reach);
    const loss = mean(await surprises(reach, prompt, answer));
    const { RECORDED_RUNS } = await import("../recorded_runs");
    const paid = RECORDED_RUNS.find((each) => each.run.stage === "ppo");
    const [failed, fails] = ends(paid?.rows ?? [], "failed");
    return [
      {
        told: "It was taught facts.",
        here: `It was taught to guess. Of the ${many(answer.length, "token")} of your answer its loss is ${figure(loss)}: ${unsure(loss)}. Training makes that number small on texts of people.`,
      },
      {
        told: "A reward tells it what is right.",
        here: `A reward only makes likelier what earned it. Our small model, paid for right answers, got ${share(1 - failed)} of unseen tasks right early on and ${share(1 - fails)} at the end.`,
        from: "recorded",
      },
    ];
  },
  lever: {
    label: "The loss of a sentence",
    kind: "text",
    value: EXAMPLES[0],
    choices: EXAMPLES,
    async run(reach, text) {
      const { ids, tokens } = await cut(reach, text);
      if (ids.length < 2) throw new Error("Write two tokens or more: the first one is given.");
      const values = await surprises(reach, [], ids);
      const bars = tokens.slice(1).map((token, at) => bar(token.text, values[at] ?? 0));
      return { said: `A loss of ${figure(mean(values))} a token: ${unsure(mean(values))}. How little each was expected; ${quoted(tokens[0]!.text)} is given:`, bars };
    },
  },
  question: () => Promise.resolve({ text: "Which has the higher loss, a token: the prompt that was sent, or the answer that the model wrote?", choices: ["the prompt", "the answer"] }),
  async answer(reach) {
    const { prompt, answer } = await saidIn(reach);
    const [sent, written] = [mean(await surprises(reach, [], prompt)), mean(await surprises(reach, prompt, answer))];
    return {
      right: sent > written ? "the prompt" : "the answer",
      said: "Its own words come from its own shares. The loss of each:",
      bars: [bar("the prompt", sent), bar("the answer", written)],
    };
  },
};
