// Brings what is shown to a newer state and leaves alone what is the same: a growing block costs what its end costs.

/** Make the children of one like those of the other, whose own may be taken. What stands before a change stays. */
export function renew(shown: Node, fresh: Node): void {
  let [mine, theirs] = [shown.firstChild, fresh.firstChild];
  while (mine && theirs && mine.isEqualNode(theirs)) [mine, theirs] = [mine.nextSibling, theirs.nextSibling];
  if (mine && theirs && isAlike(mine, theirs)) {
    renew(mine, theirs);
    [mine, theirs] = [mine.nextSibling, theirs.nextSibling];
  }
  while (mine) {
    const next: ChildNode | null = mine.nextSibling;
    mine.remove();
    mine = next;
  }
  while (theirs) {
    const next: ChildNode | null = theirs.nextSibling;
    shown.appendChild(theirs);
    theirs = next;
  }
}

/** Whether two elements differ in their content alone. */
function isAlike(one: Node, other: Node): boolean {
  return one.nodeType === Node.ELEMENT_NODE && one.cloneNode(false).isEqualNode(other.cloneNode(false));
}
