// C: how a vocabulary is learned.
import { Player, type Learned } from "../bpe";
import { figure } from "../numbers";
import { bar, quoted, type Chapter, type Reach } from "./chapter";

async function learn(reach: Reach, text: string, merges: number): Promise<{ learned: Learned; nameOf: (id: number) => string }> {
  const learned = await reach.post<Learned>("/cutaway/v1/learn", { text, merges });
  const { texts } = new Player(learned);
  return { learned, nameOf: (id) => texts[id] ?? "" };
}

/** How many merges halve the reader's prompt and answer, learned from them alone. */
async function halving(reach: Reach): Promise<{ right: number; learned: Learned; nameOf: (id: number) => string }> {
  const text = `${(await reach.see("characters")).text} ${(await reach.see("detokenization")).text}`;
  const told = await learn(reach, text.slice(0, 2000), 300);
  const { steps, num_tokens } = told.learned;
  const at = steps.findIndex((each) => 2 * each.num_tokens <= num_tokens);
  return { right: at < 0 ? steps.length : at + 1, ...told };
}

export const C: Chapter = {
  id: "c",
  name: "Learning a vocabulary",
  does:
    "The box of parts was filled once, before the model was trained. It begins with single bytes. The two neighbours " +
    "that meet most often in a large text become one new part, and so on, until the box is full. Cutting a word does " +
    "the same merges again in the same order.",
  view: "merges",
  link: { words: "Play a whole vocabulary, merge by merge", room: "bpe" },
  async claims(reach) {
    const [own, hello] = [await reach.see("merges"), await reach.see("merges", { text: "hello" })];
    const [word, piece] = [own.pieces[0], hello.pieces[0]];
    const way = piece?.steps.map((each) => `${each.left + each.right} ${each.token_id}`).join(", ");
    const ranks = word?.steps.map((each) => figure(each.rank)).join(", ");
    return [
      {
        told: "hello is built from he, id 123, and hell, id 584, and ends as id 68930.",
        here:
          `Here it ends as ${piece?.texts.join("|")}, ${piece?.token_ids.join(", ")}` +
          (way ? `, over ${way}.` : "; nothing in it merges."),
      },
      {
        told: "A tokenizer learns grammar and syntax.",
        here: ranks
          ? `It learned an order of counts. ${quoted(word!.text)} was put together by ${word!.steps.length === 1 ? "merge" : "merges"} number ${ranks}.`
          : "It learned which pieces are frequent, no more.",
      },
      { told: "Vocabularies have 100,000 to 200,000 tokens.", here: `This one has ${figure(own.vocab_size)}.` },
    ];
  },
  lever: {
    label: "Learn ten merges from",
    kind: "text",
    value: "She sells sea shells by the sea shore.",
    async run(reach, text) {
      const { learned, nameOf } = await learn(reach, text, 10);
      const left = learned.steps.at(-1)?.num_tokens ?? learned.num_tokens;
      return {
        said: `After ${learned.steps.length} merges the text has ${figure(left)} tokens instead of ${figure(learned.num_tokens)}. How often each pair came when it was merged:`,
        bars: learned.steps.map(({ pair, count }) => bar(pair.map(nameOf).join(" + "), count)),
      };
    },
  },
  question: () =>
    Promise.resolve({
      text: "Learned from your prompt and its answer alone: how many merges halve their tokens? (within a quarter is right)",
    }),
  async answer(reach) {
    const { right, learned, nameOf } = await halving(reach);
    const bars = learned.steps.slice(0, 5).map(({ pair, count }) => bar(pair.map(nameOf).join(" + "), count));
    return { right, slack: 0.25, said: `${right} merges, from ${figure(learned.num_tokens)} bytes on. The first of them:`, bars };
  },
};
