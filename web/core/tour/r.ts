// R: the whole pipeline.
import { figure, seconds } from "../numbers";
import { bar, many, type Chapter } from "./chapter";
import { goOn, saidIn } from "./goon";

const LONG = 16; // tokens of each of the two answers

export const R: Chapter = {
  id: "r",
  name: "The whole",
  does:
    "You have seen every step from the key to the screen. Each can be made cheaper, faster, better or smaller, and " +
    "each can go wrong. The model forgets everything between passes; memory, search and tools are code around it. It " +
    "predicts, is no magic, and can be sure and wrong.",
  view: "cost",
  async claims(reach) {
    const sent = await reach.see("template");
    return [
      {
        told: "It remembers our conversation.",
        here: `It was sent whole: ${sent.num_messages ? `${many(sent.num_messages, "message")}, ` : ""}${figure(sent.num_tokens)} tokens. The next question sends them again.`,
      },
    ];
  },
  lever: {
    label: "Answer anew, in so many tokens",
    kind: "number",
    value: "16",
    least: 2,
    most: 128,
    async run(reach, value) {
      const { prompt } = await saidIn(reach);
      const { timings } = await goOn(reach, prompt, { max_tokens: Number(value), ignore_eos: true });
      const [first, rest] = [timings.prompt_ms / 1000, timings.predicted_ms / 1000];
      return {
        said: `${seconds(first)} to the first token, ${seconds(rest)} for the other ${timings.predicted_n - 1}: ${seconds(rest / (timings.predicted_n - 1))} each.`,
        bars: [bar("prefill", first, seconds(first)), bar("decode", rest, seconds(rest))],
      };
    },
  },
  question: () =>
    Promise.resolve({ text: `Your prompt is asked twice, with one seed, by requests that know nothing of each other. How many of ${LONG} tokens are the same?` }),
  async answer(reach) {
    const { prompt } = await saidIn(reach);
    const settings = { max_tokens: LONG, temperature: 1, seed: 1, ignore_eos: true };
    const [one, other] = [await goOn(reach, prompt, settings), await goOn(reach, prompt, settings)];
    const right = one.tokens.filter((each, at) => each === other.tokens[at]).length;
    const why = right === LONG ? "The same ids give the same shares, and the same seed the same draws." : "Sums were made in another order the second time.";
    return { right, said: `${right}. ${why}` };
  },
};
