// The one number of a station that stands on the map.
import { bytes, figure, seconds, share } from "./numbers";
import { isHead, type Payloads } from "./payloads";

type Maker<Name extends keyof Payloads> = (values: Payloads[Name]) => string;

const MAKERS: { [Name in keyof Payloads]: Maker<Name> } = {
  characters: (values) => `${figure(values.num_characters)} chars`,
  template: (values) => `${values.num_control} control`,
  tokens: (values) => `${values.texts.length} ids`,
  merges: (values) => `${values.pieces.reduce((sum, each) => sum + each.steps.length, 0)} steps`,
  embeddings: (values) => `${values.width} wide`,
  positions: (values) => values.kind,
  attention: (values) => (isHead(values) ? `L${values.layer} \u00b7 H${values.head}` : `${values.entropy.data.length} heads`),
  arithmetic: (values) => `${figure(values.entropy, 2)} bits`,
  feedforward: (values) => `${values.half} of ${figure(values.inner)}`,
  experts: (values) => (values.num_experts ? `${values.num_chosen} of ${values.num_experts}` : "none"),
  weights: (values) => `${figure(values.bits_per_number, 2)} bits`,
  residual: (values) => `norm ${figure(values.stream.list().at(-1), 2)}`,
  drift: (values) => `cos ${figure(values.own.list().at(-1), 2)}`,
  lens: (values) => `${values.layers.length} layers`,
  logits: (values) => `${figure(values.logits.length)}`,
  probabilities: (values) => share(values.chosen.probability),
  sampling: (values) => `${figure(values.effects.at(-1)?.num_kept)} left`,
  grammar: (values) => values.kind ?? "free",
  speculation: (values) => (values.num_guessed ? `${figure(values.num_accepted)} of ${figure(values.num_guessed)}` : "off"),
  detokenization: (values) => `${figure(values.num_bytes)} B`,
  pages: (values) => bytes(values.kept_bytes),
  timeline: (values) => seconds(values.total),
  cost: (values) => seconds(values.seconds),
};

/** What stands below a station's name. */
export function headlineOf<Name extends keyof Payloads>(view: Name, values: Payloads[Name]): string {
  return MAKERS[view](values);
}
