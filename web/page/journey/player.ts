// Plays animations of many elements on one clock: pause, seek, wait, and stills where nothing shall move.

/** What an element does: at some second, how far it is moved and how clear it is. */
export type Move = readonly [second: number, frame: { transform?: string; opacity?: number; easing?: string }];

/** Animations of transform and opacity alone, which a browser runs beside the page's own work. */
export class Player {
  readonly #all = new Set<Animation>();
  #frame = 0;
  #timer = 0;
  #from = 0; // second at which it plays since #began
  #began = 0;
  seconds = 0;
  isPlaying = false;

  /** tell: is told each second as it passes; holds: up to which second all is there. */
  constructor(
    readonly total: number,
    private readonly stills: readonly number[],
    private readonly isStill: () => boolean,
    private readonly holds: () => number,
    private readonly tell: () => void,
  ) {}

  /** Let an element move; gives what ends that. */
  add(element: Element, moves: readonly Move[]): () => void {
    const first = moves[0]!;
    const last = moves.at(-1)!;
    const frames = [[0, first[1]] as Move, ...moves, [this.total, last[1]] as Move].map(([second, frame]) => ({
      easing: "cubic-bezier(0.3, 0, 0.2, 1)",
      ...frame,
      offset: Math.max(0, Math.min(1, second / this.total)),
    }));
    const animation = element.animate(frames, { duration: 1000 * this.total, fill: "both" });
    this.#set(animation, this.#now());
    this.#all.add(animation);
    return () => {
      this.#all.delete(animation);
      animation.cancel();
    };
  }

  play(): void {
    if (this.isPlaying) return;
    if (this.seconds >= this.total - 0.01) this.seconds = 0;
    this.isPlaying = true;
    if (this.isStill()) this.#next();
    else this.#start();
    this.tell();
  }

  pause(): void {
    this.seconds = this.#now();
    this.isPlaying = false;
    this.#stop();
    for (const each of this.#all) this.#set(each, this.seconds);
    this.tell();
  }

  seek(seconds: number): void {
    this.#stop();
    this.seconds = Math.max(0, Math.min(this.total, seconds));
    for (const each of this.#all) this.#set(each, this.seconds);
    if (this.isPlaying && this.isStill()) this.#next();
    else if (this.isPlaying) this.#start();
    this.tell();
  }

  end(): void {
    this.isPlaying = false;
    this.#stop();
    for (const each of this.#all) each.cancel();
    this.#all.clear();
  }

  #now(): number {
    return this.#frame ? Math.min(this.total, this.#from + (performance.now() - this.#began) / 1000) : this.seconds;
  }

  #set(animation: Animation, seconds: number): void {
    // One that ended would need a play() to go on: it ends just before.
    animation.currentTime = Math.min(1000 * seconds, 1000 * this.total - 1);
    if (this.#frame) animation.play();
    else animation.pause();
  }

  #start(): void {
    [this.#from, this.#began] = [this.seconds, performance.now()];
    this.#frame = requestAnimationFrame(() => this.#tick());
    for (const each of this.#all) this.#set(each, this.seconds);
  }

  #stop(): void {
    cancelAnimationFrame(this.#frame);
    clearTimeout(this.#timer);
    [this.#frame, this.#timer] = [0, 0];
  }

  #tick(): void {
    const limit = this.holds();
    const now = this.#now();
    if (now > limit) {
      // What comes next is not here yet: it waits at the scene's end and looks again.
      this.#stop();
      this.seconds = limit;
      for (const each of this.#all) this.#set(each, limit);
      this.#timer = window.setTimeout(() => this.isPlaying && this.#start(), 120);
      this.tell();
      return;
    }
    this.seconds = now;
    if (now >= this.total) {
      this.pause();
      return;
    }
    this.tell();
    this.#frame = requestAnimationFrame(() => this.#tick());
  }

  /** Where nothing shall move: from still to still. */
  #next(): void {
    this.#timer = window.setTimeout(() => {
      const next = this.stills.find((each) => each > this.seconds + 0.01);
      if (next === undefined) return this.pause();
      if (next <= this.holds() + 0.01) this.seconds = next;
      for (const each of this.#all) this.#set(each, this.seconds);
      this.tell();
      this.#next();
    }, 5000);
  }
}
