// Words that this browser remembers, where it lets the page keep any: cookies may be blocked, its room used up.

/** What was kept under a name; null where nothing was. */
export function recall(name: string): string | null {
  try {
    return localStorage.getItem(name);
  } catch {
    return null;
  }
}

/** Keep a word under a name; gives whether the browser does. */
export function remember(name: string, value: string): boolean {
  try {
    localStorage.setItem(name, value);
    return true;
  } catch {
    return false; // the page goes on with it until it is closed
  }
}
