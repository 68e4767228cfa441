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
let opener: Element | null = null; // what had the focus when the cutaway was opened

/** Open the cutaway at a token of an answer: the turn's index in the chat, the token's in the answer. */
export function openCutaway(chat: string | null, turn: number, step: number): void {
  if (route.place.step === null) opener = document.activeElement;
  route.go({ chat, turn, step, position: null });
}

/** Close the cutaway; the answer stays where it is, and the focus goes back to where it came from. */
export function closeCutaway(): void {
  const turn = route.place.turn;
  route.go({ turn: null, step: null, view: null, layer: null, head: null, position: null });
  // A page that came with the cutaway open was opened by nobody: the answer's own button has it then.
  const own = document.querySelector<HTMLElement>(`[data-opens="${turn}"]`);
  const back = opener instanceof HTMLElement && opener.isConnected && opener !== document.body ? opener : own;
  opener = null;
  // It may not be shown yet: a narrow page has it behind the cutaway.
  setTimeout(() => back?.focus());
}
