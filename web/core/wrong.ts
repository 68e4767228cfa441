// What goes wrong at a station, and what to do about it; with this run's numbers where they tell.
import { spreadOf } from "./lab";
import { bytes, figure, seconds, share } from "./numbers";
import { isHead, type Payloads } from "./payloads";

/** A fault of this stage. here: what this very run has of it; null where it cannot be told. */
export interface Fault {
  what: string;
  remedy: string;
  here: string | null;
}

type Maker<Name extends keyof Payloads> = (values: Payloads[Name]) => Fault[];

const fault = (what: string, remedy: string, here: string | null = null): Fault => ({ what, remedy, here });

const MAKERS: { [Name in keyof Payloads]: Maker<Name> } = {
  characters: (values) => [
    fault(
      "Signs that look alike, or that nobody sees, are other numbers: a Cyrillic a, a no-break space, a joiner.",
      "Look at the code points when a word is not recognised; normalise text before it is sent.",
      values.num_characters === values.num_graphemes
        ? "here each sign is one character"
        : `here ${values.num_graphemes} signs are ${values.num_characters} characters`,
    ),
  ],
  template: (values) => [
    fault(
      "A template that is not the model's own, or a prompt without any, gives worse answers and no error.",
      "Read this text once for each model. It is all that the model is told.",
      `here ${values.num_control} of ${values.num_tokens} ids are control tokens`,
    ),
  ],
  tokens: (values) => {
    const [words] = values.num_words;
    const rate = words ? `${figure(values.num_prompt / words, 2)} tokens a word in this prompt` : null;
    return [
      fault("Letters are hidden inside ids: counting or reversing them is remembering, not looking.", "Write the letters apart, or let a program count.", rate),
      fault("Rare words, code and most languages take more tokens, so they cost more and fill the context sooner.", "Compare models on your own text, not on English prose."),
    ];
  },
  merges: () => [
    fault("Words are cut where counts say so, not where meaning does: two spellings of one word can share no token.", "Try both spellings here; the model had to learn each."),
  ],
  embeddings: (values) => [
    fault(
      "Cosines are read as meaning. All rows have something in common, so the mean over all is not 0.",
      "Compare with that mean before you call something near.",
      `mean cosine with all rows ${figure(values.mean_cosine)}`,
    ),
  ],
  positions: (values) => [
    fault(
      "Past the longest text of its training a model meets angles that it never saw.",
      "Use a model, or a scaling, made for the length; test it there.",
      `made for ${figure(values.max_length)} positions; ${values.num_slow} pairs never turn fully within them`,
    ),
  ],
  attention: (values) => {
    const sink = isHead(values)
      ? `${share(values.hidden)} of the weight is outside the keys listed`
      : `${figure(values.first.list().filter((each) => each >= 0.5).length)} of ${figure(values.first.data.length)} heads mostly look at the first token`;
    return [
      fault("Weights are taken for reasons. A head that looks at a word need not use it.", "Take the head away and ask again: cutaway compare --change ablate=LAYER.HEAD.", sink),
    ];
  },
  arithmetic: (values) => [
    fault(
      "Without the division by the root of the size, softmax saturates: one key gets all, and nothing else is heard.",
      "Compare both entropies.",
      `${figure(values.entropy)} bits with it, ${figure(values.entropy_unscaled)} without`,
    ),
  ],
  feedforward: (values) => [
    fault(
      "A unit is named after the tokens it pushes. Most do several things, and most facts sit in many units.",
      "Look at the same unit on other texts before you name it.",
      `${values.half} units make half of the effect here`,
    ),
  ],
  experts: (values) => [
    fault("Some experts get all tokens and some none; then the large model works like a small one.", "Look at the load over a long text.", values.num_experts ? null : "this model has none"),
  ],
  weights: (values) => [
    fault(
      "Fewer bits round every number. A few large ones set the scale for all of their group.",
      "Judge by perplexity and divergence, not by bits: cutaway models quantize measures both.",
      `from ${figure(values.least)} to ${figure(values.most)}, deviation ${figure(values.deviation)}`,
    ),
  ],
  residual: (values) => {
    const [first, last] = [values.stream.at(0), values.stream.list().at(-1) ?? 0];
    return [fault("A few numbers grow huge, and low precision then loses what is small beside them.", "Keep the stream in 16 bits or more.", `norm ${figure(first)} after the first layer, ${figure(last)} after the last`)];
  },
  drift: () => [
    fault("The first row of a word is taken for its meaning. Behind a few layers little of it is left.", "Compare streams, not rows, when context matters."),
  ],
  lens: (values) => [
    fault("Early layers do not speak the language of the output; what the lens reads there can be noise.", "Trust the last third of the layers, and the trend more than a cell.", `${values.layers.length} of ${values.num_layers} layers are shown`),
  ],
  logits: (values) => [
    fault(
      "A logit is read as a score of its own. The same number added to all of a row changes nothing.",
      "Compare differences within a row, never numbers of two rows.",
      `${figure(spreadOf(values.logits.data).mean)} on average here`,
    ),
  ],
  probabilities: (values) => [
    fault(
      "A high probability is taken for truth. It tells what usually follows in text, nothing else.",
      "Look where the runner-up is near: there the answer hangs on chance.",
      values.top[1] ? `runner-up here ${share(values.top[1].probability)}` : null,
    ),
  ],
  sampling: (values) => [
    fault(
      "One unlikely draw, and all that follows builds on it: nothing is taken back.",
      "Lower the temperature or cut the tail; for facts take the likeliest.",
      `${figure(values.effects.at(-1)?.num_kept)} tokens could come here`,
    ),
  ],
  grammar: (values) => [
    fault("A form that allows only what the model finds unlikely gives well-formed nonsense.", "Say in the prompt what the form will be.", values.row ? `allowed mass ${share(values.row.allowed_mass)}` : "no form was asked for"),
  ],
  speculation: (values) => [
    fault(
      "A wrong guess costs time: the step that checks it is longer than a plain one.",
      "Guess where a text repeats itself; Cutaway stops guessing where it does not pay.",
      values.num_guessed ? `${figure(values.num_guessed - values.num_accepted)} of ${figure(values.num_guessed)} were for nothing` : null,
    ),
  ],
  detokenization: (values) => [
    fault("Tokens printed one by one break characters that span two, and show text that a stop string then forbids.", "Hold bytes back until they are whole; Cutaway does.", `something waited after ${values.num_held} tokens`),
  ],
  pages: (values) => [
    fault("A prompt that differs early shares nothing: a date or a name at its beginning makes all of it anew.", "Put what changes at the end.", `${values.miss.num_hit} of ${values.num_prompt} prompt tokens were found; ${values.miss_reason}`),
    fault("Each token of context keeps its bytes for as long as the conversation lasts.", "Shorten, summarise, or choose a model with fewer key and value heads.", `${bytes(values.token_bytes)} a token`),
  ],
  timeline: (values) => [
    fault("An average hides pauses: the reader sees the slowest gap.", "Look at the 99th percentile, and at who else was in that step.", `gaps of ${seconds(values.gap_p50)} in the middle, ${seconds(values.gap_p99)} at the 99th percentile`),
  ],
  cost: (values) => {
    const decode = values.modes.find((each) => each.name === "decode");
    return [
      fault(
        "One answer alone reads all weights for each token, and the machine waits for memory.",
        "Answer several at once: they share each reading.",
        decode ? `${figure(decode.intensity)} operations a byte here` : null,
      ),
    ];
  },
};

/** What can go wrong where a view looks. */
export function faultsOf<Name extends keyof Payloads>(view: Name, values: Payloads[Name]): Fault[] {
  return MAKERS[view](values);
}
