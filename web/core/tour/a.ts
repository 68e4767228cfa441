// A: prompt and text.
import { figure, named, seconds } from "../numbers";
import { bar, many, type Chapter } from "./chapter";

export const A: Chapter = {
  id: "a",
  name: "Prompt and text",
  does:
    "Your words reach the computer as numbers, as in a secret code that everyone shares: H is 72, a space is 32. " +
    "Unicode gives each character its number, UTF-8 writes it in one to four bytes. The model never sees these. Other " +
    "code wraps your message in a template and cuts it into pieces.",
  view: "characters",
  async claims(reach) {
    const [text, sent, times] = [await reach.see("characters"), await reach.see("template"), await reach.see("timeline")];
    const stages = times.phases.filter((each) => each.before > 0);
    return [
      {
        told: "The model reads your message.",
        here:
          `It was given ${many(text.num_characters, "character")} and ${many(sent.num_control, "mark")} that say who speaks; your message ` +
          `has ${many([...reach.asked].length, "character")}. Code around the model wrote the rest.`,
      },
      {
        told: "Before the first word the model thinks.",
        here: `The first piece of the answer took ${seconds(times.first_token)}: ${stages
          .map((each) => `${named(each.name)} ${seconds(each.before)}`)
          .join(", ")}.`,
      },
    ];
  },
  lever: {
    label: "Another text, sign by sign",
    kind: "text",
    value: "na\u00efve \ud83d\udc69\u200d\ud83d\udcbb",
    choices: ["na\u00efve \ud83d\udc69\u200d\ud83d\udcbb", "\u6771\u4eac", "e\u0301 or \u00e9"],
    async run(reach, text) {
      const [own, other] = [await reach.see("characters", { text: reach.asked }), await reach.see("characters", { text })];
      return {
        said:
          `On a screen it is ${many(other.num_graphemes, "sign")}, made of ${many(other.num_characters, "character")} in ` +
          `${many(other.num_bytes, "byte")}: ${figure(other.num_bytes / other.num_graphemes, 2)} bytes a sign. In your ` +
          `message it is ${figure(own.num_bytes / own.num_graphemes, 2)}.`,
        view: { view: "characters", text },
      };
    },
  },
  async question(reach) {
    const { phases } = await reach.see("timeline");
    return {
      text: "After the first piece of this answer, where did most of its time go?",
      choices: phases.map((each) => named(each.name)),
    };
  },
  async answer(reach) {
    const { phases } = await reach.see("timeline");
    const most = phases.reduce((one, other) => (other.after > one.after ? other : one));
    return {
      right: named(most.name),
      said: `After the first piece, ${named(most.name)} took ${seconds(most.after)}.`,
      bars: phases.map((each) => bar(named(each.name), each.after, seconds(each.after))),
    };
  },
};
