// A film is scenes on one clock: which one a second falls into, and when each stands whole.

export interface Scene {
  readonly id: string;
  readonly name: string;
  readonly seconds: number;
}

/** How long all scenes last together. */
export const totalOf = (scenes: readonly Scene[]): number => scenes.reduce((sum, each) => sum + each.seconds, 0);

/** When a scene begins, in seconds. */
export const beginOf = (scenes: readonly Scene[], index: number): number => totalOf(scenes.slice(0, index));

/** When a scene stands whole: what is shown of it where nothing moves. */
export function stillOf(scenes: readonly Scene[], index: number): number {
  const at = Math.max(0, Math.min(scenes.length - 1, index));
  return beginOf(scenes, at) + scenes[at]!.seconds - 0.45;
}

/** The scene that a second falls into. */
export const sceneAt = (scenes: readonly Scene[], second: number): number =>
  Math.max(0, scenes.findLastIndex((_, index) => beginOf(scenes, index) <= second + 1e-9));
