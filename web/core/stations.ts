// The stations of the pipeline in their order, and how they stand on the map.

/** How a station is asked: places of the selection that its view takes. */
export interface Station {
  view: string;
  name: string; // on the map
  group: string;
  takes: readonly ("position" | "token" | "layer" | "head" | "text")[];
  isPlain?: true; // for every reader; the others are for engineers
  isMore?: true; // layer and head are asked for only when they were chosen
}

/** Groups from left to right, each a stretch of the spine. */
export const GROUPS = [
  { id: "text", name: "Text" },
  { id: "tokens", name: "Tokens" },
  { id: "embedding", name: "Vectors" },
  { id: "blocks", name: "Layers" },
  { id: "logits", name: "Logits" },
  { id: "sampling", name: "Choice" },
  { id: "stream", name: "Out" },
  { id: "engine", name: "Engine" },
] as const;

export const STATIONS: readonly Station[] = [
  { view: "characters", name: "Characters", group: "text", takes: ["text"], isPlain: true },
  { view: "template", name: "Template", group: "text", takes: [] },
  { view: "tokens", name: "Tokens", group: "tokens", takes: ["text"], isPlain: true },
  { view: "merges", name: "Merges", group: "tokens", takes: ["text"], isPlain: true },
  { view: "embeddings", name: "Embedding", group: "embedding", takes: ["position", "text"], isPlain: true },
  { view: "positions", name: "Position", group: "embedding", takes: ["position", "layer", "head"] },
  { view: "attention", name: "Attention", group: "blocks", takes: ["position", "layer", "head"], isMore: true, isPlain: true },
  { view: "arithmetic", name: "Arithmetic", group: "blocks", takes: ["position", "layer", "head"], isPlain: true },
  { view: "feedforward", name: "Feed-forward", group: "blocks", takes: ["position", "layer"], isPlain: true },
  { view: "experts", name: "Experts", group: "blocks", takes: ["position", "layer"], isMore: true, isPlain: true },
  { view: "residual", name: "Ledger", group: "blocks", takes: ["position"], isPlain: true },
  { view: "drift", name: "Drift", group: "blocks", takes: ["position"] },
  { view: "weights", name: "Weights", group: "blocks", takes: ["layer", "text"] },
  { view: "lens", name: "Lens", group: "logits", takes: ["position", "layer"], isMore: true, isPlain: true },
  { view: "logits", name: "Logits", group: "logits", takes: ["token"] },
  { view: "probabilities", name: "Chances", group: "logits", takes: ["token", "text"], isPlain: true },
  { view: "sampling", name: "Sampling", group: "sampling", takes: ["token"], isPlain: true },
  { view: "grammar", name: "Grammar", group: "sampling", takes: ["token"] },
  { view: "speculation", name: "Guesses", group: "sampling", takes: ["token"], isPlain: true },
  { view: "detokenization", name: "To text", group: "stream", takes: ["token"], isPlain: true },
  { view: "pages", name: "Pages", group: "engine", takes: [], isPlain: true },
  { view: "timeline", name: "Timeline", group: "engine", takes: [] },
  { view: "cost", name: "Cost", group: "engine", takes: [], isPlain: true },
];

export const FIRST = "probabilities"; // what a token opens with

/** The station of a view; of one that this page does not know, a station that asks for nothing. */
export function stationOf(view: string): Station {
  return STATIONS.find((each) => each.view === view) ?? { view, name: view, group: "engine", takes: [] };
}
