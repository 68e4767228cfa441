// O: speculation.
import { figure, share } from "../numbers";
import { bar, many, quoted, type Chapter, type Reach } from "./chapter";
import { cut, joined, textOf } from "./cut";
import { goOn, saidIn } from "./goon";

const DRAFT = "Gravity is a force of nature that pulls things together";
const FIRST = "Gravity is a";
const AGAIN = 40; // tokens that the answer has

interface Score {
  logprob: number;
  rank: number;
}

/** A drafted token and what the model gave in its place: it stands while all before it did and it is the likeliest. */
interface Checked {
  text: string;
  id: number;
  share: number;
  likeliest: number; // the id that the model takes at temperature 0
  stands: boolean;
}

/** All tokens of a draft behind the reader's prompt, checked in one pass. */
async function check(reach: Reach, text: string, most = Infinity): Promise<{ checked: Checked[]; told: string }> {
  const { prompt } = await saidIn(reach);
  const draft = await cut(reach, text);
  const tokens = draft.tokens.slice(0, most);
  const body = { model: reach.model, prompt: [...prompt, ...tokens.map((token) => token.id)], prompt_logprobs: 1, max_tokens: 1, temperature: 0 };
  type Told = { choices: { prompt_logprobs: (Record<string, Score> | null)[] }[] };
  const scores = (await reach.post<Told>("/v1/completions", body)).choices[0]!.prompt_logprobs.slice(prompt.length);
  let stands = true;
  const checked = tokens.map(({ text: shown, id }, at) => {
    const row = scores[at] ?? {};
    const likeliest = Number(Object.keys(row).find((each) => row[each]!.rank === 1) ?? id);
    stands &&= likeliest === id;
    return { text: shown, id, share: Math.exp(row[id]?.logprob ?? -Infinity), likeliest, stands };
  });
  return { checked, told: joined({ ...draft, tokens }) };
}

/** How many stand, and what comes instead of the first that does not. */
async function verdict(reach: Reach, checked: readonly Checked[]): Promise<string> {
  const wrong = checked.find((each) => !each.stands);
  const kept = checked.filter((each) => each.stands).length;
  const instead = wrong && ` ${quoted(wrong.text)} is replaced by ${quoted(await textOf(reach, [wrong.likeliest]))}; what stands behind it is not looked at.`;
  return `${kept} of ${checked.length} stand.${instead ?? " The pass gives one token more, for nothing."}`;
}

/** Tokens that a pass gives with so many guesses, each right with the same chance if all before it are. */
const perPass = (chance: number, guesses: number): number => (1 - chance ** (guesses + 1)) / (1 - chance);

export const O: Chapter = {
  id: "o",
  name: "Speculation",
  does:
    "A quick friend ends your sentence, and you nod or correct. Something quick guesses the next tokens, and the model " +
    "checks all of them in one pass, which takes about as long as for one. A guess stands while it is what the model " +
    "draws itself; the first wrong one is replaced, and those behind it are thrown away. So the answer stays the same.",
  view: "speculation",
  async claims(reach) {
    const { checked, told } = await check(reach, FIRST);
    const shares = checked.map((each) => share(each.share)).join(", ");
    return [
      {
        told: "The large model has to write each word after the other.",
        here: `Behind your question it read the draft ${told} in one pass, and gave each token its share: ${shares}. At temperature 0 ${await verdict(reach, checked)}`,
      },
      {
        told: "Four guesses make it five times as fast.",
        here:
          `If each is right with 80 %, four guesses give ${figure(perPass(0.8, 4), 3)} tokens a pass, with 50 % ${figure(perPass(0.5, 4), 3)}. ` +
          "The pass takes longer too, and the guesses take time: the engine measures both.",
        from: "arithmetic",
      },
    ];
  },
  lever: {
    label: `Tokens guessed of ${quoted(DRAFT)}`,
    kind: "number",
    value: "4",
    least: 1,
    most: 10,
    async run(reach, value) {
      const { checked, told } = await check(reach, DRAFT, Number(value));
      const bars = checked.map((each) => ({ ...bar(each.text, each.share, share(each.share)), isOwn: each.stands }));
      return { said: `${told}: ${await verdict(reach, checked)}`, bars, tokens: checked };
    },
  },
  question: () =>
    Promise.resolve({
      text: `Your prompt is answered again, ${AGAIN} tokens, with guesses from what was said before. How many of its tokens change?`,
      choices: ["none", "some"],
    }),
  async answer(reach) {
    const { prompt } = await saidIn(reach);
    const settings = { temperature: 0, max_tokens: AGAIN };
    const plain = await goOn(reach, prompt, { ...settings, draft: "off" });
    const guessed = await goOn(reach, prompt, { ...settings, draft: "ngram" });
    const changed = plain.tokens.filter((each, at) => each !== guessed.tokens[at]).length;
    const { draft_n: tried = 0, draft_n_accepted: right = 0 } = guessed.timings;
    return {
      right: changed ? "some" : "none",
      said: `${many(changed, "token")} of ${plain.tokens.length} changed; ${right} of ${many(tried, "guess", "guesses")} stood.`,
    };
  },
};
