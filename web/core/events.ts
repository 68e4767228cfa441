// Reads server-sent events from pieces of text, cut anywhere.

/** Collects pieces and gives the data of each event once it is whole. Comments are left out. */
export class EventReader {
  #rest = "";

  /** The data of the events that this piece completes. */
  add(piece: string): string[] {
    const lines = (this.#rest + piece).split("\n\n");
    this.#rest = lines.pop() ?? "";
    return lines.map(dataOf).filter((data) => data !== null);
  }
}

function dataOf(event: string): string | null {
  const data = event
    .split("\n")
    .filter((line) => line.startsWith("data:"))
    .map((line) => line.slice(5).replace(/^ /, ""));
  return data.length ? data.join("\n") : null;
}
