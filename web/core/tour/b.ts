// B: tokens.
import { figure } from "../numbers";
import type { Chapter } from "./chapter";
import { cut, idsOf, joined } from "./cut";

const LONG = "uncharacteristically";
const CODE = "for x in y:\n>if x:\n>>print(x)";
const size = (text: string): number => new TextEncoder().encode(text).length;

export const B: Chapter = {
  id: "b",
  name: "Tokens",
  does:
    "Think of a box of word parts: \u201cplay\u201d and \u201cing\u201d are in it, a rare name is not. A tokenizer cuts text into such " +
    "parts, called tokens. Frequent words are one token; rare ones fall into smaller parts, down to bytes. The space " +
    "belongs to the word behind it. Bills count tokens, and the model cannot see the letters inside.",
  view: "tokens",
  async claims(reach) {
    const [one, long] = [await cut(reach, " gravity"), await cut(reach, LONG)];
    const tabs = await idsOf(reach, CODE.replaceAll(">", "\t"));
    const spaces = await idsOf(reach, CODE.replaceAll(">", "    "));
    const { num_prompt } = await reach.see("tokens");
    return [
      { told: "Gravity is two tokens, grav and ity.", here: `With the space before it, it is ${one.ids.length}: ${joined(one)}.` },
      {
        told: `${LONG} is cut by its meaning: un, character, istic, ally.`,
        here: `${joined(long)}. Counts decide, grammar does not.`,
      },
      {
        told: "Tabs cost more than spaces.",
        here: `It is the vocabulary's choice. Here three lines of Python take ${tabs.length} tokens with tabs, ${spaces.length} with spaces.`,
      },
      {
        told: "Text is cut because a model cannot take it in one go.",
        here: `All ${figure(num_prompt)} tokens of this prompt are one input. A token is a unit, not a way round a limit.`,
      },
    ];
  },
  lever: {
    label: "Another text",
    kind: "text",
    value: "Unbelievable",
    choices: ["Unbelievable", "Unbeleivable", "for (int i = 0; i < n; ++i)", "2-acetyloxybenzoic acid", "\u91cd\u529b\u3068\u306f"],
    async run(reach, text) {
      const [other, own] = [await cut(reach, text), await reach.see("tokens")];
      const bytes = own.num_bytes.reduce((sum, each) => sum + each, 0);
      return {
        said:
          `${figure(other.ids.length)} tokens, ${figure(size(text) / Math.max(1, other.ids.length), 2)} bytes each; in your ` +
          `prompt and its answer ${figure(bytes / own.texts.length, 2)}.`,
        tokens: other.tokens,
      };
    },
  },
  question: () => Promise.resolve({ text: "How many letters e are hidden in all these tokens? (within a tenth is right)" }),
  async answer(reach) {
    const { num_letters, texts } = await reach.see("tokens", { text: "e" });
    const right = num_letters.reduce((sum, each) => sum + each, 0);
    return { right, slack: 0.1, said: `${figure(right)} in ${figure(texts.length)} tokens. The model was given none of them.` };
  },
};
