// Guesses as a film: what was guessed, one verdict after another, and the text that stands.
import type { Guess, VerifiedStep } from "./payloads";

/** What one step shows at some moment. told: how many of its guesses have their verdict. */
export interface Beat {
  step: VerifiedStep;
  stands: readonly string[]; // texts of all tokens that stand by now
  told: number;
  isOver: boolean; // of its step: what came besides stands too
}

/** What a step gave, in order: guesses that stood, and the token that the model drew itself. */
export function givenBy(step: VerifiedStep): string[] {
  const stood = step.guesses.filter((guess) => guess.verdict === "accepted").map((guess) => guess.text);
  const refused = step.guesses.find((guess) => guess.verdict === "refused");
  return [...stood, ...(refused ? [refused.came] : step.given > stood.length ? [step.last] : [])];
}

/** All moments of some steps: each shows its guesses, judges them one by one, and ends. */
export function beatsOf(steps: readonly VerifiedStep[]): Beat[] {
  const beats: Beat[] = [];
  let stands: string[] = [];
  for (const step of steps) {
    const judged = step.guesses.filter((guess) => guess.verdict !== "unused").length;
    for (let told = 0; step.guesses.length && told <= judged; told += 1) {
      const right = step.guesses.slice(0, told).filter((guess) => guess.verdict === "accepted");
      beats.push({ step, stands: [...stands, ...right.map((guess) => guess.text)], told, isOver: false });
    }
    stands = [...stands, ...givenBy(step)];
    beats.push({ step, stands, told: judged, isOver: true });
  }
  return beats;
}

/** How a guess looks: as a guess until it is judged. */
export const lookOf = (guess: Guess, place: number, beat: Beat): Guess["verdict"] | "guessed" =>
  place < beat.told ? guess.verdict : beat.isOver || beat.step.guesses.slice(0, beat.told).some((each) => each.verdict === "refused") ? "unused" : "guessed";
