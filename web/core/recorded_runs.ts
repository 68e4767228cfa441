// Runs of training of a small model of our own, recorded by tools/recorded_runs.py: played where a server has no runs.
import told from "./recorded_runs.json";
import type { Example, Run, Update } from "./training";

export interface RecordedRun {
  about: string; // what it learns, for a reader
  seconds: number; // that it took
  run: Run;
  rows: Update[];
  example: readonly Example[]; // of what some learn from
}

type Columns = Readonly<Record<string, readonly (number | null)[]>>;

/** The numbers of one update out of columns; those that it did not have are left out. */
function at(columns: Columns, update: number): Record<string, number> {
  return Object.fromEntries(Object.entries(columns).flatMap(([name, values]) => (values[update] == null ? [] : [[name, values[update]]])));
}

/** A run as the file has it: of each number its values, one for so many updates. */
interface Kept {
  name: string;
  about: string;
  stage: string;
  settings: Record<string, unknown>;
  every: number;
  seconds: number;
  plain: Columns;
  example?: Example[];
  samples: Record<string, [string, string][] | undefined>;
  figures?: Columns;
  norms?: Columns;
  measured?: Columns;
  weight?: Columns;
}

export const RECORDED_RUNS: readonly RecordedRun[] = (told as unknown as Kept[]).map(({ name, about, stage, settings, every, seconds, plain, samples, example = [], ...parts }) => {
  const count = plain.loss?.length ?? 0;
  const rows = Array.from({ length: count }, (_, index): Update => {
    const update = every * (index + 1) - 1;
    const { loss = null, norm = null, rate = 0 } = at(plain, index) as Partial<Record<string, number>>;
    const [figures, norms, measured] = [parts.figures, parts.norms, parts.measured].map((each) => at(each ?? {}, index));
    const [own, weight] = [samples[update], parts.weight && at(parts.weight, index)];
    return {
      ...{ update, loss, norm, rate, seconds: seconds / (every * count), figures: figures!, norms: norms!, measured: measured! },
      ...(weight && { weight }),
      ...(own && { samples: own }),
    };
  });
  return { about, seconds, run: { name, stage, settings, is_over: true, idle_seconds: 0, last: rows.at(-1)! }, rows, example };
});
