// I: attention that keeps less.
import { bytes, figure, share } from "../numbers";
import type { HeadGrid, Pages } from "../payloads";
import { quoted, type Chapter, type Reach } from "./chapter";

/** What a token keeps, and what it would if every query head had keys and values of its own. */
async function kept(reach: Reach): Promise<{ grid: HeadGrid; pages: Pages; heads: number; groups: number; full: number; isLatent: boolean }> {
  const [grid, pages] = [(await reach.see("attention")) as HeadGrid, await reach.see("pages")];
  const [heads, groups] = [grid.entropy.shape[1] ?? 1, grid.groups[0] ?? 1];
  const isLatent = pages.groups.some((each) => each.fields.includes("latent"));
  return { grid, pages, heads, groups, full: (pages.token_bytes * heads) / groups, isLatent };
}

/** How much less one size is than another. */
const less = (one: number, other: number): string => `${(100 * (1 - one / other)).toFixed(1)} %`;

export const I: Chapter = {
  id: "i",
  name: "Cheaper attention",
  does:
    "What was said must be kept at hand, and that takes memory: keys and values of every token. Three ways save some. " +
    "In groups, several heads share one notebook (GQA). Latent attention keeps one short note and unfolds it when " +
    "needed (MLA). A window keeps the last tokens alone; older ones are still heard through the layers between.",
  view: "attention",
  form: "kept",
  asks: "How much does attention keep of each token?",
  async claims(reach) {
    const { grid, pages, heads, groups, full, isLatent } = await kept(reach);
    const windows = grid.windows.filter((each) => each !== null);
    // DeepSeek-V2 and 67B as published: a latent row of 512 and 64 that turn; heads and groups of 128.
    const [latent, own, eight] = [512 + 64, 2 * 128 * 128, 2 * 8 * 128];
    return [
      {
        told: "Every head has its own keys and values.",
        here: isLatent
          ? `Here a token keeps a latent row, ${bytes(pages.token_bytes)} in all layers.`
          : groups < heads
            ? `${heads} query heads read ${groups} groups here: a token keeps ${bytes(pages.token_bytes)} in all layers, not ${bytes(full)}.`
            : `So it is in this model: ${heads} heads, ${groups} groups, ${bytes(pages.token_bytes)} a token in all layers.`,
      },
      {
        told: "Latent attention saves 93 %.",
        here:
          `It depends on what it is held against: ${less(latent, own)} less than 128 heads with notes of their own, ${less(latent, eight)} less than 8 groups. ` +
          `The told ${less(60 * latent * 6, 95 * eight * 16)} count fewer layers and fewer bits too (DeepSeek-V2).`,
        from: "published",
      },
      {
        told: "A model sees all of its context.",
        here: windows.length
          ? `${windows.length} of ${grid.num_layers} layers see the last ${figure(Math.min(...windows))} tokens alone.`
          : `This one does: none of its ${grid.num_layers} layers has a window. Mistral 7B's published window is 4,096.`,
      },
    ];
  },
  lever: {
    label: "Heads 0 and 1 side by side, in layer",
    kind: "number",
    value: "0",
    least: 0,
    async run(reach, value) {
      const layer = Number(value);
      const places = { layer, position: reach.position };
      const [one, other] = [await reach.see("arithmetic", { ...places, head: 0 }), await reach.see("arithmetic", { ...places, head: 1 })];
      const gap = Math.max(...one.key.list().map((each, at) => Math.abs(each - other.key.at(at))));
      const agreed = one.weights.list().reduce((sum, each, at) => sum + Math.min(each, other.weights.at(at)), 0);
      const most = (row: typeof one): string => {
        const weights = row.weights.list();
        return row.tokens[weights.indexOf(Math.max(...weights))] ?? "";
      };
      return {
        said:
          (one.group === other.group
            ? `Both read the notes of group ${one.group}, the same keys. `
            : `They read groups ${one.group} and ${other.group}; their keys of ${quoted(one.text)} differ by up to ${figure(gap)}. `) +
          `They agree on ${share(agreed)} of their weight: head 0 looks most at ${quoted(most(one))}, head 1 at ${quoted(most(other))}.`,
      };
    },
  },
  question: () => Promise.resolve({ text: "How many tokens of context would fill 1 GiB with this model's keys and values? (within a fifth is right)" }),
  async answer(reach) {
    const { pages, heads, full, isLatent } = await kept(reach);
    const right = Math.floor(2 ** 30 / pages.token_bytes);
    return {
      right,
      slack: 0.2,
      said:
        `${figure(right)}: each keeps ${bytes(pages.token_bytes)}.` +
        (isLatent ? "" : ` With keys and values for each of ${heads} heads it would be ${figure(Math.floor(2 ** 30 / full))}.`),
    };
  },
};
