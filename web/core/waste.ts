// What an answer computes with a cache and without: each token once, or everything before it again at each step.

/** Tokens that went through the model up to a token of the answer, which is counted from 0. */
export function computed(numPrompt: number, step: number): { withCache: number; without: number } {
  const passes = step + 1;
  return { withCache: numPrompt + step, without: passes * numPrompt + (passes * (passes - 1)) / 2 };
}
