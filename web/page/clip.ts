// The clipboard, which a browser may withhold, and does from a page that came over the network without TLS.

/** Put a text there; whether the browser let the page do it. */
export async function clip(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return false;
  }
}
