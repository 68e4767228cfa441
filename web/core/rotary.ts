// How fast pairs turn, and how scalings slow them: the twin of src/cutaway/blocks/positions.py.

export const SCALINGS = [
  { id: "linear", name: "Linear", does: "every pair turns slower by the factor; neighbours look more alike" },
  { id: "dynamic", name: "Dynamic", does: "the base grows with the length of the text, so slow pairs give way and fast ones hardly" },
  { id: "yarn", name: "YaRN", does: "fast pairs stay, slow ones are divided by the factor, a ramp between" },
  { id: "llama3", name: "Llama 3", does: "pairs that turn over 4 times within the trained length stay, below once they are divided" },
] as const;

export type Scaling = (typeof SCALINGS)[number]["id"];

/** size: entries that turn.   trained: tokens of the longest text of the training.   length: of the text now. */
export interface Turning {
  size: number;
  base: number;
  factor: number;
  trained: number;
  length: number;
}

/** Radians a position of each pair, as they were trained. */
export function plainSpeeds(size: number, base: number): number[] {
  return Array.from({ length: size / 2 }, (_, pair) => base ** ((-2 * pair) / size));
}

/** Radians a position of each pair under a scaling. Sources stand beside the Python. */
export function speedsOf(scaling: Scaling, turning: Turning): number[] {
  const { size, base, factor, trained, length } = turning;
  const plain = plainSpeeds(size, base);
  if (scaling === "linear") return plain.map((speed) => speed / factor);
  if (scaling === "dynamic") {
    const stretch = (factor * Math.max(length, trained)) / trained - (factor - 1);
    return plainSpeeds(size, base * stretch ** (size / (size - 2)));
  }
  const kept = scaling === "yarn" ? ramp(size, base, trained) : plain.map((speed) => within(((trained * speed) / (2 * Math.PI) - 1) / 3));
  return plain.map((speed, pair) => speed * kept[pair]! + (speed / factor) * (1 - kept[pair]!));
}

/** Of each pair, how much it keeps of its speed under YaRN. */
function ramp(size: number, base: number, trained: number): number[] {
  const turningSo = (times: number): number => (size * Math.log(trained / (times * 2 * Math.PI))) / (2 * Math.log(base));
  const low = Math.max(Math.floor(turningSo(32)), 0);
  const high = Math.min(Math.ceil(turningSo(1)), size - 1);
  const wide = low === high ? 0.001 : high - low;
  return Array.from({ length: size / 2 }, (_, pair) => 1 - within((pair - low) / wide));
}

const within = (value: number): number => Math.min(1, Math.max(0, value));

/** What the first transformer added to the embedding at a position: sines, then cosines. */
export function wave(position: number, width: number, base = 10_000): number[] {
  const turned = plainSpeeds(width, base).map((speed) => position * speed);
  return [...turned.map(Math.sin), ...turned.map(Math.cos)];
}
