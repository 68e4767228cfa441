// G: the transformer and its layers.
import { bytes, figure, operations, seconds } from "../numbers";
import type { Residual } from "../payloads";
import { bar, quoted, type Chapter, type Reach } from "./chapter";

const sum = (values: readonly number[]): number => values.reduce((all, each) => all + each, 0);

const look = (reach: Reach): Promise<Residual> => reach.see("residual", { position: reach.position });

export const G: Chapter = {
  id: "g",
  name: "Transformer",
  does:
    "The model is a tower of floors built alike, its layers. On each floor a token first hears earlier tokens " +
    "(attention), then works alone (feed-forward). What comes out is added to the row; nothing is replaced. Nobody " +
    "hears what comes later. All of it is multiplying tables of numbers.",
  view: "residual",
  async claims(reach) {
    const [times, cost, routes] = [await reach.see("timeline"), await reach.see("cost"), await reach.see("experts")];
    const prefill = cost.modes.find((each) => each.name === "prefill");
    return [
      {
        told: "A large model, such as GPT-4, has 96 layers.",
        here: `This one has ${figure(times.num_layers)}. 96 is GPT-3's published number; GPT-4's is not public.`,
      },
      routes.num_experts
        ? {
            told: "Each token passes every parameter.",
            here: `A router sends each token to ${routes.num_chosen} of ${routes.num_experts} experts, in ${routes.layers.length} layers.`,
          }
        : {
            told: "A router sends each token to a few experts.",
            here: `None of the ${figure(times.num_layers)} layers here has experts: each token passes all parameters.`,
          },
      {
        told: "The model thinks in words.",
        here:
          `It multiplied: ${operations(sum(cost.stages.map((each) => each.flops)))} for this answer, with ` +
          `${bytes(sum(cost.stages.map((each) => each.num_bytes)))} read and written.`,
      },
      ...(prefill?.num_tokens
        ? [
            {
              here: `${figure(prefill.num_tokens)} tokens of the prompt took ${seconds(prefill.seconds)} before the first word.`,
            },
          ]
        : []),
    ];
  },
  lever: {
    label: "Open a layer",
    kind: "number",
    value: "0",
    least: 0,
    async run(reach, value) {
      const { attention, mlp, stream, embedding, cosine, text } = await look(reach);
      const layer = Math.min(Number(value), stream.length - 1);
      return {
        said: `Layer ${layer} keeps the direction of ${quoted(text)} with cosine ${figure(cosine.at(layer))}. Norms:`,
        bars: [
          bar("the stream before", layer ? stream.at(layer - 1) : embedding),
          bar("attention adds", attention.at(layer)),
          bar("feed-forward adds", mlp.at(layer)),
          bar("the stream after", stream.at(layer)),
        ],
      };
    },
  },
  async question(reach) {
    const { text } = await look(reach);
    return {
      text: `Over all layers, which part adds more to the stream of ${quoted(text)}, by how large it is (the sum of norms)?`,
      choices: ["attention", "feed-forward"],
    };
  },
  async answer(reach) {
    const { attention, mlp } = await look(reach);
    const [one, other] = [sum(attention.list()), sum(mlp.list())];
    return {
      right: one > other ? "attention" : "feed-forward",
      said: "The sums:",
      bars: [bar("attention", one), bar("feed-forward", other)],
    };
  },
};
