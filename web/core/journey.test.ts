// The film of one token: what was typed is found in any template, and every token of the line is counted.
import { describe, expect, it } from "vitest";

import { sceneAt, stillOf, totalOf } from "./film";
import { captionOf, drawOf, lineOf, nextOf, positionOf, SCENES, startOf, typedOf, type Found } from "./journey";
import type { Probabilities, Sampling, Tokens } from "./payloads";

/** Tokens of a text in which a bar divides them and a hat marks control tokens. */
function tokensOf(prompt: string, answer: string): Tokens {
  const [asked, given] = [prompt.split("|"), answer.split("|")];
  const all = [...asked, ...given];
  return {
    texts: all.map((each) => each.replace("^", "")),
    token_ids: all.map((_, index) => 100 + index),
    is_control: all.map((each) => each.startsWith("^")),
    num_prompt: asked.length,
  } as unknown as Tokens;
}

const CHATML = "^<s>|system|\u21b5|Be|\u00b7kind|^</s>|\u21b5|^<s>|user|\u21b5|What|\u00b7is|\u00b7it|?|^</s>|\u21b5|^<s>|ass|istant|\u21b5";
const LLAMA = "^<b>|^<h>|user|^</h>|\u21b5\u21b5|What|\u00b7is|\u00b7it|?|^<e>|^<h>|assistant|^</h>|\u21b5\u21b5";
const found = (tokens: Tokens): Found => ({ tokens, embeddings: null, residual: null, lens: null, probabilities: null, sampling: null, drawn: [] });

describe("the film of one token", () => {
  it("lasts about forty seconds, scene after scene, each with a still within it", () => {
    expect(totalOf(SCENES)).toBeGreaterThan(35);
    expect(totalOf(SCENES)).toBeLessThan(45);
    SCENES.forEach((scene, index) => {
      expect(sceneAt(SCENES, startOf(scene.id))).toBe(index);
      expect(sceneAt(SCENES, stillOf(SCENES, index))).toBe(index);
    });
    expect([sceneAt(SCENES, -1), sceneAt(SCENES, 99)]).toEqual([0, SCENES.length - 1]);
  });

  it("finds what a person typed in any template, and in none", () => {
    for (const prompt of [CHATML, LLAMA]) expect(typedOf(tokensOf(prompt, "It|\u00b7is"))).toBe("What is it?");
    expect(typedOf(tokensOf("Once|\u00b7upon", "\u00b7a"))).toBe("Once upon");
    expect(typedOf(tokensOf("user|:|\u00b7What|?|\u21b5", "a"))).toBe("What?");
    expect(typedOf(tokensOf("^<b>", "a"))).toBe(""); // nothing was typed
    const again = `${CHATML}|It|^</s>|\u21b5|^<s>|user|\u21b5|\ud83c\udf0d|!|^</s>|\u21b5|^<s>|assistant|\u21b5`;
    expect(typedOf(tokensOf(again, "a"))).toBe("\ud83c\udf0d!");
  });

  it("counts every token up to the one that is read, shown or not", () => {
    const answer = Array.from({ length: 40 }, (_, index) => `w${index}`).join("|");
    for (const prompt of [CHATML, LLAMA, "Once|\u00b7upon", "^<b>"]) {
      const tokens = tokensOf(prompt, answer);
      for (const step of [0, 1, 5, 39]) {
        const line = lineOf(tokens, step);
        const count = line.reduce((sum, each) => sum + (each.isMany ? Number(each.text.slice(1)) : 1), 0);
        expect(count).toBe(positionOf(tokens, step) + 1);
        expect(line.at(-1)!.id).toBe(tokens.token_ids[positionOf(tokens, step)]);
        expect(nextOf(tokens, step).map((each) => each.index)).toEqual(nextOf(tokens, step).map((_, at) => tokens.num_prompt + step + 1 + at));
      }
    }
  });

  it("says what is not here, and of a draw what its settings made of the chance", () => {
    const tokens = tokensOf(CHATML, "It|\u00b7is");
    for (const { id } of SCENES) expect(captionOf(id, 1, found(tokens))).not.toMatch(/undefined|NaN|null/);
    expect(captionOf("row", 1, found(tokens))).toContain("not to be had here");
    expect(captionOf("draw", 1, found(tokens))).toContain("No dice");
    expect(captionOf("again", 1, found(tokens))).toContain("the last of 2 pieces");
    const draw_effect = { total: 1000, target: 250, low: 200, high: 900 };
    const sampling = { draw_effect } as unknown as Sampling;
    expect(drawOf(sampling)).toEqual({ target: 0.25, low: 0.2, high: 0.9 });
    const chosen = { probability: 0.4 };
    const probabilities = { vocab_size: 9, chosen } as unknown as Probabilities;
    expect(captionOf("draw", 1, { ...found(tokens), sampling, probabilities })).toMatch(/^The settings first make 70.0 % of the 40.0 %\. A random number/);
    expect(captionOf("draw", 1, { ...found(tokens), sampling, probabilities: { ...probabilities, chosen: { probability: 0.7 } } as Probabilities })).toMatch(/^A random/);
  });
});
