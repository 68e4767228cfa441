// L: sampling.
import { figure, share } from "../numbers";
import { bar, quoted, type Chapter } from "./chapter";
import { goOn, saidIn } from "./goon";

const LONG = 24; // tokens that the lever has written

export const L: Chapter = {
  id: "l",
  name: "Sampling",
  does:
    "Now the die is cast. Greedy takes the likeliest token: always the same answer, and soon the same words again. " +
    "Temperature makes the die wilder or tamer; top_k, top_p and min_p take unlikely faces off; penalties lower what " +
    "was said. A random number made of a seed points into what is left, so the same seed gives the same answer.",
  view: "sampling",
  async claims(reach) {
    const row = await reach.see("sampling");
    const of = (name: string): string => {
      const found = row.strategies.find((each) => each.name === name);
      return found ? `${quoted(found.text)} (${share(found.probability)})` : "nothing";
    };
    const kept = row.strategies.find((each) => each.name === "top_p 0.9")?.num_kept;
    return [
      {
        told: "Low temperature is factual, high is creative.",
        here:
          `The same row and random number: greedy gives ${of("greedy")}, temperature 0.5 ${of("temperature 0.5")}, 1.5 ${of("temperature 1.5")}. ` +
          "Shares tell what is predictable; no stage asks what is true.",
      },
      {
        told: "top_p 0.9 keeps 90 % of the words.",
        here: `It keeps the likeliest until they have 90 % of the chance together: here ${figure(kept)} of ${figure(row.effects[0]?.num_kept)} tokens that could come. top_k 40 keeps 40, sure or not.`,
      },
    ];
  },
  lever: {
    label: "Ask again, with two seeds, at temperature",
    kind: "number",
    value: "1",
    least: 0,
    most: 2,
    step: 0.1,
    async run(reach, value) {
      const { prompt } = await saidIn(reach);
      const settings = { temperature: Number(value), max_tokens: LONG };
      const [one, other] = [await goOn(reach, prompt, { ...settings, seed: 1 }), await goOn(reach, prompt, { ...settings, seed: 2 })];
      const parts = one.tokens.findIndex((each, at) => each !== other.tokens[at]);
      return {
        said: `${parts < 0 ? "Word for word the same" : `They part at token ${parts + 1}`}. Seed 1: ${quoted(one.text)} Seed 2: ${quoted(other.text)}`,
      };
    },
  },
  question: () => Promise.resolve({ text: "Of the tokens in your answer, how many percent had stood in it before? (within a quarter is right)" }),
  async answer(reach) {
    const { answer } = await saidIn(reach);
    const { repetition = [] } = await reach.see("sampling", { token: answer.length - 1 });
    const shares = repetition.map((each) => ({ ...each, value: each.num_again / Math.max(1, each.num_all) }));
    if (!shares[0]) throw new Error("This file is from before repetition was counted.");
    return {
      right: 100 * shares[0].value,
      slack: 0.25,
      said: `${share(shares[0].value)}: ${shares[0].num_again} of ${shares[0].num_all}. Where long stretches come again, an answer goes in circles:`,
      bars: shares.map((each) => bar(`${each.size} in a row`, each.value, share(each.value))),
    };
  },
};
