// P: tokens become text, and text streams.
import { figure, seconds, share } from "../numbers";
import type { Chapter } from "./chapter";
import { cut, textOf } from "./cut";
import { saidIn } from "./goon";

export const P: Chapter = {
  id: "p",
  name: "To text",
  does:
    "The same table, backwards: each id stands for some bytes, and together they are the text. A token may end inside " +
    "a character; then it waits, so that nobody sees half a sign. Each piece is sent as soon as it is made: the " +
    "typing that you see is the computing itself.",
  view: "detokenization",
  plays: "first",
  async claims(reach) {
    const [shown, times, { answer }] = [await reach.see("detokenization"), await reach.see("timeline"), await saidIn(reach)];
    const once = await textOf(reach, answer);
    return [
      {
        told: "The typing is an effect.",
        here: `It is the computation: a token was there when its pass had ended, each ${seconds(times.gap_p50)} after the last (median).`,
      },
      {
        here: `All ids looked up at once give ${once.startsWith(shown.text) ? "the very text that streamed" : "more than streamed: control tokens and stops are left out"}.`,
      },
    ];
  },
  lever: {
    label: "As tokens, one by one",
    kind: "text",
    value: "\ud83d\ude42 \u6771 dog",
    choices: ["\ud83d\ude42 \u6771 dog", " dog", "na\u00efve"],
    async run(reach, text) {
      const { ids, tokens } = await cut(reach, text);
      const parts = tokens.filter((each) => each.text.includes("\u25cc")).length;
      return { said: `${figure(ids.length)} tokens; ${parts} of them ${parts === 1 ? "is" : "are"} no whole character alone: a reader would wait.`, tokens };
    },
  },
  question: () => Promise.resolve({ text: "Of all the time your answer took, how many percent had passed when its first token was there? (within three tenths is right)" }),
  async answer(reach) {
    const { first_token, total, tokens } = await reach.see("timeline");
    return {
      right: (100 * first_token) / total,
      slack: 0.3,
      said: `${share(first_token / total)}: ${seconds(first_token)} of ${seconds(total)}. Without a stream you would have waited for all ${tokens.length} tokens.`,
    };
  },
};
