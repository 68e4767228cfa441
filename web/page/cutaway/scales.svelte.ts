// Scales that two pictures beside one another share, so that lengths and colours can be compared.
import { getContext, onDestroy, setContext, untrack } from "svelte";

type Ends = readonly [number, number];

interface Side {
  board: Board;
  isPinned: boolean;
}

const KEY = Symbol("scales");

/** The ends of all scales of both sides. */
class Board {
  #all: ReadonlyMap<object, { name: string; isPinned: boolean; ends: Ends }> = $state.raw(new Map());

  set(who: object, entry: { name: string; isPinned: boolean; ends: Ends } | null): void {
    const all = new Map(this.#all);
    if (entry) all.set(who, entry);
    else all.delete(who);
    this.#all = all;
  }

  /** Ends that hold what is called so on the other side, too. */
  both(name: string, isPinned: boolean, own: Ends): Ends {
    const others = [...this.#all.values()].filter((each) => each.name === name && each.isPinned !== isPinned);
    return [Math.min(own[0], ...others.map((each) => each.ends[0])), Math.max(own[1], ...others.map((each) => each.ends[1]))];
  }
}

/** Begin a side: the one that is looked at, or the pinned one within it. */
export function beginSide(isPinned: boolean): void {
  const outer = isPinned ? getContext<Side | undefined>(KEY) : undefined;
  setContext(KEY, { board: outer?.board ?? new Board(), isPinned });
}

/** A scale's own ends, widened to those of the same scale on the other side. Numbers in a name do not count. */
export function shared(name: () => string, own: () => Ends): () => Ends {
  const side = getContext<Side | undefined>(KEY);
  if (!side) return own;
  const { board, isPinned } = side;
  const who = {};
  const called = $derived(name().replace(/\d+/g, ""));
  $effect(() => {
    const entry = { name: called, isPinned, ends: own() };
    untrack(() => board.set(who, entry));
  });
  onDestroy(() => board.set(who, null));
  return () => board.both(called, isPinned, own());
}
