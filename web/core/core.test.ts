// The page's core: events cut anywhere, tokens over text, numbers in words.
import { describe, expect, it } from "vitest";

import { bodyOf, newsOf, type Scored } from "./chat";
import { EventReader } from "./events";
import { Pieces, walk } from "./pieces";
import { cost, duration, percent, rank, sentence, shade, stages, tellingStep, visible } from "./words";

const encoder = new TextEncoder();

function scored(token: string, logprob = -0.1, top: Scored[] = []): Scored {
  return { token, bytes: [...encoder.encode(token)], logprob, top_logprobs: top };
}

describe("events", () => {
  const stream = ': wait\n\ndata: {"a": 1}\n\ndata: two\ndata: lines\n\ndata: [DONE]\n\n';

  it("are the same wherever the stream is cut", () => {
    for (let cut = 0; cut <= stream.length; cut += 1) {
      const reader = new EventReader();
      const read = [...reader.add(stream.slice(0, cut)), ...reader.add(stream.slice(cut))];
      expect(read).toEqual(['{"a": 1}', "two\nlines", "[DONE]"]);
    }
  });

  it("wait for their end", () => {
    expect(new EventReader().add("data: half")).toEqual([]);
  });
});

describe("news", () => {
  it("tell a fault in the server's words", () => {
    expect(() => newsOf('{"error": {"message": "the engine is down."}}')).toThrow("engine is down");
  });

  it("read a chunk with choices and one without", () => {
    const delta = { delta: { content: "a" }, logprobs: null, finish_reason: "stop" };
    expect(newsOf(JSON.stringify({ choices: [delta] }))).toMatchObject({ text: "a", finish: "stop" });
    expect(newsOf('{"choices": []}')).toMatchObject({ text: "", finish: null });
  });

  it("ask for alternatives, ids, and to go on from tokens", () => {
    const body = JSON.parse(bodyOf({ model: "m", messages: [], begun: [5, 6] })) as object;
    expect(body).toMatchObject({ cutaway: { token_ids: true, answer_token_ids: [5, 6] } });
    expect(JSON.parse(bodyOf({ model: "m", messages: [] }))).toMatchObject({ logprobs: true, top_logprobs: 8 });
  });
});

describe("pieces", () => {
  it("give each token its characters", () => {
    const pieces = new Pieces();
    pieces.add("It", [scored("It")]);
    pieces.add(" is", [scored(" is")]);
    expect(pieces.all.map((piece) => piece.text)).toEqual(["It", " is"]);
  });

  it("join a character that two tokens share", () => {
    const [first, second] = [encoder.encode("\u00e9").slice(0, 1), encoder.encode("\u00e9").slice(1)];
    const pieces = new Pieces();
    pieces.add("", [{ ...scored("?"), bytes: [...first] }]);
    pieces.add("\u00e9", [{ ...scored("?"), bytes: [...second] }]);
    expect(pieces.all.map((piece) => piece.text)).toEqual(["", "\u00e9"]);
  });

  it("wait for text that is held back", () => {
    const pieces = new Pieces();
    pieces.add("one", [scored("one"), scored(" two")]);
    expect(pieces.all.map((piece) => piece.text)).toEqual(["one", ""]);
    pieces.add(" two three", [scored(" three")]);
    expect(pieces.all.map((piece) => piece.text)).toEqual(["one", " two", " three"]);
  });

  it("show no ending token, and all of the text", () => {
    const pieces = new Pieces();
    pieces.add("end", [scored("end"), scored("<eos>")]);
    expect(pieces.all[1]?.text).toBe("");
    pieces.add("!", []);
    expect(pieces.all.map((piece) => piece.text).join("") + pieces.rest).toBe("end!");
  });

  it("are walked over those that are not shown, at either end and between", () => {
    const pieces = new Pieces();
    const bytes = [[0xc3], [0xa9], [0xe2], [0x82], [0xac], [0xe2]];
    pieces.add("\u00e9\u20ac", bytes.map((own) => ({ ...scored("?"), bytes: own })));
    expect(pieces.all.map((piece) => piece.text)).toEqual(["", "\u00e9", "", "", "\u20ac", ""]);
    const walks = ([[-1, 1], [1, 1], [4, 1], [6, -1], [4, -1], [1, -1], [-1, -1]] as const).map(
      ([from, by]) => walk(pieces.all, from, by),
    );
    expect(walks).toEqual([1, 4, 4, 4, 1, 1, -1]);
    expect(walk([], -1, 1)).toBe(-1);
  });

  it("drop the space that a tokenizer puts before every text", () => {
    const pieces = new Pieces();
    pieces.add("Hello", [scored(" Hello")]);
    expect(pieces.all[0]?.text).toBe("Hello");
  });
});

describe("words", () => {
  it("round probabilities without hiding small ones", () => {
    const shown = [1, 0.9999, 0.9989, 0.42, 0.031, 0.0004, 1e-9].map((p) => percent(Math.log(p)));
    expect(shown).toEqual(["100 %", "> 99.9 %", "99.9 %", "42 %", "3.1 %", "0.04 %", "< 0.01 %"]);
  });

  it("choose units of time", () => {
    expect([1.25, 42.4, 1234, 61_234].map(duration)).toEqual(["1.3 ms", "42 ms", "1.23 s", "61.2 s"]);
  });

  it("make white space visible", () => {
    expect(visible(" a\n")).toBe("\u00b7a\u21b5");
    expect(visible("")).toBe("(no text)");
  });

  it("rank a token among its alternatives", () => {
    const top = [scored("a", -0.5), scored("b", -1.5)];
    expect(rank(scored("b", -1.5, top))).toBe(2);
    expect(rank(scored("c", -9, top))).toBeNull();
    expect(sentence(scored("b", -1.5, top))).toBe("b: 22 %, choice 2");
  });

  it("shade by probability", () => {
    expect([0.95, 0.7, 0.4, 0.2, 0.01].map((p) => shade(Math.log(p)))).toEqual([4, 3, 2, 1, 0]);
  });

  it("find the token that tells most: after a whole word, where others could have come", () => {
    const texts = ["Gra", "vity", " is", " the", " force", " that", " pulls", " things", "."];
    expect(tellingStep(texts)).toBe(5); // force, the first whole word that is long enough
    expect(tellingStep(texts, [0.9, 1, 0.9, 0.3, 0.4, 0.95, 0.75, 0.3, 0.3])).toBe(7);
    expect(tellingStep(texts, [0.9, 1, 0.9, 0.3, 0.4, 0.95, 0.75, 0.9, 0.3])).toBe(6); // none was less likely
    expect(tellingStep(["Gravity", " is"])).toBe(1);
    expect(tellingStep(["Gra", "vity", " is"])).toBe(1); // no whole word
    expect(tellingStep(["\n", "<|", "1", "\u00b7grave", "\u00b7as"])).toBe(4);
    expect(tellingStep(["<|im_start|>", "assistant", "\n"])).toBe(2);
    expect(tellingStep(["\n", "\u91cd", "\u529b"])).toBe(2); // no word of three letters
    expect(tellingStep(["\n", "1", "+", "1"])).toBe(2); // no letter
    expect(tellingStep(["1", " grave"])).toBe(1); // nothing came after the word
    expect(tellingStep(["\n", "\u00b7", "\u21b5"])).toBe(0);
    expect(tellingStep([])).toBe(0);
  });

  it("share the time among stages, even when there was none", () => {
    const none = { prompt_n: 0, cache_n: 0, predicted_n: 0 };
    const timings = { ...none, queue_ms: 1, prompt_ms: 3, predicted_ms: 6 };
    expect(stages(timings).map((stage) => stage.share)).toEqual([0.1, 0.3, 0.6]);
    expect(stages({ ...timings, tokenize_ms: 10 }).map(({ name, share }) => `${name} ${share}`)[0]).toBe("tokenize 0.5");
    // 9 ms of a machine at 2 an hour: 2 * 9 / 3,600,000.
    expect(cost(timings, 2)).toBe("0.00000500");
    expect(cost({ ...timings, predicted_ms: 7_200_000 }, 2)).toBe("4.00");
    const zero = stages({ ...timings, queue_ms: 0, prompt_ms: 0, predicted_ms: 0 });
    expect(zero.map((stage) => stage.share)).toEqual([0, 0, 0]);
  });
});
