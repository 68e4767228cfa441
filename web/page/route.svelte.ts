// Where the page is, as the address bar tells it: read, changed, and walked back by the browser.
import { hashHere } from "../core/rooms";
import { hashOf, placeOf, type Place } from "../core/route";

/** The place of the page. Changing it writes the address; the address changes it. */
class Route {
  place: Place = $state.raw(placeOf(location.hash));

  constructor() {
    addEventListener("hashchange", () => (this.place = placeOf(location.hash)));
  }

  /** Go to a place that differs in these fields. isStep: going back leads over it, not to it. */
  go(fields: Partial<Place>, isStep = false): void {
    this.place = { ...this.place, ...fields };
    const address = hashHere(hashOf(this.place), location.hash) || location.pathname + location.search;
    if (isStep) history.replaceState(null, "", address);
    else history.pushState(null, "", address);
  }
}

export const route = new Route();

/** Open the cutaway at a token of an answer: the turn's index in the chat, the token's in the answer. */
export function openCutaway(chat: string | null, turn: number, step: number): void {
  route.go({ chat, turn, step, position: null });
}

/** Close the cutaway; the answer stays where it is. */
export function closeCutaway(): void {
  route.go({ step: null, view: null, layer: null, head: null, position: null });
}
