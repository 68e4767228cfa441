// Saves what can be seen of an answer as a trace file: every station at the chosen place, and all that was looked at.
import { linesOf } from "../../core/facts";
import { findingOf, isKnown } from "../../core/findings";
import { STATIONS } from "../../core/stations";
import { traceFile, type Told } from "../../core/tracewrite";
import { Refused } from "../../core/views";
import type { Look } from "./look.svelte";

/** Hands the file to the browser. tell: what it is at, in words. */
export async function save(look: Look, tell: (words: string) => void): Promise<void> {
  for (const [index, { view }] of STATIONS.entries()) {
    tell(`Saving ${index + 1} of ${STATIONS.length} …`);
    await look.views.see(look.query(view), "saved").catch((error: unknown) => {
      if (!(error instanceof Refused)) throw error; // a view that this model has nothing for is left out
    });
  }
  const { version } = (await (await fetch("/version")).json()) as { version: string };
  const told = (await linesOf(look.views.trace)).map((line) => JSON.parse(line) as Told);
  const bytes = await traceFile(told, look.views.seen(), version, (seen) => (isKnown(seen.view) ? findingOf(seen.view, seen.values as never) : ""));
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([bytes]));
  link.download = "answer.cutaway";
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
