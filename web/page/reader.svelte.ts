// Who reads: everybody, or an engineer, who also sees badges, bytes, seeds, tables and every station.
import { recall, remember } from "./recall";

class Reader {
  isEngineer = $state(recall("reader") === "engineer");

  constructor() {
    this.#show();
  }

  /** The other one; this browser remembers it. */
  toggle(): void {
    this.isEngineer = !this.isEngineer;
    remember("reader", this.isEngineer ? "engineer" : "plain");
    this.#show();
  }

  /** What is for engineers alone has their class: the style sheet hides it. */
  #show(): void {
    document.documentElement.dataset.reader = this.isEngineer ? "engineer" : "plain";
  }
}

/** A file that is opened without the page has all: it is an engineer's. */
export const reader = new Reader();
