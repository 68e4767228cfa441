// E: embedding.
import { bytes, figure } from "../numbers";
import type { Tokens } from "../payloads";
import { bar, quoted, type Chapter } from "./chapter";

/** The place of the longest token of the answer: a word that the reader has met. */
function longest(values: Tokens): number {
  const sizes = values.num_bytes.map((each, at) => (at < values.num_prompt || values.is_control[at] ? 0 : each));
  return Math.min(sizes.indexOf(Math.max(...sizes)), values.texts.length - 2); // the last was never read
}

export const E: Chapter = {
  id: "e",
  name: "Embedding",
  does:
    "An id opens one drawer of a large chest, and in it lies a row of numbers: the embedding. The rows were learned " +
    "and stay as they are while the model answers. Words that are used alike have rows that point alike. Wider rows " +
    "hold more and cost more: twice the width is four times the work.",
  view: "embeddings",
  async claims(reach) {
    const [row, drift] = [await reach.see("embeddings", { position: reach.position }), await reach.see("drift", { position: reach.position })];
    const { analogy, vocab_size, width } = row;
    const size = vocab_size * width;
    return [
      {
        told: "A model of its own makes the vector, of numbers from \u22121 to 1.",
        here:
          `A table inside it, without bounds: the row of ${quoted(row.text)} goes from ${figure(row.lowest)} to ${figure(row.highest)}, with ` +
          `norm ${figure(row.norm)}.`,
      },
      {
        told: "The table has 100,000 rows of 4,096 numbers.",
        here: `Here ${figure(vocab_size)} \u00d7 ${figure(width)} = ${figure(size)} numbers: ${bytes(2 * size)} in 16 bits.`,
        from: "arithmetic",
      },
      {
        told: "king \u2212 man + woman is queen.",
        here: analogy.expected
          ? `Here queen is number ${figure(analogy.expected.rank)} of ${figure(vocab_size)} rows near the sum, number ` +
            `${figure(analogy.rank_without)} without the three words.`
          : "This vocabulary has no such word.",
      },
      {
        told: "A word has one vector.",
        here:
          `It begins with one. After the last layer the likeness (cosine) of ${quoted(drift.text)} to its own row is ` +
          `${figure(drift.own.list().at(-1))}, where 1 is the same direction and 0 nothing in common: the layers added the rest.`,
      },
    ];
  },
  lever: {
    label: "A word, or a sum of words",
    kind: "text",
    value: "Paris - France + Italy = Rome",
    choices: ["Paris - France + Italy = Rome", "king - man + woman = queen", "gravity"],
    async run(reach, text) {
      const { analogy, neighbours, mean_cosine } = await reach.see("embeddings", { text });
      const isSum = /[-+]/.test(text);
      const near = isSum ? analogy.nearest : neighbours;
      return {
        said:
          isSum && analogy.expected
            ? `${quoted(analogy.expected.text)} is number ${figure(analogy.expected.rank)}, the words of the sum counted.`
            : `The likest rows, by cosine: 1 is the same direction, 0 nothing in common. With all rows it is ${figure(mean_cosine)} on average.`,
        bars: near.map((each) => bar(each.text, each.cosine)),
      };
    },
  },
  async question(reach) {
    const position = longest(await reach.see("tokens"));
    const { text, neighbours } = await reach.see("embeddings", { position });
    const choices = neighbours.slice(0, 4).map((each) => each.text);
    return { text: `Which of these rows lies nearest to that of ${quoted(text)}?`, choices: [...new Set(choices)].sort() };
  },
  async answer(reach) {
    const position = longest(await reach.see("tokens"));
    const { neighbours, text, mean_cosine } = await reach.see("embeddings", { position });
    const near = neighbours[0]!;
    return {
      right: near.text,
      said: `${quoted(near.text)}. With all rows the cosine of ${quoted(text)} is ${figure(mean_cosine)} on average.`,
      bars: neighbours.slice(0, 4).map((each) => bar(each.text, each.cosine)),
    };
  },
};
