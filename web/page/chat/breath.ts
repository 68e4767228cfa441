// Long work in slices, so that the page stays quick: between two of them it paints and hears what is typed.

const SLICE_MS = 8; // half a frame
let began = 0;

/** Wait until the page has had its turn, where the last slice has taken its time. */
export async function breath(): Promise<void> {
  if (performance.now() - began < SLICE_MS) return;
  await new Promise((resume) => setTimeout(resume));
  began = performance.now();
}
