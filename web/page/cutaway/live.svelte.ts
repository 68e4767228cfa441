// What the engine does for an answer at this moment, as its events tell.
import { happenings, type Happening } from "../../core/live";

const GROUP_OF: Record<string, string> = {
  start: "text",
  template: "text",
  prompt: "tokens",
  pages: "engine",
  step: "blocks",
  token: "sampling",
  cost: "engine",
};

export class Live {
  isRunning = $state(false);
  group = $state(""); // of the map, where it is at work
  step = $state(-1);
  last: Happening | null = $state.raw(null); // step
  token: Happening | null = $state.raw(null);
  tokens: Happening[] = $state.raw([]); // the last ones
  numLayers = $state(0);
  chances: number[] = $state.raw([]); // of each token so far
  times: number[] = $state.raw([]); // of each step behind the first, in milliseconds
  #stopper: AbortController | null = null;

  /** Follow an answer; gives what ends it. */
  follow(trace: string): () => void {
    const stopper = new AbortController();
    this.#stopper = stopper;
    void this.#run(trace, stopper.signal);
    return () => stopper.abort();
  }

  async #run(trace: string, signal: AbortSignal): Promise<void> {
    this.isRunning = true;
    try {
      for await (const event of happenings(trace, signal)) {
        this.group = GROUP_OF[event.type] ?? this.group;
        if (event.type === "start") this.numLayers = event.num_layers ?? 0;
        else if (event.type === "step") {
          this.last = event;
          this.step = event.number ?? -1;
          if (event.count === 1) this.times = [...this.times, 1000 * ((event.ended ?? 0) - (event.began ?? 0))];
        } else if (event.type === "token") {
          this.token = event;
          this.tokens = [...this.tokens.slice(-7), event];
          this.chances = [...this.chances, event.probability ?? NaN];
        }
        else if (event.type === "end") break;
      }
    } catch {
      // The page's own stream of the answer tells what went wrong; this one adds pictures.
    } finally {
      if (this.#stopper?.signal === signal) {
        this.isRunning = false;
        this.group = "";
      }
    }
  }
}
