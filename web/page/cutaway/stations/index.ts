// Which component draws which view; what is not here is drawn from its field types.
import type { Component } from "svelte";

import type { Look } from "../look.svelte";
import Arithmetic from "./Arithmetic.svelte";
import Attention from "./Attention.svelte";
import Characters from "./Characters.svelte";
import Cost from "./Cost.svelte";
import Detokenization from "./Detokenization.svelte";
import Drift from "./Drift.svelte";
import Embeddings from "./Embeddings.svelte";
import Experts from "./Experts.svelte";
import FeedForward from "./FeedForward.svelte";
import Grammar from "./Grammar.svelte";
import Lens from "./Lens.svelte";
import Logits from "./Logits.svelte";
import Merges from "./Merges.svelte";
import Pages from "./Pages.svelte";
import Positions from "./Positions.svelte";
import Probabilities from "./Probabilities.svelte";
import Residual from "./Residual.svelte";
import Sampling from "./Sampling.svelte";
import Speculation from "./Speculation.svelte";
import Template from "./Template.svelte";
import Timeline from "./Timeline.svelte";
import Tokens from "./Tokens.svelte";
import Weights from "./Weights.svelte";

// Each knows the values of its own view; the name that chose it vouches for them.
export const PICTURES = {
  characters: Characters,
  template: Template,
  tokens: Tokens,
  merges: Merges,
  embeddings: Embeddings,
  positions: Positions,
  attention: Attention,
  arithmetic: Arithmetic,
  feedforward: FeedForward,
  experts: Experts,
  weights: Weights,
  residual: Residual,
  drift: Drift,
  lens: Lens,
  logits: Logits,
  probabilities: Probabilities,
  sampling: Sampling,
  grammar: Grammar,
  speculation: Speculation,
  detokenization: Detokenization,
  pages: Pages,
  timeline: Timeline,
  cost: Cost,
} as unknown as Record<string, Component<{ values: unknown; look: Look }> | undefined>;
