// When the page had painted what it holds.

const channel = new MessageChannel();
const waiting: (() => void)[] = [];
channel.port1.onmessage = () => waiting.splice(0).forEach((tell) => tell());

/**
 * Call back when the main thread has painted the document as it is now. isInFrame: whether this is an animation
 * frame's callback, and so that frame paints it. Painting is part of the same task: a message comes after it.
 */
export function whenPainted(isInFrame: boolean, tell: () => void): void {
  if (!isInFrame) requestAnimationFrame(() => whenPainted(true, tell));
  else if (waiting.push(tell)) channel.port2.postMessage(null);
}
