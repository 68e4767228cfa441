// Chapters H to R say and judge what the payloads of a made-up answer hold.
import { describe, expect, it } from "vitest";

import { shownOf } from "../frame";
import golden from "../golden_tour_late.json";
import type { Payloads } from "../payloads";
import { isRight, type Chapter, type Places, type Reach } from "./chapter";
import { H } from "./h";
import { I } from "./i";
import { J } from "./j";
import { K } from "./k";
import { L } from "./l";
import { M } from "./m";
import { N } from "./n";
import { O } from "./o";
import { P } from "./p";
import { Q } from "./q";
import { R } from "./r";

const frames: Record<string, string> = golden;
const coder = new TextEncoder();

interface Sent {
  prompt: number[];
  prompt_logprobs?: number;
  temperature?: number;
  seed?: number;
  max_tokens: number;
}

/** The golden answer; its tokenizer takes bytes for ids, its model says letters by seed. sent: what was asked of it. */
function reach(changed: { [Name in keyof Payloads]?: object } = {}, sent: Sent[] = []): Reach {
  const routes: Record<string, (body: never) => unknown> = {
    "/tokenize": (body: { prompt: string }) => ({ tokens: [...coder.encode(body.prompt)] }),
    "/detokenize": (body: { tokens: number[] }) => ({ prompt: new TextDecoder().decode(Uint8Array.from(body.tokens)) }),
    "/v1/completions": (body: Sent) => {
      sent.push(body);
      const tokens = Array.from({ length: body.max_tokens }, (_, at) => (at < 2 || !body.temperature ? "x" : `s${body.seed ?? ""}`));
      const timings = { cache_n: 2, prompt_n: body.prompt.length - 2, prompt_ms: 250, predicted_n: tokens.length, predicted_ms: 700 };
      // Ids are as unexpected as they are great.
      const prompt_logprobs = body.prompt_logprobs === undefined ? undefined : body.prompt.map((id, at) => (at ? { [id]: { logprob: -id / 10 } } : null));
      return { choices: [{ text: tokens.join(""), logprobs: { tokens }, prompt_logprobs }], timings };
    },
  };
  return {
    model: "golden",
    trace: "id",
    asked: "What is it?",
    position: 2,
    see<Name extends keyof Payloads>(view: Name, places: Places = {}): Promise<Payloads[Name]> {
      const frame = frames[`${view}?${places.head ?? places.token ?? ""}`] ?? frames[view]!;
      const bytes = Uint8Array.from(atob(frame), (sign) => sign.charCodeAt(0));
      return Promise.resolve({ ...(shownOf(bytes.buffer).values as unknown as Payloads[Name]), ...changed[view] });
    },
    post: <Told>(path: string, body: object) => Promise.resolve(routes[path]!(body as never) as Told),
  };
}

const heres = async (chapter: Chapter, at = reach()): Promise<string[]> => (await chapter.claims(at)).map((claim) => claim.here);
const pull = (chapter: Chapter, value: string, at = reach()): ReturnType<Chapter["lever"]["run"]> => chapter.lever.run(at, value);

/** Whether each guess is right, and what was measured. */
async function judged(chapter: Chapter, guesses: readonly string[], at = reach()): Promise<[boolean[], string]> {
  const answer = await chapter.answer(at);
  return [guesses.map((guess) => isRight(guess, answer)), answer.said];
}

describe("attention", () => {
  it("tells masked scores, and where they would be level with the matrices", async () => {
    const [masked, work] = await heres(H);
    expect(masked).toBe("It cannot: river comes later. Here \u201cit\u201d at 2 met 2 later keys with scores up to 5.5; the mask leaves a weight of 0 for all of them.");
    expect(work).toBe("20.0 % of this answer's operations. Its part grows with the text: from 100,000 tokens on comparing words costs more than all matrices.");
    const token_flops = (await reach().see("cost")).token_flops.row(0); // too short an answer to tell
    expect((await heres(H, reach({ cost: { token_flops } })))[1]).not.toContain("grows");
  });

  it("opens on the head that tells most, where there is one", async () => {
    expect(await H.at!(reach({ attention: { telling: { layer: 1, head: 0 } } }))).toEqual({ layer: 1, head: 0 });
    expect(await H.at!(reach({ attention: { telling: null } }))).toBeUndefined();
  });

  it("looks at another head, refuses what is none, and counts those at the first token", async () => {
    const other = await pull(H, " 1.1 ");
    expect(other.said).toBe("\u201cit\u201d takes 62.5 % from \u201c\u00b7is\u201d. Its shares are as spread as over 2.83 equal tokens.");
    expect(other.view).toEqual({ view: "attention", layer: 1, head: 1, position: 2 });
    expect(other.bars!.map((each) => each.value)).toEqual([0.625, 0.25, 0.125, 0, 0]);
    await expect(pull(H, "1")).rejects.toThrow("1 is no head; write a layer and a head, as 0.0.");
    expect((await judged(H, ["2", "3"]))[0]).toEqual([true, false]);
  });

  it("tells what a group saves, and what a window or a latent row does in a model that has one", async () => {
    const [kept, latent, window] = await heres(I);
    expect(kept).toBe("2 query heads read 1 groups here: a token keeps 1 KiB in all layers, not 2 KiB.");
    expect(latent).toContain("98.2 % less than 128 heads with notes of their own, 71.9 % less than 8 groups. The told 93.3 % count");
    expect(window).toContain("none of its 2 layers has a window");
    const pages = await reach().see("pages");
    const groups = [{ ...pages.groups[0]!, fields: ["latent", "rotary"] }];
    const own = reach({ pages: { groups }, attention: { windows: [null, 16] } });
    const told = await heres(I, own);
    expect([told[0], told[2]]).toEqual(["Here a token keeps a latent row, 1 KiB in all layers.", "1 of 2 layers see the last 16 tokens alone."]);
    expect((await I.answer(own)).said).not.toContain("for each of");
    expect((await heres(I, reach({ attention: { groups: [2, 2] } })))[0]).toContain("So it is in this model: 2 heads, 2 groups");
  });

  it("sets two heads of a group side by side", async () => {
    expect((await pull(I, "1")).said).toBe(
      "Both read the notes of group 0, the same keys. They agree on 62.5 % of their weight: head 0 looks most at \u201cWhat\u201d, head 1 at \u201c\u00b7is\u201d.",
    );
    expect(await judged(I, ["1048576", "900000", "500000"])).toEqual([
      [true, true, false],
      "1,048,576: each keeps 1 KiB. With keys and values for each of 2 heads it would be 524,288.",
    ]);
  });
});

describe("feed-forward and logits", () => {
  it("tell sizes, units and shares", async () => {
    const told = await heres(J);
    expect(told[0]).toContain("Here 1,536 for a row of 576: 2.67 times. With a gate");
    expect(told[1]).toContain("37 of 1,536 units make half of the effect on \u201cit\u201d; 25.0 % are next to silent");
    expect(told[2]).toContain("75.0 % of the layers' operations");
    const pushed = await pull(J, "1");
    expect([pushed.said, pushed.bars!.map((each) => each.value)]).toEqual(["Unit 98 acts most and pushes \u201c\u00b7and\u201d. Its gate lets 1.5 through.", [4, 2]]);
    expect((await pull(J, "1", reach({ feedforward: { kind: "plain" } }))).said).not.toContain("gate");
  });

  it("read halfway through the layers", async () => {
    expect((await J.question(reach())).text).toContain("\u201cA\u201d");
    expect(await judged(J, ["no", "yes"])).toEqual([[true, false], "After layer 0 it is number 3, at the end number 1. Its share by layer:"]);
  });

  it("tell the tail, chain pieces and find what was not the likeliest", async () => {
    expect(await heres(K)).toEqual([
      "It gave 320 shares. \u201cA\u201d has 75.0 %, the 2 likeliest have 87.5 %, all others 12.5 %.",
      "300 entries are below 0.01 %, with 6.3 % together. Softmax leaves none at 0.",
    ]);
    expect((await pull(K, "Zamboni")).said).toBe("12.5 %: its pieces, each after the last, 50.0 % \u00d7 25.0 %.");
    expect((await K.question(reach())).text).toContain("first 6 tokens");
    expect((await judged(K, ["1", "0"]))[0]).toEqual([true, false]);
  });
});

describe("sampling and the loop", () => {
  it("tell what settings make of a row, and ask anew with two seeds", async () => {
    expect((await heres(L))[0]).toContain("greedy gives \u201cA\u201d (75.0 %), temperature 0.5 \u201cA\u201d (87.5 %), 1.5 \u201cB\u201d (25.0 %).");
    expect((await heres(L))[1]).toContain("here 7 of 320 tokens");
    const sent: Sent[] = [];
    expect((await pull(L, "1", reach({}, sent))).said).toContain("They part at token 3. Seed 1: \u201cxxs1");
    expect(sent.map((each) => [each.prompt, each.temperature, each.seed])).toEqual([[[7, 3, 5], 1, 1], [[7, 3, 5], 1, 2]]);
    expect((await pull(L, "0")).said).toContain("Word for word the same.");
  });

  it("count what an answer says again", async () => {
    const [right, said] = await judged(L, ["50", "60", "70"]); // A B A B A C: three of six
    expect([right, said.slice(0, 15)]).toEqual([[true, true, false], "50.0 %: 3 of 6."]);
    await expect(L.answer(reach({ sampling: { repetition: undefined } }))).rejects.toThrow("before repetition was counted");
  });

  it("tell what passes again, and put another word in the answer", async () => {
    expect(await heres(M)).toEqual([
      "The 3 tokens of the prompt passed once, 2 of them for an earlier answer; later passes computed 1 at most. With nothing kept all of it would be 5 times the work.",
      "It goes on from the table: \u201cA\u201d came back in as id 65, place 3, and began at its row.",
      "Drafts in this answer: 0. Reasoning is tokens like these; a speculative draft is checked before you see it.",
    ]);
    const sent: Sent[] = [];
    expect((await pull(M, "z", reach({}, sent))).said).toContain("\u201cABAz\u201d goes on: \u201cxxxx");
    expect(sent[0]!.prompt).toEqual([7, 3, 5, 65, 66, 65, 122]);
  });

  it("tell what ended an answer", async () => {
    const { choices } = await M.question(reach());
    const ends = [67, "stop", null];
    for (const [index, stopped_by] of ends.entries()) {
      const [right] = await judged(M, choices!, reach({ detokenization: { stopped_by } }));
      expect(right).toEqual(ends.map((_, at) => at === index));
    }
    expect((await M.answer(reach())).said).toBe("After 6 tokens: an ending token, id 67, \u201cC\u201d.");
  });
});

describe("speculation", () => {
  /** A server whose model says what follows the prompt of three tokens; drafted: what each kind of answer says. */
  function checking(says: string, drafted: Record<string, string> = {}): [Reach, { prompt: number[]; draft?: string }[]] {
    const sent: { prompt: number[]; draft?: string }[] = [];
    const at = reach();
    const post = <Told>(path: string, body: object): Promise<Told> => {
      if (path !== "/v1/completions") return at.post<Told>(path, body);
      const asked = body as { prompt: number[]; draft?: string; prompt_logprobs?: number };
      sent.push(asked);
      const own = [...coder.encode(says)];
      const rows = asked.prompt.map((id, place) => {
        const likeliest = own[place - 3] ?? 0;
        return likeliest === id
          ? { [id]: { logprob: Math.log(0.5), rank: 1 } }
          : { [likeliest]: { logprob: Math.log(0.75), rank: 1 }, [id]: { logprob: Math.log(0.125), rank: 4 } };
      });
      const tokens = [...(drafted[asked.draft ?? ""] ?? "xy")];
      const timings = { cache_n: 0, prompt_n: 3, prompt_ms: 1, predicted_n: 2, predicted_ms: 1, ...(asked.draft === "ngram" && { draft_n: 7, draft_n_accepted: 3 }) };
      const choice = { text: tokens.join(""), logprobs: { tokens }, prompt_logprobs: asked.prompt_logprobs === undefined ? undefined : rows };
      return Promise.resolve({ choices: [choice], timings } as Told);
    };
    return [{ ...at, post }, sent];
  }

  it("checks a draft behind the reader's prompt in one pass", async () => {
    const [at, sent] = checking("Gravity is no");
    const [first, second] = await heres(O, at);
    expect(first).toContain("in one pass, and gave each token its share: 50.0 %, 50.0 %");
    expect(first).toContain("11 of 12 stand. \u201ca\u201d is replaced by \u201cn\u201d");
    expect(sent.map((each) => each.prompt.length)).toEqual([15]);
    expect(second).toContain("80 %, four guesses give 3.36 tokens a pass, with 50 % 1.94.");
  });

  it("guesses as many tokens as the reader wants", async () => {
    const [at, sent] = checking("Grxvity");
    const two = await pull(O, "2", at);
    expect(two.said).toContain("2 of 2 stand. The pass gives one token more");
    const four = await pull(O, "4", at);
    expect(four.said).toContain("2 of 4 stand. \u201ca\u201d is replaced by \u201cx\u201d");
    expect(four.bars!.map((each) => [each.value, each.isOwn])).toEqual([[0.5, true], [0.5, true], [Math.exp(Math.log(0.125)), false], [0.5, false]]);
    expect(sent.map((each) => each.prompt.length)).toEqual([5, 7]);
  });

  it("answers again with guesses and without, and counts what differs", async () => {
    expect(await judged(O, ["none", "some"], checking("")[0])).toEqual([[true, false], "0 tokens of 2 changed; 3 of 7 guesses stood."]);
    expect((await judged(O, ["none", "some"], checking("", { ngram: "xz" })[0]))[0]).toEqual([false, true]);
  });
});

describe("cache, text and the whole", () => {
  it("put sizes in their bits", async () => {
    const told = await heres(N);
    expect(told[0]).toBe("It holds 1 KiB a token, and finds nothing but equal beginnings: 2 of 3 tokens of your prompt.");
    expect(told[1]).toBe("For each byte moved prefill did 75 operations, decode 2.5: decode waits for memory.");
    expect(told[2]).toBe("That is half precision: 141.1 GB in 16 bits a number. Full precision, 32 bits, takes 282.2 GB; 4 bits with their scales 39.7 GB.");
    expect(told[3]).toContain("4.5 bits each, 3.56 times less. This model's first matrix takes 16 bits a number.");
  });

  it("find a prompt again, and compare a token that went in with one that came out", async () => {
    const sent: Sent[] = [];
    expect((await pull(N, "the same prompt", reach({}, sent))).said).toBe("2 of 3 tokens were found; 1 were computed, in 250 ms.");
    await pull(N, "the same after other tokens", reach({}, sent));
    expect(sent.map((each) => each.prompt.length)).toEqual([3, 7]);
    expect(await judged(N, ["2", "1.5", "3"])).toEqual([[true, true, false], "2 times: 125 ms a token of the prompt, 250 ms one of the answer."]);
    const { modes } = await reach().see("cost");
    await expect(N.answer(reach({ cost: { modes: modes.slice(0, 1) } }))).rejects.toThrow("one token alone");
  });

  it("tell when text was there, and which tokens are no whole character", async () => {
    expect(await heres(P)).toEqual([
      "It is the computation: a token was there when its pass had ended, each 20 ms after the last (median).",
      "All ids looked up at once give the very text that streamed.",
    ]);
    expect((await heres(P, reach({ detokenization: { text: "else" } })))[1]).toContain("more than streamed");
    const other = await pull(P, "a\u00e9");
    expect(other.said).toBe("3 tokens; 2 of them are no whole character alone: a reader would wait.");
    expect(other.tokens!.map((each) => each.id)).toEqual([97, 195, 169]);
    expect((await judged(P, ["25", "32", "40"]))[0]).toEqual([true, true, false]);
  });

  it("tell what training makes small, of an answer and of any sentence", async () => {
    const [own, paid] = await heres(Q); // ids 65 66 65 66 65 67
    expect(own).toContain("Of the 6 tokens of your answer its loss is 6.57: as unsure as between 711 equally likely tokens.");
    expect(paid).toMatch(/got 36\.7 % of unseen tasks right early on and 87\.8 % at the end/);
    const sentence = await pull(Q, "abc");
    expect(sentence.said).toContain("A loss of 9.85 a token");
    expect(sentence.bars!.map((each) => each.value)).toEqual([9.8, 9.9]); // the first is given
    await expect(pull(Q, "a")).rejects.toThrow("two tokens or more");
    expect((await judged(Q, ["the prompt", "the answer"]))[0]).toEqual([false, true]); // ids 3 5 behind 7
  });

  it("tell what was sent, how long an answer takes, and that it is a function", async () => {
    expect((await heres(R))[0]).toContain("2 messages, 34 tokens");
    expect((await heres(R, reach({ template: { num_messages: 0 } })))[0]).toContain("sent whole: 34 tokens"); // a server keeps none
    expect((await pull(R, "8")).said).toBe("250 ms to the first token, 700 ms for the other 7: 100 ms each.");
    const sent: Sent[] = [];
    expect((await judged(R, ["16", "15"], reach({}, sent)))[0]).toEqual([true, false]);
    expect(sent[0]).toEqual(sent[1]);
  });
});
