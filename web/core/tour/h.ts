// H: self-attention.
import { figure, share } from "../numbers";
import { bar, many, quoted, type Chapter, type Reach } from "./chapter";

/** The head that gives most to one earlier word, as the station of all heads opens on it. */
async function telling(reach: Reach): Promise<{ layer: number; head: number } | undefined> {
  const grid = await reach.see("attention", { position: reach.position });
  const { layer, head } = ("telling" in grid && grid.telling) || {};
  return layer === undefined || head === undefined ? undefined : { layer, head };
}

export const H: Chapter = {
  id: "h",
  name: "Attention",
  does:
    "To understand \u201cit\u201d one looks back for what \u201cit\u201d means. Each token does that: its query asks, the keys of earlier " +
    "tokens offer, and a good match gets a large share. The shares add up to 1, and by them the values are added. " +
    "Later tokens are hidden. Many heads do this side by side. A share shows where a head looks, not why an answer " +
    "came.",
  view: "arithmetic",
  at: telling,
  async claims(reach) {
    const { num_prompt } = await reach.see("tokens");
    const { position, text, scaled, weights } = await reach.see("arithmetic", { position: reach.position, ...(await telling(reach)) });
    const later = weights.list().slice(position + 1);
    const { stages, token_flops } = await reach.see("cost");
    const [flops, all] = [stages.find((each) => each.name === "attention")?.flops ?? 0, stages.reduce((sum, each) => sum + each.flops, 0)];
    const grows = token_flops.at(2) - token_flops.at(1); // by one token of context: scores and sums alone
    const matrices = token_flops.at(1) - grows * (num_prompt + 1);
    return [
      {
        told: "In \u201cthe bank by the river\u201d the word bank looks at river.",
        here: later.length
          ? `It cannot: river comes later. Here ${quoted(text)} at ${position} met ${many(later.length, "later key")} with scores up to ` +
            `${figure(Math.max(...scaled.list().slice(position + 1)))}; the mask leaves a weight of ${figure(later.reduce((sum, each) => sum + each, 0))} for all of them.`
          : "It cannot: river comes later, and the mask leaves later tokens nothing.",
      },
      {
        told: "Attention is most of the work.",
        here:
          `${share(flops / all)} of this answer's operations.` +
          (grows > 0 ? ` Its part grows with the text: from ${figure(Math.round(matrices / grows))} tokens on comparing words costs more than all matrices.` : ""),
        from: "arithmetic",
      },
    ];
  },
  lever: {
    label: "Another head, as LAYER.HEAD",
    kind: "text",
    value: "0.0",
    choices: ["0.0", "1.1", "10.0"],
    async run(reach, value) {
      const found = /^\s*(\d+)\.(\d+)\s*$/.exec(value);
      if (!found) throw new Error(`${value} is no head; write a layer and a head, as 0.0.`);
      const places = { layer: Number(found[1]), head: Number(found[2]), position: reach.position };
      const row = await reach.see("arithmetic", places);
      const keys = row.weights.list().map((weight, at) => ({ weight, name: row.tokens[at] ?? "" }));
      const most = keys.sort((one, other) => other.weight - one.weight).slice(0, 5);
      return {
        said:
          `${quoted(row.text)} takes ${share(most[0]!.weight)} from ${quoted(most[0]!.name)}. Its shares are as spread as over ` +
          `${figure(2 ** row.entropy)} equal tokens.`,
        bars: most.map(({ weight, name }) => bar(name, weight, share(weight))),
        view: { view: "attention", ...places },
      };
    },
  },
  async question(reach) {
    const { texts } = await reach.see("tokens");
    return {
      text:
        `On average over the tokens up to ${quoted(texts[reach.position] ?? "")}, how many heads give half of their weight or ` +
        "more to the very first token? (within a fifth is right)",
    };
  },
  async answer(reach) {
    const grid = await reach.see("attention", { position: reach.position });
    if (!("induction" in grid)) throw new Error("The overview of all heads is not in this file.");
    const right = grid.first.list().filter((each) => each >= 0.5).length;
    return { right, slack: 0.2, said: `${right} of ${grid.first.data.length}. Weights add up to 1, so where a head finds nothing they go there.` };
  },
};
