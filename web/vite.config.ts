// Builds the page into the Python package. Nothing is inlined: its policy forbids inline code.
import { svelte } from "@sveltejs/vite-plugin-svelte";
import { defineConfig, type Plugin } from "vite";

// KaTeX names 20 fonts in three forms each, more bytes than the whole page. These six write what
// answers have; bold and upright styles are made from them, and rare alphabets fall back.
const FONTS = /KaTeX_(Main-Regular|Math-Italic|AMS-Regular|Size[1-4]-Regular)\.woff2/;

/** Leaves the fonts of formulas that are worth their bytes. */
function fewFonts(): Plugin {
  return {
    name: "few-fonts",
    enforce: "pre",
    transform(code, id) {
      if (!id.includes("katex") || !id.endsWith(".css")) return undefined;
      return code.replace(/@font-face\{[^}]*\}/g, (face) => {
        const source = /url\([^)]*\.woff2\)/.exec(face)?.[0] ?? "";
        return FONTS.test(source) ? face.replace(/src:[^;}]*/, `src:${source} format("woff2")`) : "";
      });
    },
  };
}

export default defineConfig({
  assetsInclude: ["**/*.cutaway"], // trace files that tests open
  plugins: [
    fewFonts(),
    svelte({
      onwarn(warning) {
        throw new Error(`${warning.code}: ${warning.message}`);
      },
    }),
  ],
  build: {
    outDir: "../src/cutaway/_web",
    emptyOutDir: true,
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    target: "es2022",
  },
});
