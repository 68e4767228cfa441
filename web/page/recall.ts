// Words that this browser remembers, where it lets the page keep any: cookies may be blocked, its room used up.

/** What was kept under a name; null where nothing was. */
export function recall(name: string): string | null {
  try {
    return localStorage.getItem(name);
  } catch {
    return null;
  }
}

/** Keep a word under a name, as far as the browser does. */
export function remember(name: string, value: string): void {
  try {
    localStorage.setItem(name, value);
  } catch {
    // The page goes on with it until it is closed.
  }
}
