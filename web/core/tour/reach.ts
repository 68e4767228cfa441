// The running server as chapters reach it: views are kept, routes are asked anew.
import { faultOf } from "../chat";
import type { Payloads } from "../payloads";
import type { Views } from "../views";
import type { Places, Reach } from "./chapter";

/** views: of the reader's answer; a live one or those of a file. */
export function reachOf(views: Views, model: string, asked = ""): Reach {
  let count = 0;
  return {
    model,
    trace: views.trace,
    asked,
    position: 0,
    async see<Name extends keyof Payloads>(view: Name, places: Places = {}): Promise<Payloads[Name]> {
      count += 1; // a slot of its own: no question ends another
      return (await views.see({ view, ...places }, `tour ${count}`)).values as unknown as Payloads[Name];
    },
    async post<Told>(path: string, body: object): Promise<Told> {
      const headers = { "content-type": "application/json" };
      const response = await fetch(path, { method: "POST", headers, body: JSON.stringify(body) });
      if (!response.ok) throw new Error(await faultOf(response));
      return (await response.json()) as Told;
    },
  };
}
