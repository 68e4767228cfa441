// M: the loop.
import { figure } from "../numbers";
import { quoted, type Chapter } from "./chapter";
import { idsOf, textOf } from "./cut";
import { goOn, saidIn } from "./goon";

const ENDS = ["an ending token", "a stop string", "the number of tokens, or the reader"] as const;
const KEPT = 3; // tokens that stand before the reader's own word

export const M: Chapter = {
  id: "m",
  name: "The loop",
  does:
    "One token is chosen, joins the text, and everything begins again: one pass through all layers for each. Nothing " +
    "is drafted and nothing is taken back, so a slip stays and leads on. Each pass costs a little more, as there is " +
    "more to look at. It ends at an ending token, a stop string or the limit.",
  view: "timeline",
  async claims(reach) {
    const [times, pages, { prompt, answer }] = [await reach.see("timeline"), await reach.see("pages"), await saidIn(reach)];
    const later = times.num_tokens.list().filter((_, at) => !times.is_prefill.at(at));
    const [first] = answer;
    return [
      {
        told: "For the second token, the prompt and the first token are run again.",
        here:
          `The ${figure(prompt.length)} tokens of the prompt passed once${pages.miss.num_hit ? `, ${figure(pages.miss.num_hit)} of them for an earlier answer` : ""}; later passes computed ${figure(Math.max(...later, 0))} at most. ` +
          `With nothing kept all of it would be ${figure(pages.without_flops / Math.max(1, pages.flops))} times the work.`,
      },
      {
        told: "The loop goes on from attention.",
        here: `It goes on from the table: ${quoted((await textOf(reach, [first ?? 0])).trim())} came back in as id ${first}, place ${prompt.length}, and began at its row.`,
      },
      {
        told: "It drafts in secret first.",
        here: `Drafts in this answer: ${figure(times.num_drafts)}. Reasoning is tokens like these; a speculative draft is checked before you see it.`,
      },
    ];
  },
  lever: {
    label: `After the first ${KEPT} tokens put`,
    kind: "text",
    value: " not",
    choices: [" not", " never", " a cat"],
    async run(reach, text) {
      const { prompt, answer } = await saidIn(reach);
      const begun = [...answer.slice(0, KEPT), ...(await idsOf(reach, text))];
      const went = await goOn(reach, [...prompt, ...begun], { temperature: 0, max_tokens: 20 });
      return { said: `${quoted(await textOf(reach, begun))} goes on: ${quoted(went.text)} It was: ${quoted(await textOf(reach, answer.slice(0, KEPT + 20)))}` };
    },
  },
  question: () => Promise.resolve({ text: "What ended your answer?", choices: ENDS }),
  async answer(reach) {
    const { stopped_by: by, num_tokens } = await reach.see("detokenization");
    const right = ENDS[typeof by === "number" ? 0 : by === null ? 2 : 1];
    const what = typeof by === "number" ? `, id ${by}, ${quoted(await textOf(reach, [by]))}` : by === null ? "" : `, ${quoted(by)}`;
    return { right, said: `After ${figure(num_tokens)} tokens: ${right}${what}.` };
  },
};
