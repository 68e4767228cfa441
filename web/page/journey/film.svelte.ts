// A film that is shown: its clock as the page sees it, and how one walks through it.
import { beginOf, sceneAt, stillOf, totalOf, type Scene } from "../../core/film";
import { Player } from "./player";

const quiet = matchMedia("(prefers-reduced-motion: reduce)");

export class Film {
  seconds = $state(0);
  isPlaying = $state(false);
  isNew = $state(true); // nobody has begun it
  readonly total: number;
  readonly player: Player;
  readonly scene = $derived.by(() => sceneAt(this.scenes, this.seconds));

  /** holds: until which second all is there; it waits then. */
  constructor(
    readonly scenes: readonly Scene[],
    holds: () => number = () => Infinity,
  ) {
    this.total = totalOf(scenes);
    const stills = scenes.map((_, index) => stillOf(scenes, index));
    this.player = new Player(this.total, stills, () => quiet.matches, holds, () => {
      [this.seconds, this.isPlaying] = [this.player.seconds, this.player.isPlaying];
    });
  }

  get isOver(): boolean {
    return this.seconds >= this.total - 0.1;
  }

  /** To its end, as a picture of the whole: played from there it begins anew. */
  show(): void {
    this.player.seek(this.total);
  }

  /** From its beginning; where nothing shall move it stands at its first still. */
  begin(plays: boolean): void {
    this.isNew = false;
    this.player.pause();
    this.player.seek(quiet.matches ? stillOf(this.scenes, 0) : 0);
    if (plays && !quiet.matches) this.player.play();
  }

  toggle(): void {
    this.isNew = false;
    if (this.isPlaying) this.player.pause();
    else this.player.play();
  }

  /** To a scene: its beginning while it plays, else where it stands whole. */
  go(to: number): void {
    const index = Math.max(0, Math.min(this.scenes.length - 1, to));
    this.player.seek(quiet.matches || !this.isPlaying ? stillOf(this.scenes, index) : beginOf(this.scenes, index));
  }

  /** Keys that walk through it; whether one was taken. */
  press(event: KeyboardEvent): boolean {
    if (event.altKey || event.ctrlKey || event.metaKey || event.defaultPrevented) return false;
    const own = event.target as HTMLElement;
    if (own instanceof HTMLInputElement || own instanceof HTMLSelectElement) return false;
    if (event.key === " " && !(own instanceof HTMLButtonElement)) this.toggle();
    else if (event.key === "ArrowRight") this.go(this.scene + 1);
    else if (event.key === "ArrowLeft") this.go(this.scene - 1);
    else if (event.key === "Home") this.go(0);
    else if (event.key === "End") this.go(this.scenes.length - 1);
    else return false;
    event.preventDefault();
    event.stopPropagation();
    return true;
  }
}
