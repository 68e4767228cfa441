// What a picture says to somebody who has never seen a model: everyday words, and one number a sentence.
import { figure, seconds, share } from "./numbers";
import { isHead, type Payloads } from "./payloads";

type Makers = { [Name in keyof Payloads]?: (values: Payloads[Name]) => string };

const quoted = (text: string): string => `\u201c${text.replaceAll("\u00b7", " ").trim() || text}\u201d`;

const MAKERS: Makers = {
  characters: (values) => `${figure(values.num_characters)} characters were sent, most of them not typed by you. Each is a number; nothing is understood yet.`,
  tokens: (values) => `Question and answer are ${figure(values.texts.length)} pieces, called tokens. The model sees the number of each piece, not its letters.`,
  embeddings: (values) => {
    const near = values.neighbours[0];
    return (
      `${quoted(values.text)} becomes a row of ${values.width} numbers, copied out of a table.` +
      (near ? ` The row that is most like it is that of ${quoted(near.text)}.` : "")
    );
  },
  positions: (values) =>
    values.kind === "rotary"
      ? `${quoted(values.text)} is marked with its place by ${values.inverse.length} hands of clocks. When it meets another word, only the distance between them counts.`
      : "",
  attention: (values) => {
    if (isHead(values)) return `This head brings ${quoted(values.text)} something of ${quoted(values.top_texts[0] ?? "")}: ${share(values.top_weights.at(0))} of all that it brings.`;
    const first = values.first.list().filter((each) => each >= 0.5).length;
    return `${figure(values.entropy.data.length)} heads look back at earlier words. ${figure(first)} of them look mostly at the very first one, which is where a head looks when it needs nothing.`;
  },
  arithmetic: (values) => `${quoted(values.text)} is compared with ${values.position ? `${figure(values.position + 1)} words, itself among them` : "itself alone"}, and takes most from those that match.`,
  feedforward: (values) => `In this layer ${figure(values.inner)} units work on ${quoted(values.text)}. ${figure(values.half)} of them do half of the work.`,
  residual: (values) => {
    const added = values.mlp.list();
    return `Each of ${added.length} layers adds something to the row of ${quoted(values.text)}, and none replaces it. Layer ${added.indexOf(Math.max(...added))} adds most.`;
  },
  drift: (values) => `The layers turned ${quoted(values.text)} away from the row it began as. ${share(Math.max(0, values.own.list().at(-1) ?? 0))} of the likeness are left.`,
  lens: (values) => {
    const last = values.positions.length - 1;
    const ranks = values.layers.map((_, index) => values.ranks.at(index, last));
    const sure = ranks.findIndex((_, index) => ranks.slice(index).every((each) => each === 1));
    const word = quoted(values.choice_texts[last] ?? "");
    return sure < 0 ? `No layer would have said ${word} first. The dice chose it.` : `From layer ${values.layers[sure]} on the model would say ${word}. Below, it would say other things.`;
  },
  probabilities: (values) => `${quoted(values.chosen.text)} came. Its chance was ${share(values.chosen.probability)}. All ${figure(values.vocab_size)} pieces of the vocabulary had one.`,
  sampling: (values) => {
    const kept = values.effects.at(-1)?.num_kept ?? 0;
    if (!values.draw_effect) return "The likeliest piece is taken. There are no dice.";
    return kept === 1 ? "The settings left one piece alone, so the dice could fall on nothing else." : `The settings left ${figure(kept)} pieces, and the dice chose among them.`;
  },
  pages: (values) => `The model keeps notes on ${figure(values.num_tokens)} tokens, so that nothing is computed twice. They saved ${share(1 - values.flops / values.without_flops)} of the work.`,
  timeline: (values) => `The first word came after ${seconds(values.first_token)}. For every piece all ${values.num_layers} layers were passed once.`,
  cost: (values) => {
    const [prefill, decode] = ["prefill", "decode"].map((name) => values.modes.find((each) => each.name === name));
    const all = `The machine worked ${seconds(values.seconds)} on this answer.`;
    if (!prefill?.num_tokens || !decode?.num_tokens) return all;
    const times = decode.seconds / decode.num_tokens / (prefill.seconds / prefill.num_tokens);
    return times > 1.05 ? `${all} Writing a piece took ${figure(times, 2)} times as long as reading one.` : all;
  },
};

/** The same in everyday words; empty where the engineer's sentence is as good. */
export function plainFindingOf<Name extends keyof Payloads>(view: Name, values: Payloads[Name]): string {
  return MAKERS[view]?.(values) ?? "";
}
