// Where a router sent one token: in each layer the chosen experts with their weights.
import type { Experts } from "./payloads";

export interface Stop {
  layer: number; // of the model
  chosen: { expert: number; weight: number }[]; // the best first
}

/** The way of one of the told tokens through all layers with experts, from the first layer up. */
export const wayThrough = (values: Experts, token: number): Stop[] =>
  values.layers.map((layer, row) => ({
    layer,
    chosen: Array.from({ length: values.num_chosen }, (_, place) => ({ expert: values.ids.at(token, row, place), weight: values.weights.at(token, row, place) })),
  }));

/** At most so many of some stops, evenly: the first and the last are among them. */
export function someOf<Each>(all: readonly Each[], most: number): Each[] {
  if (all.length <= most) return [...all];
  return Array.from({ length: most }, (_, index) => all[Math.round((index * (all.length - 1)) / (most - 1))]!);
}
