// N: the cache, prefill and decode.
import { bytes, figure, seconds } from "../numbers";
import { bar, type Chapter } from "./chapter";
import { goOn, saidIn } from "./goon";

const WAYS = ["the same prompt", "the same after other tokens"] as const;
const LLAMA = 70_553_706_496; // parameters of Llama 3 70B, from its published shape

/** Bytes by powers of 1,000, as sizes of models are told. */
const giga = (bits: number): string => `${((LLAMA * bits) / 8e9).toFixed(1)} GB`;

export const N: Chapter = {
  id: "n",
  name: "Cache",
  does:
    "Without notes one would read the whole letter again for every new word. The cache keeps keys and values of each " +
    "token in pages, so only the new token is computed. Reading a prompt (prefill) is bound by arithmetic; writing an " +
    "answer (decode) by memory. So words that come out cost more, and long chats grow slow.",
  view: "pages",
  plays: "last",
  async claims(reach) {
    const [pages, { modes }, matrix] = [await reach.see("pages"), await reach.see("cost"), await reach.see("weights")];
    const [prefill, decode] = ["prefill", "decode"].map((name) => modes.find((each) => each.name === name));
    const blocked = (32 * 4 + 16) / 32; // 32 numbers of 4 bits and their scale of 16
    return [
      {
        told: "The cache remembers what was said.",
        here:
          `It holds ${bytes(pages.token_bytes)} a token, and finds nothing but equal beginnings: ${figure(pages.miss.num_hit)} of ` +
          `${figure(pages.num_prompt)} tokens of your prompt${pages.miss_reason ? ` (${pages.miss_reason})` : ""}.`,
      },
      ...(prefill?.num_tokens && decode?.num_tokens
        ? [
            {
              told: "A faster processor answers faster.",
              here: `For each byte moved prefill did ${figure(prefill.intensity)} operations, decode ${figure(decode.intensity)}: decode waits for memory.`,
              from: "arithmetic" as const,
            },
          ]
        : []),
      {
        told: "A 70B model takes 140 GB in full precision.",
        here: `That is half precision: ${giga(16)} in 16 bits a number. Full precision, 32 bits, takes ${giga(32)}; 4 bits with their scales ${giga(blocked)}.`,
        from: "published",
      },
      {
        told: "4 bits are 4 times less.",
        here: `Each 32 numbers share a scale that is kept too: ${blocked} bits each, ${figure(16 / blocked)} times less. This model's first matrix takes ${figure(matrix.bits_per_number)} bits a number.`,
      },
    ];
  },
  lever: {
    label: "Send again",
    kind: "choice",
    value: WAYS[0],
    choices: WAYS,
    async run(reach, value) {
      const { prompt } = await saidIn(reach);
      const any = (): number => prompt[Math.floor(Math.random() * prompt.length)] ?? 0; // so that no earlier try is found
      const sent = value === WAYS[0] ? prompt : [...Array.from({ length: 4 }, any), ...prompt];
      const { timings } = await goOn(reach, sent, { max_tokens: 1, temperature: 0 });
      return {
        said: `${timings.cache_n} of ${sent.length} tokens were found; ${timings.prompt_n} were computed, in ${seconds(timings.prompt_ms / 1000)}.`,
        bars: [bar("found", timings.cache_n), bar("computed", timings.prompt_n)],
      };
    },
  },
  question: () => Promise.resolve({ text: "A token of your answer took how many times as long as one of its prompt? (within three tenths is right)" }),
  async answer(reach) {
    const { modes } = await reach.see("cost");
    const each = modes.filter((mode) => mode.num_tokens).map((mode) => ({ name: mode.name, value: mode.seconds / mode.num_tokens }));
    const [prefill, decode] = ["prefill", "decode"].map((name) => each.find((mode) => mode.name === name)?.value);
    if (!prefill || !decode) throw new Error("This answer has one token alone, which the prompt's pass gave. Ask for a longer one.");
    return {
      right: decode / prefill,
      slack: 0.3,
      said: `${figure(decode / prefill)} times: ${seconds(prefill)} a token of the prompt, ${seconds(decode)} one of the answer.`,
      bars: each.map((mode) => bar(mode.name, mode.value, seconds(mode.value))),
    };
  },
};
