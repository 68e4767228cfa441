// D: ids.
import { figure } from "../numbers";
import { bar, quoted, type Chapter } from "./chapter";
import { cut, idsOf, joined, textOf, tokenOf } from "./cut";

const TOLD = [2601, 318, 26110, 879, 30];
const QUESTION = "What is gravity?";
const RECIPE = "How do I bake chocolate chip cookies?";

export const D: Chapter = {
  id: "d",
  name: "Ids",
  does:
    "Each token has a number, as a coat has in a cloakroom: its id. From here on there are only numbers. The id says " +
    "nothing of the meaning; in another model the same id is another word. A row of ids goes in, and one more comes " +
    "out.",
  view: "tokens",
  form: "ids",
  asks: "Which number does each piece have?",
  async claims(reach) {
    const { vocab_size } = await reach.see("merges");
    const [own, recipe, zero] = [await idsOf(reach, QUESTION), await cut(reach, RECIPE), await tokenOf(reach, 0)];
    const known = TOLD.filter((id) => id < vocab_size);
    return [
      {
        told: `${quoted(QUESTION)} is ${TOLD.join(", ")}.`,
        here:
          `Here it is ${own.join(", ")}. ` +
          (known.length ? `${known.join(", ")} would spell ${quoted((await textOf(reach, known)).trim())}.` : "None of those ids exists here."),
      },
      { told: "An id is a positive number.", here: `Id 0 exists: it is ${quoted(zero.text)}.` },
      { told: `${quoted(RECIPE)} is 8 ids.`, here: `Here it is ${recipe.ids.length}: ${joined(recipe)}.` },
    ];
  },
  lever: {
    label: "Eight tokens, from this id on",
    kind: "number",
    value: "300",
    least: 0,
    async run(reach, value) {
      const { vocab_size } = await reach.see("merges");
      const start = Math.max(0, Math.min(Number(value), vocab_size - 8));
      const ids = Array.from({ length: Math.min(8, vocab_size) }, (_, index) => start + index);
      return {
        said: `Eight of ${figure(vocab_size)}: neighbours in the list, not in what they mean.`,
        tokens: await Promise.all(ids.map((id) => tokenOf(reach, id))),
      };
    },
  },
  async question(reach) {
    const { token_ids } = await reach.see("tokens");
    return { text: `Prompt and answer are ${figure(token_ids.length)} ids. How many different ones? (within a tenth is right)` };
  },
  async answer(reach) {
    const { token_ids, texts } = await reach.see("tokens");
    const counts = new Map<string, number>();
    const names = token_ids.map((id, index) => `${texts[index]} ${id}`);
    for (const name of names) counts.set(name, (counts.get(name) ?? 0) + 1);
    const most = [...counts].sort(([, one], [, other]) => other - one).slice(0, 6);
    return {
      right: counts.size,
      slack: 0.1,
      said: `${figure(counts.size)} different ids, most often:`,
      bars: most.map(([name, count]) => bar(name, count)),
    };
  },
};
