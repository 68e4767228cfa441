// F: position.
import { bytes, figure, share } from "../numbers";
import type { Positions } from "../payloads";
import { bar, quoted, type Chapter, type Reach } from "./chapter";

/** Of docs/compare.md what is told here. distance: by how much the chances of each token's step moved. */
interface Found {
  first_difference: number | null;
  recorded_text: string;
  changed_text: string;
  recorded_pieces: string[];
  divergence: { distance: number[] } | null;
}

const look = (reach: Reach): Promise<Positions> => reach.see("positions", { position: reach.position });

export const F: Chapter = {
  id: "f",
  name: "Position",
  does:
    "\u201cDog bites man\u201d is not \u201cman bites dog\u201d, so the model must know where a word stands. Most models turn pairs of " +
    "numbers like the hands of clocks, a little further at each position. When two words meet, only the distance " +
    "between them is left. Fast hands tell neighbours apart, slow ones near from far.",
  view: "positions",
  async claims(reach) {
    const [here, pages] = [await look(reach), await reach.see("pages")];
    const isTurned = here.kind === "rotary";
    return [
      {
        told: "A code of the position is added to each vector.",
        here: isTurned
          ? `Nothing is added. In each head ${here.inverse.length} pairs of entries turn.`
          : here.kind === "none"
            ? `Layer ${here.layer} is told no position at all.`
            : `Here one is: a ${here.kind} vector of norm ${figure(here.added_norm)}.`,
      },
      ...(isTurned
        ? [
            {
              here:
                `The score of ${quoted(here.text)} and ${quoted(here.key_text)} is ${figure(here.score, 5)}; with both ` +
                `${figure(here.shifts.at(-1))} places further on it is ${figure(here.shifted.list().at(-1), 5)}. Their distance is the same.`,
            },
          ]
        : []),
      {
        told: "A context holds whole books.",
        here:
          `This model was made for ${figure(here.max_length)} tokens. Full, their keys and values take ` +
          `${figure(here.max_length)} \u00d7 ${bytes(pages.token_bytes)} = ${bytes(here.max_length * pages.token_bytes)}.`,
        from: "arithmetic",
      },
    ];
  },
  lever: {
    label: "Answer again with heads that know no positions; takes some seconds",
    kind: "choice",
    value: "positions=off",
    choices: ["positions=off"],
    async run(reach, change) {
      const path = `/cutaway/v1/traces/${encodeURIComponent(reach.trace)}/compare`;
      const found = await reach.post<Found>(path, { change, max_tokens: 8 });
      const at = found.first_difference;
      return {
        said:
          `${quoted(found.recorded_text)} became ${found.changed_text ? quoted(found.changed_text) : "nothing"}: ` +
          (at === null ? "the same tokens." : `another token from number ${at + 1} on.`) +
          (found.divergence ? " How much of the chances moved at each step:" : ""),
        bars: (found.divergence?.distance ?? []).map((moved, index) => bar(found.recorded_pieces[index] ?? "", moved, share(moved))),
      };
    },
  },
  async question(reach) {
    const { kind, inverse, layer } = await look(reach);
    return kind === "rotary"
      ? { text: `How many of ${inverse.length} pairs of numbers (the clock hands) turn once or more between the first token and the last of this answer? (within a tenth is right)` }
      : { text: `What tells layer ${layer} where a token stands?`, choices: ["the mask alone", "a vector that is added"] };
  },
  async answer(reach) {
    const [{ kind, wavelengths, max_length, num_slow }, { texts }] = [await look(reach), await reach.see("tokens")];
    if (kind !== "rotary") {
      const right = kind === "none" ? "the mask alone" : "a vector that is added";
      return { right, said: `Positions are ${kind} here: ${right}.` };
    }
    const right = wavelengths.list().filter((each) => each <= texts.length - 1).length;
    return {
      right,
      slack: 0.1,
      said:
        `${right} of ${wavelengths.length}: their full turn is ${figure(texts.length - 1)} positions or less. ` +
        `${num_slow} make none in ${figure(max_length)}.`,
    };
  },
};
