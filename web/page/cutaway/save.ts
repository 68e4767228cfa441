// Saves an answer as a file: a trace that Python and this page open, or one HTML document that any browser opens.
import { faultOf } from "../../core/chat";
import { route } from "../route.svelte";
import type { Look } from "./look.svelte";

/** Hands the file to the browser: all views, at many tokens where they are cheap, and at the chosen place. */
export async function save(look: Look, isPage: boolean, signal: AbortSignal): Promise<void> {
  const { layer, head } = route.place;
  const response = await fetch(`/cutaway/v1/traces/${encodeURIComponent(look.views.trace)}/file`, {
    method: "POST",
    headers: { "content-type": "application/json" },
    signal,
    body: JSON.stringify({
      html: isPage,
      token: look.step,
      ...(layer !== null && { layers: String(layer) }),
      ...(layer !== null && head !== null && { heads: String(head) }),
    }),
  });
  if (!response.ok) throw new Error(await faultOf(response));
  const link = document.createElement("a");
  link.href = URL.createObjectURL(await response.blob());
  link.download = isPage ? "answer.html" : "answer.cutaway";
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
