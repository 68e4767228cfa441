// What a picture says, in one sentence with its numbers: the caption of every figure.
import { spreadOf } from "./lab";
import { bytes, figure, operations, seconds, share } from "./numbers";
import { isHead, type Payloads } from "./payloads";

type Maker<Name extends keyof Payloads> = (values: Payloads[Name]) => string;

const quoted = (text: string): string => `\u201c${text}\u201d`;
const many = (count: number, one: string, more = `${one}s`): string =>
  `${figure(count)} ${count === 1 ? one : more}`;

/** How unsure a row is. choices: so many equally likely ones would leave one as unsure. */
const hesitation = (choices: number): string =>
  choices < 1.1 ? "It hardly hesitated." : `It hesitated as between ${figure(choices, 2)} equally likely tokens.`;

const MAKERS: { [Name in keyof Payloads]: Maker<Name> } = {
  characters: (values) =>
    `${many(values.num_characters, "character")} in ${many(values.num_bytes, "byte")}` +
    (values.num_graphemes === values.num_characters ? "" : `; on a screen they are ${many(values.num_graphemes, "sign")}`) +
    ". Nothing is understood yet: each character is a number.",
  template: (values) =>
    `The model gets ${many(values.num_tokens, "id")}, ${values.num_control} of them control tokens: no roles, no ` +
    "names, no messages." + (values.num_control ? " Code outside the model wrote this text around yours." : ""),
  tokens: (values) => {
    const size = values.num_bytes.reduce((sum, each) => sum + each, 0);
    const letters = values.num_letters.reduce((sum, each) => sum + each, 0);
    return (
      `${many(values.texts.length, "token")}, ${figure(size / values.texts.length, 2)} bytes each. The model sees the ` +
      `ids; ${many(letters, "letter")} are hidden inside them.`
    );
  },
  merges: (values) => {
    const piece = values.pieces[0];
    if (!piece) return "No piece of this text was split: each is a token of the vocabulary as it stands.";
    return (
      `${quoted(piece.text)} became ${many(piece.texts.length, "token")} in ${many(piece.steps.length, "merge")}. ` +
      "The neighbours that were met most often in the text the vocabulary was learned from go first; no grammar."
    );
  },
  embeddings: (values) => {
    const near = values.neighbours[0];
    return (
      `${quoted(values.text)} reads row ${values.token_ids.join(", ")} of a table of ${figure(values.vocab_size)} rows: ` +
      `${values.width} numbers.` +
      (near ? ` Nearest of all rows is ${quoted(near.text)}, cosine ${figure(near.cosine)}.` : "")
    );
  },
  positions: (values) => {
    if (values.kind === "none") return `Layer ${values.layer} knows no positions.`;
    if (values.kind !== "rotary") {
      return `A ${values.kind} vector of norm ${figure(values.added_norm)} is added to the embedding.`;
    }
    return (
      `Nothing is added: ${values.inverse.length} pairs of numbers turn. The score of ${quoted(values.text)} and ` +
      `${quoted(values.key_text)} is ${figure(values.score)}, and still ${figure(values.shifted.list().at(-1))} with both ` +
      `${figure(values.shifts.at(-1))} tokens further on: only their distance counts.`
    );
  },
  attention: (values) => {
    if (!isHead(values)) {
      const count = values.entropy.data.length;
      const first = values.first.list().filter((each) => each >= 0.5).length;
      return (
        `${many(count, "head")} in ${values.layers.length} layers. ${many(first, "head gives", "heads give")} most of ` +
        "the weight to the first token: there a head looks when it needs nothing. Choose one to see what it looks at."
      );
    }
    const [weight, text] = [values.top_weights.at(0), values.top_texts[0] ?? ""];
    return (
      `Layer ${values.layer}, head ${values.head}: ${share(weight)} of what ${quoted(values.text)} takes comes from ` +
      `${quoted(text)}. Weight shows where a head looks, not why an answer came.`
    );
  },
  arithmetic: (values) =>
    `Layer ${values.layer}, head ${values.head}: the query of ${quoted(values.text)} meets ` +
    `${many(values.position + 1, "key")}. ` +
    (values.is_equal
      ? "The weighted sum of their values is what the engine mixed, to rounding."
      : `The weighted sum differs from what the engine mixed by ${figure(values.difference)}.`),
  feedforward: (values) =>
    `Layer ${values.layer}: of ${figure(values.inner)} units, ${values.half} make half of the effect on ` +
    `${quoted(values.text)}; ${share(values.near_zero)} are next to silent.`,
  experts: (values) =>
    values.num_experts
      ? `Each token passes ${values.num_chosen} of ${values.num_experts} experts in ${values.layers.length} layers.`
      : `No layer of ${values.num_layers} has experts: each token passes every parameter.`,
  weights: (values) =>
    `${figure(values.rows)} \u00d7 ${figure(values.columns)} numbers kept in ${bytes(values.num_bytes)}: ` +
    `${figure(values.bits_per_number)} bits each, as ${values.stored}.`,
  residual: (values) => {
    const added = values.mlp.list();
    const layer = added.indexOf(Math.max(...added));
    return (
      `The stream of ${quoted(values.text)} begins with norm ${figure(values.embedding)} and ends with ` +
      `${figure(values.stream.list().at(-1))}. No layer replaces it, each adds; the feed-forward of layer ${layer} adds most.`
    );
  },
  drift: (values) =>
    `After the last layer ${quoted(values.text)} has cosine ${figure(values.own.list().at(-1))} with the row it began as` +
    (values.between.length
      ? `, and ${figure(values.between.list().at(-1))} with the same token elsewhere: context moved them apart.`
      : ": context has moved it."),
  lens: (values) => {
    const last = values.positions.length - 1;
    const ranks = values.layers.map((_, index) => values.ranks.at(index, last));
    const sure = ranks.findIndex((_, index) => ranks.slice(index).every((each) => each === 1));
    const word = quoted(values.choice_texts[last] ?? "");
    return sure < 0
      ? `No layer looked at here would have put ${word} first; it was drawn all the same.`
      : `From layer ${values.layers[sure]} on the stream says ${word}; before, it says other things.`;
  },
  logits: (values) => {
    const { least, most } = spreadOf(values.logits.data);
    return (
      `${figure(values.logits.length)} numbers, one for each entry of the vocabulary, from ${figure(least)} to ${figure(most)}; ` +
      `the largest is that of ${quoted(values.top_texts[0] ?? "")}. An entry with one more is 2.72 times as likely.`
    );
  },
  probabilities: (values) =>
    `${quoted(values.chosen.text)} came with ${share(values.chosen.probability)}, choice ${figure(values.chosen.rank)} of ` +
    `${figure(values.vocab_size)}. ${hesitation(2 ** values.entropy)}`,
  sampling: (values) => {
    const [last, draw] = [values.effects.at(-1), values.draw_effect];
    const kept = `${many(last?.num_kept ?? 0, "token")} could still come after all filters. `;
    if (!draw) return `${kept}The likeliest is taken: no dice.`;
    return `${kept}The random number ${figure(draw.u / 2 ** 32)} of seed ${draw.seed} ${
      values.is_same
        ? "gives the recorded token again."
        : values.is_guess
          ? "was not asked: a guess was verified by rejection."
          : "now gives another token than recorded."
    }`;
  },
  grammar: (values) =>
    values.kind === null
      ? "No form was asked for: every token of the vocabulary was allowed at each step."
      : values.row
        ? `The ${values.kind} left ${share(values.row.allowed_mass)} of the probability at this step.`
        : `A ${values.kind} decided which tokens could come.`,
  speculation: (values) =>
    values.num_guessed
      ? `${figure(values.num_tokens)} tokens took ${many(values.num_steps, "step")}: ${figure(values.num_accepted)} of ` +
        `${many(values.num_guessed, "guess", "guesses")} stood. The text is the same as without guesses.`
      : "Nothing was guessed ahead: each token took a step of its own.",
  detokenization: (values) =>
    `${many(values.num_tokens, "token")} gave ${many(values.num_bytes, "byte")}. ` +
    (values.num_held
      ? `After ${values.num_held} of them something had to wait until a character was whole or a stop string ruled out.`
      : "Each could be shown as soon as it came: no character was cut in two, no stop string had begun."),
  pages: (values) =>
    `${many(values.num_tokens, "token")} keep ${bytes(values.kept_bytes)} in pages of ${values.page_size}. With them the ` +
    `answer took ${operations(values.flops)}; without, it would have taken ${operations(values.without_flops)}.`,
  timeline: (values) =>
    `First token after ${seconds(values.first_token)}, the end after ${seconds(values.total)}: ` +
    `${many(values.steps.length, "pass", "passes")} through ${values.num_layers} layers.`,
  cost: (values) => {
    const [prefill, decode] = ["prefill", "decode"].map((name) => values.modes.find((each) => each.name === name));
    const all = `${seconds(values.seconds)} of the engine's time. `;
    if (!prefill?.num_tokens || !decode?.num_tokens) return all;
    return `${all}A token of the prompt took ${seconds(prefill.seconds / prefill.num_tokens)}, one of the answer ${seconds(
      decode.seconds / decode.num_tokens,
    )}: each of those reads all weights for itself.`;
  },
};

/** What a view found, in words. */
export function findingOf<Name extends keyof Payloads>(view: Name, values: Payloads[Name]): string {
  return MAKERS[view](values);
}

/** Whether this page knows a view's values. */
export const isKnown = (view: string): view is keyof Payloads => view in MAKERS;
