// Runs of our own models, recorded by tools/recorded.py: what is played where the loaded model has none of it.
import { Tensor } from "./frame";
import type { Experts, Guess, VerifiedStep } from "./payloads";
import told from "./recorded.json";

const NOT_TOLD = { token_id: -1, probability: null, chance: null, u: null, q: null, residual: null };

/** An answer with guesses: of which model, to what, and its steps. */
export const GUESSED: { model: string; asked: string; steps: VerifiedStep[] } = {
  ...told.guessed,
  steps: told.guessed.steps.map((step) => ({ ...step, guesses: step.guesses.map((guess) => ({ ...NOT_TOLD, ...guess }) as Guess) })),
};

const { ids, weights, tokens, layers, num_experts, num_chosen } = told.routed;
const shape = [tokens.length, layers.length, num_chosen];

/** How many tokens went to each expert, layer by layer. */
const load = new Float32Array(layers.length * num_experts);
for (const token of ids) token.forEach((chosen, layer) => chosen.forEach((expert) => (load[layer * num_experts + expert]! += 1)));

/** Letters of a question, and the experts that each went to, in a small model with random weights. */
export const ROUTED: Experts = {
  ...told.routed,
  ids: new Tensor(Float32Array.from(ids.flat(2)), shape),
  weights: new Tensor(Float32Array.from(weights.flat(2)), shape),
  load: new Tensor(load, [layers.length, num_experts]),
  ...{ position: tokens.length - 1, start: 0, counted_from: 0, num_counted: tokens.length },
};
