// J: feed-forward, residual stream and norm.
import { figure, share } from "../numbers";
import { bar, quoted, type Chapter } from "./chapter";

export const J: Chapter = {
  id: "j",
  name: "Feed-forward",
  does:
    "After listening, each token thinks for itself. The feed-forward makes its row wider, bends it, and makes it " +
    "narrow again; without the bend two matrices would be as good as one. Most models have a gate that lets parts " +
    "through or stops them. The result is added to the row, and a norm before it keeps all rows of one size.",
  view: "feedforward",
  async claims(reach) {
    const [net, { stages }] = [await reach.see("feedforward", { position: reach.position }), await reach.see("cost")];
    const of = (name: string): number => stages.find((each) => each.name === name)?.flops ?? 0;
    return [
      {
        told: "The inner layer is four times as wide.",
        here:
          `Here ${figure(net.inner)} for a row of ${figure(net.width)}: ${figure(net.inner / net.width)} times.` +
          (net.kind === "plain" ? "" : " With a gate there are three matrices, not two, so each is narrower."),
      },
      {
        told: "A fact sits in a neuron.",
        here: `In layer ${net.layer}, ${net.half} of ${figure(net.inner)} units make half of the effect on ${quoted(net.text)}; ${share(net.near_zero)} are next to silent.`,
      },
      {
        told: "Attention is the transformer.",
        here: `${share(of("mlp") / (of("mlp") + of("attention")))} of the layers' operations in this answer are feed-forward.`,
        from: "arithmetic",
      },
    ];
  },
  lever: {
    label: "What units push, in layer",
    kind: "number",
    value: "0",
    least: 0,
    async run(reach, value) {
      const net = await reach.see("feedforward", { layer: Number(value), position: reach.position });
      const gates = net.kind === "plain" ? "" : ` Its gate lets ${figure(net.gate.at(0))} through.`;
      return {
        said: `Unit ${figure(net.units.at(0))} acts most and pushes ${quoted(net.pushed[0]?.[0] ?? "")}.${gates}`,
        bars: net.pushed.map((words, at) => bar(words[0] ?? "", net.added.at(at))),
        view: { view: "feedforward", layer: net.layer, position: reach.position },
      };
    },
  },
  async question(reach) {
    const { texts, num_prompt } = await reach.see("tokens");
    return {
      text: `Read out halfway up the layers, would ${quoted(texts[num_prompt] ?? "")} be the likeliest already?`,
      choices: ["yes", "no"],
    };
  },
  async answer(reach) {
    const { num_prompt } = await reach.see("tokens");
    const lens = await reach.see("lens", { position: num_prompt - 1 });
    const last = lens.positions.length - 1;
    const middle = lens.layers.findIndex((each) => each + 1 >= lens.num_layers / 2);
    const rank = lens.ranks.at(middle, last);
    return {
      right: rank === 1 ? "yes" : "no",
      said: `After layer ${lens.layers[middle]} it is number ${figure(rank)}, at the end number ${figure(lens.ranks.at(lens.layers.length - 1, last))}. Its share by layer:`,
      bars: lens.layers.map((layer, at) => {
        const value = lens.choice_probabilities.at(at, last);
        return { ...bar(`layer ${layer}`, value, share(value)), isOwn: at === middle };
      }),
    };
  },
};
