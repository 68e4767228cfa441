// K: from the last vector to a share for every token.
import { figure, share } from "../numbers";
import { bar, quoted, type Chapter } from "./chapter";

const LOOKED_AT = 8; // tokens of the answer

export const K: Chapter = {
  id: "k",
  name: "Logits",
  does:
    "At the top of the tower the row is compared with every entry of the vocabulary. Each gets a number, its logit; " +
    "softmax turns these into shares that add up to 1. A few are likely, and a long tail is nearly nothing. The model " +
    "gives no word but this ranked guess.",
  view: "probabilities",
  async claims(reach) {
    const { vocab_size, top, tail_mass, below, chosen } = await reach.see("probabilities");
    const rare = below.find((each) => each.probability < 0.001);
    return [
      {
        told: "The model gives the next word.",
        here:
          `It gave ${figure(vocab_size)} shares. ${quoted(top[0]!.text)} has ${share(top[0]!.probability)}, the ${top.length} likeliest have ` +
          `${share(1 - tail_mass)}, all others ${share(tail_mass)}.` +
          (chosen.rank > 1 ? ` What came, ${quoted(chosen.text)}, was number ${figure(chosen.rank)}.` : ""),
      },
      ...(rare
        ? [
            {
              here: `${figure(rare.num_entries)} entries are below ${share(rare.probability)}, with ${share(rare.mass)} together. Softmax leaves none at 0.`,
            },
          ]
        : []),
    ];
  },
  lever: {
    label: "How likely, where the answer begins, was",
    kind: "text",
    value: "Zamboni",
    choices: ["Zamboni", "First", "Gravity"],
    async run(reach, text) {
      const { lookups } = await reach.see("probabilities", { text });
      const found = lookups[0];
      if (!found) throw new Error(`${text} gives no token.`);
      const parts = found.pieces.map((each) => share(each.probability)).join(" \u00d7 ");
      return {
        said: `${share(found.probability)}` + (found.pieces.length > 1 ? `: its pieces, each after the last, ${parts}.` : `, number ${figure(found.pieces[0]?.rank)} of all.`),
        bars: found.pieces.map((each) => bar(each.text, each.probability, share(each.probability))),
      };
    },
  },
  async question(reach) {
    const { texts, num_prompt } = await reach.see("tokens");
    const count = Math.min(LOOKED_AT, texts.length - num_prompt);
    return { text: `Of the first ${count} tokens of your answer, how many were not the likeliest at their place?` };
  },
  async answer(reach) {
    const { texts, num_prompt } = await reach.see("tokens");
    const rows = [];
    for (let token = 0; token < Math.min(LOOKED_AT, texts.length - num_prompt); token += 1) {
      rows.push((await reach.see("probabilities", { token })).chosen);
    }
    const right = rows.filter((each) => each.rank > 1).length;
    return {
      right,
      said: `${right} of ${rows.length}. Each with its share and its place:`,
      bars: rows.map((each) => ({ ...bar(each.text, each.probability, `${share(each.probability)}, number ${figure(each.rank)}`), isOwn: each.rank > 1 })),
    };
  },
};
