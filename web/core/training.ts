// Runs of training: what they wrote down as curves, few enough points to draw, and what each number says.

/** One update of a run. norms: of the gradient, by part of the model; null where a number was none. */
export interface Update {
  update: number;
  loss: number | null;
  norm: number | null;
  rate: number;
  seconds: number;
  figures?: Record<string, number | null>;
  norms: Record<string, number | null>;
  measured: Record<string, number | null>;
  samples?: [string, string][]; // prompts and what the model wrote behind them
  weight?: Record<string, number | null>; // one weight's way: before, gradient, mean, square, after
}

/** What a run is and how far it came. fault: why it cannot be read. */
export interface Run {
  name: string;
  is_over: boolean;
  idle_seconds: number;
  stage?: string;
  settings?: Record<string, unknown> & { updates?: number };
  device?: string;
  last?: Update | null;
  fault?: string;
}

/** Tokens of a sequence that a run learns from, and whether each is scored. */
export type Example = readonly (readonly [string, boolean])[];

/** A run's head and its rows between two bytes of its record; examples come with the first part. */
export interface RunPart extends Run {
  example?: Example[];
  schema: number;
  start: number;
  end: number;
  size: number;
  rows: Update[];
}

/** Rows known so far, and where the next part begins. */
export interface Followed {
  rows: Update[];
  end: number;
  example?: Example[];
}

/** What is known with one more part: a part that begins at 0 begins anew, as a resumed run writes its record. */
export function join(known: Followed, part: RunPart): Followed {
  const example = part.example ?? known.example ?? [];
  return { rows: part.start === 0 ? part.rows : [...known.rows, ...part.rows], end: part.end, example };
}

/** What a run does now, in words: a run writes after each update, and one that is silent for long was stopped. */
export function stateOf(run: Run): string {
  if (run.fault) return "cannot be read";
  if (run.is_over) return "done";
  const pace = run.last?.seconds ?? 0;
  return run.idle_seconds > Math.max(60, 20 * pace) ? "stopped; the same command goes on" : "running";
}

/** What one prompt became in each run, where more than one wrote to it last. */
export interface SamePrompt {
  prompt: string;
  texts: { run: string; text: string }[];
}

/** The prompts to which runs wrote at their last update, and what; in the order of the runs. */
export function samePrompts(runs: readonly Run[]): SamePrompt[] {
  const found = new Map<string, { run: string; text: string }[]>();
  for (const { name, last } of runs) {
    for (const [prompt, text] of last?.samples ?? []) found.set(prompt, [...(found.get(prompt) ?? []), { run: name, text }]);
  }
  return [...found].flatMap(([prompt, texts]) => (texts.length > 1 ? [{ prompt, texts }] : []));
}

/** How neighbours are marked: tokens of one kind as one text. */
export function stretches(example: Example): { text: string; isScored: boolean }[] {
  const found: { text: string; isScored: boolean }[] = [];
  for (const [text, isScored] of example) {
    const last = found.at(-1);
    if (last?.isScored === isScored) last.text += text;
    else found.push({ text, isScored });
  }
  return found;
}

/** The lesson as the server tells of it: a tiny model that it trains while one looks on. */
export interface Lesson {
  can_start: boolean;
  state: "none" | "running" | "done" | "stopped" | "failed";
  name: string; // how the names of its runs begin
  fault: string;
}

/** Stages of the lesson, in their order, and what they are called here. */
export const STAGES: Readonly<Record<string, string>> = { pretrain: "1 Text", sft: "2 Answers", reward: "3 Reward model", ppo: "4 PPO", dpo: "or DPO" };

/** Runs of one lesson, in the order of its stages. */
export function runsOf(lesson: string, runs: readonly Run[]): Run[] {
  return Object.keys(STAGES).flatMap((stage) => runs.filter((each) => lesson && each.name === `${lesson}-${stage}`));
}

export interface Point {
  x: number;
  y: number;
}

type Part = "figures" | "measured" | "norms" | "weight";

/** The points of one number over the updates, those left out in which it was not told or was none. */
export function seriesOf(rows: readonly Update[], name: string, part: Part | null = null): Point[] {
  return rows.flatMap((row) => {
    const value = part ? row[part]?.[name] : (row as unknown as Record<string, number | null>)[name];
    return typeof value === "number" && Number.isFinite(value) ? [{ x: row.update + 1, y: value }] : [];
  });
}

/** What the model wrote at an update: the last ones first. */
export function samplesOf(rows: readonly Update[]): { update: number; samples: [string, string][] }[] {
  return rows.flatMap((row) => (row.samples?.length ? [{ update: row.update + 1, samples: row.samples }] : [])).reverse();
}

/** One figure against another, update by update, where both are told. */
export function against(rows: readonly Update[], x: string, y: string): Point[] {
  return rows.flatMap(({ figures }) => {
    const [across, up] = [figures?.[x], figures?.[y]];
    return typeof across === "number" && typeof up === "number" ? [{ x: across, y: up }] : [];
  });
}

/** All names under a part of the rows, in the order in which they came. */
export function namesIn(rows: readonly Update[], part: Part): string[] {
  const found = new Set<string>();
  for (const row of rows) for (const name of Object.keys(row[part] ?? {})) found.add(name);
  return [...found];
}

/** At most so many points: of each stretch the least and the greatest, in their order, so that no peak is lost. */
export function thin(points: readonly Point[], most: number): Point[] {
  if (points.length <= most) return [...points];
  const buckets = Math.max(1, Math.floor(most / 2));
  const size = points.length / buckets;
  return Array.from({ length: buckets }, (_, index) => {
    const bucket = points.slice(Math.floor(index * size), Math.floor((index + 1) * size));
    const least = bucket.reduce((a, b) => (b.y < a.y ? b : a));
    const most_ = bucket.reduce((a, b) => (b.y > a.y ? b : a));
    return least === most_ ? [least] : [least, most_].sort((a, b) => a.x - b.x);
  }).flat();
}

/** The mean of so many points around each: what a noisy curve does. */
export function smooth(points: readonly Point[], width: number): Point[] {
  const sums = [0];
  for (const { y } of points) sums.push(sums.at(-1)! + y);
  return points.map(({ x }, at) => {
    const from = Math.max(0, at - width);
    const to = Math.min(points.length, at + width + 1);
    return { x, y: (sums[to]! - sums[from]!) / (to - from) };
  });
}

export interface Extent {
  low: number;
  high: number;
}

/** The least and the greatest of all, never equal, so that something can be drawn between. */
export function extentOf(values: readonly number[]): Extent {
  let [low, high] = [Infinity, -Infinity];
  for (const value of values) [low, high] = [Math.min(low, value), Math.max(high, value)];
  if (!Number.isFinite(low)) return { low: 0, high: 1 };
  // Of numbers that differ in their last bits alone no mark would tell one from another.
  const slack = high - low <= 1e-9 * Math.max(Math.abs(low), Math.abs(high)) ? Math.abs(low) * 0.05 || 1 : 0;
  return { low: low - slack, high: high + slack };
}

/** An SVG path of points in a box of that size, the greatest at its top. */
export function pathOf(points: readonly Point[], x: Extent, y: Extent, width: number, height: number): string {
  const place = (value: number, { low, high }: Extent, size: number): number => (size * (value - low)) / (high - low);
  const at = (point: Point): string => `${place(point.x, x, width).toFixed(1)} ${(height - place(point.y, y, height)).toFixed(1)}`;
  return points.map((point, index) => `${index ? "L" : "M"}${at(point)}`).join("");
}

/** Round numbers between the ends, about as many as asked for. */
export function ticksOf({ low, high }: Extent, about: number): number[] {
  const rough = (high - low) / Math.max(1, about);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = ([1, 2, 5, 10].find((each) => each * power >= rough) ?? 10) * power;
  const first = Math.ceil(low / step - 1e-9);
  const count = Math.floor(high / step + 1e-9) - first + 1;
  return Array.from({ length: Math.max(0, count) }, (_, index) => Number(((first + index) * step).toPrecision(12)));
}

/** A table of parts over stretches of updates, each the mean norm there, for a picture of at most so many columns. */
export function heatOf(rows: readonly Update[], most: number): { names: string[]; columns: { from: number; to: number; values: (number | null)[] }[] } {
  const names = namesIn(rows, "norms");
  const size = Math.max(1, Math.ceil(rows.length / most));
  const columns = Array.from({ length: Math.ceil(rows.length / size) }, (_, index) => {
    const stretch = rows.slice(index * size, (index + 1) * size);
    const values = names.map((name) => {
      const told = seriesOf(stretch, name, "norms");
      return told.length ? told.reduce((sum, { y }) => sum + y, 0) / told.length : null;
    });
    return { from: stretch[0]!.update + 1, to: stretch.at(-1)!.update + 1, values };
  });
  return { names, columns };
}

/** How strong a norm is among all of its table, from 0 to 1, by its logarithm: norms span powers of ten. */
export function strengthOf(value: number | null, all: Extent): number {
  if (value === null || value <= 0 || all.low <= 0) return 0;
  return (Math.log(value) - Math.log(all.low)) / (Math.log(all.high) - Math.log(all.low));
}

/** What a number of a record is, for a reader: its title, and which way is good. */
export interface Meaning {
  title: string;
  says: string;
}

const MEANINGS: Readonly<Record<string, Meaning>> = {
  bits_per_byte: { title: "Bits per byte, held-out text", says: "How many bits the model needs for a byte of text that it never trained on. Less is better; 8 is blind." },
  held_out_loss: { title: "Loss on held-out data", says: "The same loss, on examples that no update saw. When it rises while the loss falls, the model learns by heart." },
  reward: { title: "Reward", says: "What the answers of an update earned, on average." },
  failed: { title: "Failed", says: "The share of unseen tasks that it gets wrong." },
  verified: { title: "Verified", says: "The share of answers that a check found right." },
  ended: { title: "Answers that end", says: "The share of answers that the model ended itself." },
  length: { title: "Length", says: "Tokens of an answer. A reward that pays for length makes them longer and no better." },
  k1_of_answer: { title: "KL to the reference, k1", says: "How far an answer has gone from what the model said before this stage, in nats; a noisy estimate." },
  k3_of_answer: { title: "KL to the reference, k3", says: "The same, by an estimate that is never below 0: the leash." },
  moved_k3: { title: "Moved in an update", says: "How far the updates on one batch of answers have carried the model from the one that gave them." },
  clipped: { title: "Clipped", says: "The share of tokens whose ratio was cut off: they push no further." },
  explained_variance: { title: "Explained by the critic", says: "The share of the rewards' spread that the value head foretold; 1 is all." },
  sampler_k3: { title: "Sampler and trainer apart", says: "How much the two disagree about the same tokens; near 0, or the reward teaches another model." },
  margin: { title: "Margin", says: "By how much the chosen answer is preferred to the rejected one." },
  accuracy: { title: "Pairs in order", says: "The share of pairs whose chosen answer comes first. Chance is 50 %." },
  chosen_shift: { title: "Chosen, since the start", says: "How much likelier the chosen answers have become." },
  rejected_shift: { title: "Rejected, since the start", says: "How much likelier the rejected ones have become. Where both fall, likelihood went elsewhere." },
  equal_groups: { title: "Groups without a lesson", says: "The share of groups in which all answers earned the same." },
  acceptance: { title: "Accepted", says: "The chance that the teacher takes what this model would say." },
};

/** The meaning of a name; the name itself where this page knows none. */
export function meaningOf(name: string): Meaning {
  return MEANINGS[name] ?? { title: name.replaceAll("_", " "), says: "" };
}

/** A loss as a number of choices: as unsure as between so many equally likely tokens. */
export const choicesOf = (loss: number): number => Math.exp(loss);
