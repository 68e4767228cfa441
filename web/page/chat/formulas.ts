// Formulas, as MathML, which browsers draw and readers aloud can read. Fetched when an answer first has one.
import temml from "temml";
import "temml/dist/Temml-Local.css";

/** Write a formula into its element; what cannot be read stays as it was written. */
export function typeset(element: HTMLElement): void {
  const written = element.textContent ?? "";
  try {
    temml.render(element.dataset.tex ?? "", element, {
      displayMode: element.classList.contains("wide"),
      maxExpand: 200,
      maxSize: [20, 20],
      throwOnError: true,
      trust: false,
    });
  } catch {
    element.textContent = written;
  }
}
