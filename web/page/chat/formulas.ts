// Formulas. Fetched when an answer first has one.
import katex from "katex";
import "katex/dist/katex.min.css";

/** Write a formula into its element; what cannot be read stays as it was written. */
export function typeset(element: HTMLElement): void {
  const written = element.textContent ?? "";
  try {
    katex.render(element.dataset.tex ?? "", element, {
      displayMode: element.classList.contains("wide"),
      maxExpand: 200,
      maxSize: 20,
      strict: "ignore",
      throwOnError: true,
      trust: false,
    });
  } catch {
    element.textContent = written;
  }
}
